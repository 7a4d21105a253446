// One queue: what is in it, and what an operator may do about it.

import { get, may, post } from "./api.js";
import { ask } from "./ask.js";
import { figures, h, heading, mark, put, told, trouble } from "./dom.js";
import { bytes, count, holder, link, many, period, plain } from "./format.js";
import { since } from "./overview.js";
import { Growth } from "./queues.js";
import { Table } from "./table.js";

/** Items come from the store with their payloads: a page of them is small. */
const ROWS = 50;

const STATES = {
  waiting: (item) => (item.ready_in_ms > 0 ? `ready in ${period(item.ready_in_ms)}` : "waits"),
  behind: () => "waits behind its group",
  in_flight: (item) => `with ${holder(item.holder)}`,
  dead: (item) => `dead for ${period(item.dead_ms)}`,
};

export function queue({ name = "", which = "live" }) {
  const isDead = which === "dead";
  const [isOperator, seesPayloads] = [may("operate", name), may("payload", name)];
  let [at, stats, after] = [0, { waiting: 0, in_flight: 0, dead: 0 }, null];
  const dd = () => h("dd", {}, "–");
  const all = { waiting: dd(), flying: dd(), dead: dd(), oldest: dd(), change: dd() };
  const growth = new Growth();
  const done = h("div", {});

  const acts = (current) =>
    h(
      "div", { class: "acts" },
      isDead && h("button", { type: "button", on: { click: () => replay(current()) } }, "Replay…"),
      h("button", { type: "button", class: "danger", on: { click: () => purge(current()) } }, "Purge…"),
    );
  const payload = (current) => {
    const text = h("pre", { hidden: true, tabindex: "0" });
    const button = h("button", { type: "button", class: "quiet", "aria-expanded": "false", on: { click: open } }, "Show");
    async function open() {
      if (!text.hidden) {
        text.hidden = true;
      } else {
        const { item } = current();
        const { items } = await get("/v1/queue/items", { queue: name, which, after: item - 1, limit: 1 }).catch(() => ({ items: [] }));
        const found = items.find((one) => one.item === item);
        put(text, found ? (found.payload ?? `(no text; in base64) ${found.payload_base64}`) : "It is no longer there.");
        mark(text, "aria-label", `Payload of item ${item}`);
        text.hidden = false;
      }
      mark(button, "aria-expanded", !text.hidden);
      put(button, text.hidden ? "Show" : "Hide");
    }
    return h("div", {}, h("span", { class: "size" }), " ", button, text);
  };
  const showPayload = (cell, item) => {
    put(cell.firstChild, bytes(item.bytes));
    mark(cell.childNodes[2], "aria-label", `${cell.childNodes[2].textContent} the payload of item ${item.item}`);
  };
  const table = new Table({
    caption: isDead ? "Dead letters" : "Items",
    key: (item) => item.item,
    empty: isDead ? "There are no dead letters." : "Nothing is in line.",
    columns: [
      { title: "Item", is: "name id", text: (item) => item.item },
      { title: "Group", text: (item) => (item.group === null ? "–" : plain(item.group)) },
      { title: "State", text: (item) => STATES[item.state]?.(item) ?? item.state },
      ...(isDead ? [{ title: "Reason", text: (item) => plain(item.reason) || "–" }] : []),
      { title: "Attempts", is: "number", text: (item) => count(item.attempts) },
      { title: "Age", is: "number", text: (item) => period(item.age_ms + since(at)) },
      seesPayloads ? { title: "Payload", make: payload, show: showPayload } : { title: "Size", is: "number", text: (item) => bytes(item.bytes) },
      ...(isOperator ? [{ title: "", is: "acts", make: acts, show: nameActs }] : []),
    ],
  });
  function nameActs(cell, item) {
    for (const button of cell.children) mark(button, "aria-label", `${button.textContent.replace("…", "")} item ${item.item}`);
  }

  const total = () => (isDead ? stats.dead : stats.waiting);
  const what = (number) => (isDead ? many(number, "dead letter") : many(number, "item that waits", "items that wait"));
  const replayAll = isDead && h("button", { type: "button", on: { click: () => replay(null) } }, "Replay all…");
  const purgeAll = h("button", { type: "button", class: "danger", on: { click: () => purge(null) } }, "Purge all…");
  const forAll = h("p", { class: "acts" }, replayAll, purgeAll);
  forAll.hidden = !isOperator;
  const tab = (to, text) => h("a", { href: link("queue", { name, which: to === "live" ? "" : to }), "aria-current": to === which ? "true" : null }, text);
  const on = h("button", { type: "button", hidden: true, on: { click: () => { after = table.data.at(-1)?.item ?? null; refresh(); } } }, "Further items");
  const back = h("button", { type: "button", hidden: true, on: { click: () => { after = null; refresh(); } } }, "To the beginning");

  async function refresh() {
    const asked = performance.now();
    const [lines, { items }] = await Promise.all([
      get("/v1/queues", { prefix: name, limit: 1 }),
      get("/v1/queue/items", { queue: name, which, after, limit: ROWS, payloads: false }),
    ]);
    // An answer that was overtaken by a later one is old.
    if (asked < at) return null;
    const line = lines.queues.find((one) => one.queue === name);
    stats = line ?? { waiting: 0, in_flight: 0, dead: 0 };
    at = asked;
    growth.note(name, (stats.waiting ?? 0) + (stats.in_flight ?? 0));
    put(all.waiting, count(stats.waiting));
    put(all.flying, count(stats.in_flight));
    put(all.dead, count(stats.dead));
    put(all.oldest, period(stats.oldest_waiting_ms));
    put(all.change, growth.of(name));
    const from = after === null ? "the first" : "the next";
    table.show(items, `${isDead ? "Dead letters" : "Items"}: ${from} ${count(items.length)}`);
    on.hidden = items.length < ROWS;
    back.hidden = after === null;
    for (const button of [replayAll, purgeAll]) if (button) button.disabled = items.length === 0;
    return `${plain(name)}: ${count(stats.waiting)} waiting, ${count(stats.in_flight)} in flight, ${count(stats.dead)} dead`;
  }

  async function act(question, path, body, tell) {
    if (!(await ask(question))) return;
    done.replaceChildren();
    try {
      const { count: number } = await post(path, { queue: name, ...body });
      // First what is so now: whoever reads that it is done can go on.
      await refresh().catch(() => {});
      told(done, tell(number));
    } catch (problem) {
      done.replaceChildren(trouble(problem));
    }
  }

  /** How many there are now, for a question about all of them: counted where all are shown, as the survey may be some seconds old. */
  async function howMany() {
    await refresh().catch(() => {});
    const shown = table.data.filter((item) => isDead || item.state !== "in_flight").length;
    return what(after === null && table.data.length < ROWS ? shown : Math.max(total(), shown));
  }

  async function replay(item) {
    const meant = item ? `dead letter ${item.item}` : `all ${await howMany()}`;
    await act(
      { title: `Replay ${meant}?`, lines: [`Back into line in the queue ${plain(name)}, at the end of its group, under a new number.`], act: "Replay" },
      "/v1/queue/replay", item ? { item: item.item } : { all: true },
      (number) => `${many(number, "dead letter")} went back into line.`,
    );
  }

  async function purge(item) {
    const meant = item ? `${isDead ? "dead letter" : "item"} ${item.item}` : `all ${await howMany()}`;
    await act(
      { title: `Purge ${meant}?`, lines: [`From the queue ${plain(name)}, for good: nobody will work on what is removed.`], act: "Purge" },
      "/v1/queue/purge", item ? { which, item: item.item } : { which, all: true },
      (number) => `${many(number, isDead ? "dead letter" : "item")} removed.`,
    );
  }

  return {
    title: plain(name),
    elements: [
      h("p", { class: "crumbs" }, h("a", { href: link("queues") }, "Queues")),
      heading(plain(name)),
      done,
      figures([["Waiting", all.waiting], ["In flight", all.flying], ["Dead letters", all.dead], ["Oldest waiting", all.oldest], ["Change", all.change]]),
      h("nav", { class: "tabs", "aria-label": "Contents" }, tab("live", "Items"), tab("dead", "Dead letters")),
      forAll, table.element, h("p", { class: "acts" }, back, on),
    ],
    events: { prefix: name },
    rest: 500,
    refresh,
    tick: () => table.tick(),
  };
}
