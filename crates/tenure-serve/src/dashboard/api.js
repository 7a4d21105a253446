// Asks the server by its public routes. The browser sends the cookie; nothing secret is kept here.

/** Why something was not done, in the words of the server. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || "the server does not answer");
    this.status = status;
    this.kind = body.kind || "unavailable";
    this.hint = body.hint;
  }
}

// Longer than a call that waits for nobody may take.
const PATIENCE = 10_000;

async function ask(method, path, body) {
  // Only a page of this server can send this header: without it the cookie changes nothing.
  const headers = { "Tenure-Dashboard": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response, text;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(PATIENCE),
    });
    text = await response.text();
  } catch {
    throw new Problem(0, { detail: "the server does not answer" });
  }
  let answer = {};
  try {
    answer = text ? JSON.parse(text) : {};
  } catch {
    throw new Problem(response.status, { detail: "something between has answered, and not the server" });
  }
  if (response.ok) return answer;
  if (response.status === 401 && path !== "/v1/sign-in") document.dispatchEvent(new Event("tenure:signed-out"));
  throw new Problem(response.status, answer);
}

/** Asks for something. */
export function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return ask("GET", given.length ? `${path}?${new URLSearchParams(given)}` : path);
}

/** Has something done. */
export const post = (path, body) => ask("POST", path, body);

/** The same, where a refusal is an answer as well: `/readyz` says so why it is not ready. */
export async function look(path) {
  const response = await fetch(path, { signal: AbortSignal.timeout(PATIENCE) }).catch(() => null);
  return response ? await response.json().catch(() => ({})) : {};
}

/** Who we are, and may do what. */
export const session = { name: null, allow: [], is_read_only: false, engine: "", version: "" };

export async function whoAmI() {
  Object.assign(session, await ask("GET", "/v1/sign-in"));
}

export async function signIn(token) {
  Object.assign(session, await ask("POST", "/v1/sign-in", { token }));
}

export const signOut = () => ask("DELETE", "/v1/sign-in");

const CHANGES = ["claim", "operate", "push", "take"];

/**
 * Whether a verb is allowed for a name, or without one for all of them: the rules of the file of tokens. What is not is not
 * offered; the server refuses it in any case.
 */
export function may(verb, name) {
  if (session.is_read_only && CHANGES.includes(verb)) return false;
  if (session.allow === null) return true;
  return session.allow.some((line) => {
    const at = line.indexOf(" ");
    if (at < 0) return line === verb;
    if (name === undefined || line.slice(0, at) !== verb) return false;
    const names = line.slice(at + 1);
    return names.startsWith("=") ? name === names.slice(1) : name.startsWith(names);
  });
}

/** Whether we may see what only operators see, on a server that is read-only, too. */
export const isOperator = () => session.allow === null || session.allow.includes("operate");
