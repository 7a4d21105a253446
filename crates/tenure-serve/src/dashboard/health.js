// Whether the store and this instance are well.

import { get, isOperator, look } from "./api.js";
import { h, heading, put } from "./dom.js";
import { count, many, percent, period, plain } from "./format.js";
import { since } from "./overview.js";
import { Table } from "./table.js";

const WORDS = { bad: "Bad", warning: "Warning", warn: "Warning", good: "Good", ok: "Good", info: "Note" };

export function health() {
  let at = performance.now();
  const ago = (ms) => (ms === null ? "never" : `${period(ms + since(at))} ago`);
  const state = h("p", { class: "store" });
  const doctor = new Table({
    caption: "Findings of the doctor",
    key: (row) => `${row.what} ${row.found}`,
    empty: "Nothing was found.",
    columns: [
      { title: "Severity", is: "what", text: (row) => WORDS[row.severity] ?? row.severity, note: (row) => ({ bad: "bad", warning: "warn", warn: "warn" })[row.severity] ?? "good" },
      { title: "What", is: "name", text: (row) => plain(row.what) },
      { title: "Found", text: (row) => plain(row.found) },
      { title: "Hint", text: (row) => plain(row.hint) || "–" },
    ],
  });
  const limits = new Table({
    caption: "Limits of this instance",
    key: (row) => row.what,
    empty: "",
    columns: [
      { title: "What", is: "name", text: (row) => row.what },
      { title: "In use", is: "number", text: (row) => count(row.used) },
      { title: "At most", is: "number", text: (row) => count(row.most) },
      { title: "Share", make: () => h("meter", { min: "0", max: "1", low: "0.6", high: "0.85", optimum: "0" }), show: share },
    ],
  });
  const requests = new Table({
    caption: "Requests of this instance since it began, by status",
    key: (row) => row.status,
    empty: "There was none.",
    columns: [
      { title: "Status", is: "name", text: (row) => row.status },
      { title: "Answers", is: "number", text: (row) => count(row.count) },
      { title: "Share", is: "number", text: (row) => percent(row.share) },
    ],
  });
  const tokens = new Table({
    caption: "Tokens",
    key: (row) => row.name,
    empty: "There is no file of tokens: whoever reaches this server may do everything.",
    columns: [
      { title: "Name", is: "name", text: (row) => plain(row.name) },
      { title: "Allowed", text: (row) => row.allow.map(plain).join(", ") },
      { title: "Last used here", is: "number", text: (row) => ago(row.used_ago_ms) },
      { title: "Requests", is: "number", text: (row) => count(row.requests) },
      { title: "Waiting", is: "number", text: (row) => count(row.waiting) },
      { title: "Expires in", is: "number", text: (row) => (row.expires_in_ms === null ? "–" : period(row.expires_in_ms)) },
    ],
  });
  const acts = new Table({
    caption: "What operators did by this instance since it began; the log has all of it",
    key: (row) => row.key,
    empty: "Nothing yet.",
    columns: [
      { title: "When", is: "when", text: (row) => ago(row.ago_ms) },
      { title: "By", text: (row) => (row.by === null ? "–" : plain(row.by)) },
      { title: "Act", text: (row) => row.act },
      { title: "Name", is: "name", text: (row) => plain(row.name) },
      { title: "Details", text: (row) => plain(row.detail) },
      { title: "Outcome", text: (row) => (row.outcome === "failed" ? "unknown" : row.outcome), note: (row) => (row.outcome === "done" ? null : "warn") },
    ],
  });
  const mayLook = isOperator();

  async function refresh() {
    const [ready, found, server] = await Promise.all([
      look("/readyz"), mayLook ? get("/v1/doctor") : null, mayLook ? get("/v1/server") : null,
    ]);
    at = performance.now();
    const why = ready.why ? `: ${ready.why.join(", ")}` : "";
    const begun = server ? ` It has run for ${period(server.up_ms)}.` : "";
    put(state, `This instance is ${ready.state ?? "not ready"}${why}.${begun}${ready.tokens ? ` The file of tokens is not in force: ${ready.tokens}` : ""}`);
    if (!server) return null;
    doctor.show(found.findings);
    limits.show(server.limits);
    const sum = server.requests.reduce((all, one) => all + one.count, 0);
    requests.show(server.requests.map((one) => ({ ...one, share: one.count / sum })));
    tokens.show(server.tokens);
    // What is older has a smaller number, so that a row stays what it was when there is a new one.
    acts.show(server.acts.map((act, index) => ({ ...act, key: server.acts.length - index })));
    return many(found.findings.filter(({ severity }) => severity === "bad").length, "bad finding");
  }

  return {
    title: "Health",
    elements: [
      heading("Health"), state,
      ...(mayLook ? [doctor.element, limits.element, requests.element, tokens.element, acts.element] : [h("p", { class: "none" }, "More is for who may operate everything.")]),
    ],
    events: null,
    rest: 1000,
    refresh,
    tick: () => [tokens, acts].forEach((table) => table.tick()),
  };
}

function share(meter, row) {
  meter.value = row.most ? row.used / row.most : 0;
  meter.setAttribute("aria-label", `${row.what}: ${count(row.used)} of ${count(row.most)}`);
}
