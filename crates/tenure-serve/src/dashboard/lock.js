// One lock: who holds it, who waits, what happens to it, and what an operator may do about it.

import { get, may, post } from "./api.js";
import { ask } from "./ask.js";
import { figures, h, heading, mark, put, told, trouble } from "./dom.js";
import { count, holder, link, many, period, plain } from "./format.js";
import { since } from "./overview.js";
import { Table } from "./table.js";

const CHANGES = 50;
/** The most waiters and slots that are shown; of the others the number is. */
const SHOWN = 100;
const SLOTS = 512;

const TOLD = {
  held: (e) => `held by ${holder(e.holder)}`,
  granted: (e) => `granted to ${holder(e.holder)}`,
  ended: (e) => `${holder(e.holder)} no longer holds it`,
  resting: (e) => `rests after ${holder(e.holder)}`,
  waiting: (e) => (e.waiting === 1 ? "1 waits" : `${count(e.waiting)} wait`),
  idle: () => "nobody holds it or waits",
};

export function lock({ name = "" }) {
  const isOperator = may("operate", name);
  let view = null;
  let at = 0;
  const trouble_ = h("div", {});
  const all = { kind: dd(), used: dd(), waiting: dd(), token: dd() };
  const none = h("p", { class: "none", hidden: true }, "Nobody holds it, and nobody waits for it.");

  const free = (current) => h("button", { type: "button", class: "danger", on: { click: () => end(current()) } }, "Free…");
  const holds = new Table({
    caption: "Holds",
    key: (hold) => `${hold.token} ${hold.slot}`,
    empty: "Nobody holds it.",
    columns: [
      { title: "Holder", is: "name", text: (hold) => (hold.is_resting ? `rests after ${holder(hold.holder)}` : holder(hold.holder)), note: (hold) => (hold.is_resting ? "rest" : null) },
      { title: "Token", is: "number", text: (hold) => hold.token },
      { title: "Slot", is: "number", text: (hold) => hold.slot ?? "–" },
      { title: "Units", is: "number", text: (hold) => count(hold.weight) },
      { title: "Held", is: "number", text: (hold) => period(hold.held_ms + since(at)) },
      { title: "Ends in", is: "number", text: (hold) => period(Math.max(0, hold.ends_in_ms - since(at))) },
      ...(isOperator ? [{ title: "", is: "acts", make: free, show: (button, hold) => mark(button, "aria-label", `Free the hold of ${holder(hold.holder)} with token ${hold.token}`) }] : []),
    ],
  });
  const waiters = new Table({
    caption: "Waiters, in the order in which they will be granted it",
    key: (waiter) => waiter.key,
    empty: "Nobody waits.",
    columns: [
      { title: "Place", is: "number", text: (waiter) => count(waiter.place) },
      { title: "Waiter", is: "name", text: (waiter) => holder(waiter.holder) },
      { title: "Units", is: "number", text: (waiter) => count(waiter.weight) },
    ],
  });
  const changes = new Table({
    caption: `What has happened since you opened this page, of the last ${CHANGES} changes`,
    key: (change) => change.number,
    empty: "Nothing yet.",
    columns: [
      { title: "When", is: "when", text: (change) => `${period(since(change.at))} ago` },
      { title: "What", is: "name", text: (change) => change.text },
      { title: "Token", is: "number", text: (change) => change.token ?? "–" },
    ],
  });
  const value = h("section", { hidden: true }, h("h2", {}, "Value"), h("pre", { tabindex: "0", "aria-label": "Value" }));
  const slots = h("section", { hidden: true }, h("h2", {}, "Slots"), h("ul", { class: "slots" }), h("p", { class: "hint" }));

  const capacity = h("input", { id: "capacity", type: "number", min: "1", required: true });
  const resizing = h(
    "form", { class: "filters", hidden: true, on: { submit: resize } },
    h("p", {}, h("label", { for: "capacity" }, "Capacity"), capacity), h("p", {}, h("button", {}, "Resize…")),
  );

  let number = 0;
  const heard = (event) => {
    const told = TOLD[event.event];
    if (!told) return;
    number += 1;
    changes.show([{ number, at: performance.now(), text: told(event), token: event.token }, ...changes.data].slice(0, CHANGES));
  };

  async function refresh() {
    const asked = performance.now();
    const answer = await get("/v1/resource", { name }).catch((problem) => {
      if (problem.kind !== "not_found") throw problem;
      return null;
    });
    // An answer that was overtaken by a later one is old.
    if (asked < at) return null;
    view = answer;
    // Counted from when it was asked: a hold ends rather earlier than it is shown.
    at = asked;
    const now = view ?? { kind: "–", capacity: 0, used: 0, holds: [], waiters: [], waiting: 0, last_token: null };
    none.hidden = view !== null;
    put(all.kind, now.kind);
    put(all.used, view ? `${count(now.used)} of ${count(now.capacity)}` : "–");
    put(all.waiting, count(now.waiting));
    put(all.token, now.last_token ?? "–");
    holds.show(now.holds, `${many(now.holds.filter((hold) => !hold.is_resting).length, "hold")}`);
    const seen = new Map();
    const line = now.waiters.slice(0, SHOWN).map((waiter, index) => {
      // Without the verb to operate waiters have no ids: those that look alike are told apart by their order.
      const like = JSON.stringify(waiter.claim ?? waiter.holder);
      const nth = (seen.get(like) ?? 0) + 1;
      seen.set(like, nth);
      return { ...waiter, place: index + 1, key: `${like} ${nth}` };
    });
    const more = now.waiting > line.length ? `; the first ${count(line.length)} of ${count(now.waiting)}` : "";
    waiters.show(line, `Waiters, in the order in which they will be granted it${more}`);
    showValue(now);
    showSlots(now);
    resizing.hidden = !(isOperator && (now.kind === "semaphore" || now.kind === "slot pool"));
    if (document.activeElement !== capacity && view) mark(capacity, "placeholder", now.capacity);
    return `${plain(name)}: ${many(now.holds.length, "hold")}, ${count(now.waiting)} waiting`;
  }

  function showValue(now) {
    const text = now.value ?? (now.value_base64 ? `(no text; in base64) ${now.value_base64}` : null);
    value.hidden = text === null;
    if (text !== null) put(value.lastChild, text);
  }

  function showSlots(now) {
    const isPool = now.kind === "slot pool";
    slots.hidden = !isPool;
    if (!isPool) return;
    const [, list, rest] = slots.childNodes;
    const total = Math.min(now.capacity, SLOTS);
    const taken = new Map(now.holds.map((hold) => [hold.slot, hold]));
    while (list.childElementCount > total) list.lastChild.remove();
    while (list.childElementCount < total) list.append(h("li", {}));
    for (let slot = 0; slot < total; slot += 1) {
      const hold = taken.get(slot);
      const is = hold ? (hold.is_resting ? "resting" : "held") : "free";
      const cell = list.childNodes[slot];
      mark(cell, "data-is", is);
      mark(cell, "title", hold ? `${slot}: ${is}, ${holder(hold.holder)}` : `${slot}: free`);
      // Without colours and for who hears it: a sign, and a word.
      if (cell.dataset.shown !== is) {
        cell.dataset.shown = is;
        cell.replaceChildren(h("span", {}, String(slot)), h("span", { class: "unseen" }, ` ${is}`));
      }
    }
    const free_ = now.capacity - taken.size;
    put(rest, `${count(taken.size)} taken, ${count(free_)} free${now.capacity > total ? `; the first ${count(total)} are shown` : ""}.`);
  }

  async function doing(act, done) {
    trouble_.replaceChildren();
    try {
      const answer = await act();
      // First what is so now: whoever reads that it is done can go on.
      await refresh().catch(() => {});
      told(trouble_, done(answer));
    } catch (problem) {
      trouble_.replaceChildren(trouble(problem));
    }
  }

  /** Frees a hold, after the question that `tenure release` asks. */
  async function end(hold) {
    const left = period(Math.max(0, hold.ends_in_ms - since(at)));
    const digits = String(hold.token).slice(-4);
    const warning = "The lock is free at once, and two may work at the same time until the holder notices. Only what checks tokens is safe.";
    const label = "Free it at once, and do not wait for its work to end";
    const shown = plain(name);
    const answer = await ask(
      hold.is_resting
        ? {
            title: `Free ${shown} now?`,
            lines: [`Nobody holds it; it rests for ${left} more.`, "Work that has lost it may not have ended."],
            act: "Free it",
            now: { must: true, label, warning, digits },
          }
        : {
            title: `Break the hold of ${shown}?`,
            lines: [
              `It is held by ${holder(hold.holder)} for ${period(hold.held_ms + since(at))}.`,
              `Its work will be ended, and the lock is free in ${left} at the latest.`,
            ],
            act: "Break it",
            now: { label, warning, digits },
          },
    );
    if (!answer) return;
    await doing(
      () => post("/v1/resource/break", { name, token: hold.token, now: answer.now }),
      ({ free_in_ms }) => (free_in_ms ? `The hold is broken. The lock is free in ${period(free_in_ms)} at the latest.` : "The lock is free now."),
    );
  }

  async function resize(event) {
    event.preventDefault();
    const to = Number(capacity.value);
    const taken = view?.used ?? 0;
    const lines = [`From ${many(view?.capacity ?? 0, "unit")} to ${count(to)}.`, "Programs that name it with another capacity are refused from then on."];
    if (to < taken) lines.push(`${count(taken)} are taken: the new capacity takes effect as they come free.`);
    if (!(await ask({ title: `Resize ${plain(name)}?`, lines, act: "Resize it" }))) return;
    await doing(() => post("/v1/resource/resize", { name, capacity: to }), () => `It has ${many(to, "unit")} now.`);
    capacity.value = "";
  }

  return {
    title: plain(name),
    elements: [
      h("p", { class: "crumbs" }, h("a", { href: link("locks") }, "Locks")),
      heading(plain(name)),
      trouble_,
      none,
      figures([["Kind", all.kind], ["Taken", all.used], ["Waiting", all.waiting], ["Last token", all.token]]),
      holds.element, slots, resizing, value, waiters.element, changes.element,
    ],
    events: { name },
    rest: 100,
    refresh,
    heard,
    tick: () => [holds, changes].forEach((table) => table.tick()),
  };
}

const dd = () => h("dd", {}, "–");
