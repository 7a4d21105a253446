// The frame of the dashboard: which page is shown, who is signed in, how it stands.

import { Problem, session, signIn, signOut, whoAmI } from "./api.js";
import { h, heading, mark, put, say, trouble } from "./dom.js";
import { plain } from "./format.js";
import { Live } from "./live.js";
import { health } from "./health.js";
import { lock } from "./lock.js";
import { locks } from "./locks.js";
import { overview } from "./overview.js";
import { queue } from "./queue.js";
import { queues } from "./queues.js";

const PAGES = { "": overview, locks, lock, queues, queue, health };
const main = document.getElementById("main");
const nav = document.querySelector("nav");
const bar = document.querySelector(".session");
const state = document.querySelector(".state");
const pause = document.getElementById("pause");
const out = document.getElementById("sign-out");

const STATES = {
  live: ["Live", "What is shown is kept up to date"],
  paused: ["Paused", "Nothing is asked until you go on"],
  away: ["Not up to date", "The last answer is shown until there is a new one"],
};

const live = new Live((is, problem) => {
  const [text, title] = STATES[is];
  mark(state, "data-state", is);
  mark(state, "title", problem?.message ?? title);
  put(state, text);
  const shown = document.getElementById("away");
  if (is !== "away") shown?.remove();
  else if (shown) put(shown, away(problem));
  else main.prepend(h("p", { id: "away", class: "note warn" }, away(problem)));
});

const away = (problem) => `This is not up to date: ${problem.message}. It is tried again.`;

let shown = { name: null, page: null };

/** Shows the page that the address names. `isMoved`: somebody went there, and the focus goes along. */
function route(isMoved) {
  const [path, query] = (location.hash.startsWith("#/") ? location.hash.slice(2) : "").split("?");
  const name = path in PAGES ? path : "";
  const given = Object.fromEntries(new URLSearchParams(query));
  if (shown.name === name && shown.page.turn?.(given)) {
    live.follow(shown.page);
    return;
  }
  const page = PAGES[name](given);
  shown = { name, page };
  main.replaceChildren(...page.elements);
  document.title = `${page.title} – tenure`;
  const of = { lock: "locks", queue: "queues", "": "overview" }[name] ?? name;
  for (const one of nav.querySelectorAll("a")) mark(one, "aria-current", one.dataset.page === of ? "page" : null);
  if (isMoved) {
    scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
  }
  live.follow(page);
}

function showSession() {
  nav.hidden = bar.hidden = false;
  const who = session.name === null ? "everybody may do everything" : plain(session.name);
  put(document.querySelector(".who"), `${session.engine} · ${who}${session.is_read_only ? " · read-only" : ""}`);
  out.hidden = session.name === null;
}

/** Asks for the token, once. */
function showSignIn(problem) {
  live.stop();
  shown = { name: null, page: null };
  nav.hidden = bar.hidden = true;
  document.title = "Sign in – tenure";
  const token = h("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false", "aria-describedby": "token-help" });
  const wrong = h("div", {}, problem?.status && problem.status !== 401 ? trouble(problem) : null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await signIn(token.value);
      token.value = "";
      showSession();
      say("Signed in", true);
      route(true);
    } catch (refused) {
      wrong.replaceChildren(trouble(refused));
      token.focus();
    }
  };
  main.replaceChildren(
    h(
      "form", { class: "sign-in", on: { submit } },
      heading("Sign in"),
      h("p", {}, h("label", { for: "token" }, "Token of this server"), token),
      h("p", { id: "token-help", class: "hint" }, "It begins with tnr_. An operator makes one: tenure serve token NAME --allow read. This browser keeps a cookie for 12 hours, and not the token."),
      wrong,
      h("button", { class: "main" }, "Sign in"),
    ),
  );
  token.focus();
}

async function begin() {
  try {
    await whoAmI();
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    if (problem.status === 401) return showSignIn();
    main.replaceChildren(heading("tenure"), h("p", { class: "note warn" }, `${problem.message}. It is tried again.`));
    return setTimeout(begin, 2000);
  }
  showSession();
  route(false);
}

addEventListener("hashchange", () => session.engine && !nav.hidden && route(true));
document.addEventListener("tenure:signed-out", () => showSignIn());
pause.addEventListener("click", () => {
  const isPaused = pause.getAttribute("aria-pressed") !== "true";
  mark(pause, "aria-pressed", isPaused);
  live.pause(isPaused);
});
out.addEventListener("click", async () => {
  await signOut().catch(() => {});
  showSignIn();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
begin();
