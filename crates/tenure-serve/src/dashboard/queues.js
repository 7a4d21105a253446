// All queues.

import { get } from "./api.js";
import { h, heading } from "./dom.js";
import { count, link, period, plain } from "./format.js";
import { since } from "./overview.js";
import { Table } from "./table.js";

/** Over how long a rate is taken: long enough to be read, short enough to be of now. */
const RATE_OF = 60_000;

/** How fast what is in a queue grows, by what was seen of it on this page. The store counts no pushes. */
export class Growth {
  constructor() {
    this.seen = new Map();
  }

  note(name, items) {
    const now = performance.now();
    const all = (this.seen.get(name) ?? []).filter(({ at }) => now - at < RATE_OF);
    this.seen.set(name, [...all, { at: now, items }]);
  }

  of(name) {
    const all = this.seen.get(name) ?? [];
    if (all.length < 2) return "–";
    const [first, last] = [all[0], all[all.length - 1]];
    const perMinute = ((last.items - first.items) * 60_000) / (last.at - first.at);
    const rounded = Math.abs(perMinute) < 10 ? Math.round(perMinute * 10) / 10 : Math.round(perMinute);
    return rounded === 0 ? "steady" : `${rounded > 0 ? "+" : "−"}${count(Math.abs(rounded))} a minute`;
  }
}

export function queues() {
  const growth = new Growth();
  let at = 0;
  const older = (ms) => (ms === null || ms === undefined ? "–" : period(ms + since(at)));
  const table = new Table({
    caption: "Queues",
    key: (row) => row.queue,
    empty: "No queue has anything in it.",
    columns: [
      { title: "Name", is: "name", text: (row) => plain(row.queue), link: (row) => link("queue", { name: row.queue }) },
      { title: "Waiting", is: "number", text: (row) => (row.problem ? "unreadable" : count(row.waiting)) },
      { title: "In flight", is: "number", text: (row) => count(row.in_flight) },
      { title: "Dead", is: "number", text: (row) => count(row.dead), note: (row) => (row.dead > 0 ? "bad" : null) },
      { title: "Oldest waiting", is: "number", text: (row) => older(row.oldest_waiting_ms) },
      { title: "Change", is: "number", text: (row) => growth.of(row.queue) },
    ],
  });
  async function refresh() {
    const answer = await get("/v1/queues");
    at = performance.now() - answer.age_ms;
    for (const row of answer.queues) growth.note(row.queue, (row.waiting ?? 0) + (row.in_flight ?? 0));
    table.show(answer.queues, `Queues: ${count(answer.queues.length)}${answer.is_whole ? "" : ", and more that were not looked at"}`);
    return `${count(answer.queues.length)} queues`;
  }
  return {
    title: "Queues",
    elements: [heading("Queues"), table.element, h("p", { class: "hint" }, "The change is what has come less what has gone within the last minute, while this page was open.")],
    events: { prefix: "" },
    rest: 500,
    refresh,
    tick: () => table.tick(),
  };
}
