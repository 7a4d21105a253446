// What there is, and what is unusual of it.

import { get, isOperator, look, session } from "./api.js";
import { figures, h, heading, mark, put } from "./dom.js";
import { count, holder, link, many, period, plain } from "./format.js";
import { Table } from "./table.js";

/** Whoever holds a lock for longer may have forgotten it. Numbers of workers are held for as long as a program runs. */
const LONG = 15 * 60_000;
const CROWD = 10;
const POOL = "slot pool";
/** How many rows each of the lists has here at most. */
const ROWS = 10;

const element = () => h("dd", {}, "–");

export function overview() {
  const all = { held: element(), waiting: element(), resting: element(), lost: element(), oldest: element(), items: element(), dead: element() };
  const store = h("p", { class: "store" });
  const unusual = new Table({
    caption: "What is unusual",
    key: (row) => `${row.what} ${row.name}`,
    empty: `Nothing: no lock is held for over ${LONG / 60_000} minutes, at most ${CROWD} wait for one, and there are no dead letters and no findings.`,
    columns: [
      { title: "What", is: "what", text: (row) => row.what, note: (row) => row.sort },
      { title: "Name", is: "name", text: (row) => plain(row.name), link: (row) => row.link },
      { title: "Details", text: (row) => row.details() },
    ],
  });
  const longest = new Table({
    caption: "Held for the longest time",
    key: (row) => row.resource,
    empty: "Nobody holds a lock.",
    columns: [
      { title: "Name", is: "name", text: (row) => plain(row.resource), link: (row) => link("lock", { name: row.resource }) },
      { title: "Holder", text: (row) => holder(row.holds[0]?.holder) },
      { title: "Held", is: "number", text: (row) => period(heldFor(row)) },
    ],
  });
  const crowds = new Table({
    caption: "Most waiters",
    key: (row) => row.resource,
    empty: "Nobody waits.",
    columns: [
      { title: "Name", is: "name", text: (row) => plain(row.resource), link: (row) => link("lock", { name: row.resource }) },
      { title: "Kind", text: (row) => row.kind },
      { title: "Waiting", is: "number", text: (row) => count(row.waiting) },
    ],
  });
  const tables = [unusual, longest, crowds];
  let oldest = null;
  const tick = () => {
    tables.forEach((table) => table.tick());
    put(all.oldest, oldest ? period(heldFor(oldest)) : "–");
  };

  async function refresh() {
    const [held, waiting, lines, ready, doctor, server] = await Promise.all([
      get("/v1/resources", { sort: "held", brief: true, limit: 50 }),
      get("/v1/resources", { sort: "waiting", brief: true, limit: 50 }),
      get("/v1/queues"),
      look("/readyz"),
      // Without the verb nothing is asked: the rest of the page is the same.
      isOperator() ? get("/v1/doctor") : { findings: [] },
      isOperator() ? get("/v1/server") : {},
    ]);
    stamp(held);
    const isHeld = (row) => row.holds[0] && !row.holds[0].is_resting;
    oldest = held.resources.filter((row) => isHeld(row) && row.kind !== POOL)[0];
    const items = lines.queues.reduce((sum, one) => sum + (one.waiting ?? 0) + (one.in_flight ?? 0), 0);
    const dead = lines.queues.reduce((sum, one) => sum + (one.dead ?? 0), 0);
    put(all.held, count(held.held));
    put(all.waiting, count(held.waiting));
    put(all.resting, count(held.resting));
    put(all.lost, count(server.lost));
    mark(all.lost, "data-note", server.lost > 0 ? "bad" : null);
    put(all.items, count(items));
    put(all.dead, count(dead));
    const names = `${many(held.count, "lock")}${held.is_whole ? "" : " of more, which are too many to look at"}`;
    put(store, `${session.engine} is ${ready.state ?? "not ready"}${ready.why ? `: ${ready.why.join(", ")}` : ""}. ${names}, ${many(lines.queues.length, "queue")}.`);
    unusual.show([...findings(doctor), ...holds(held), ...waiters(waiting), ...letters(lines), ...unreadable(held)]);
    longest.show(held.resources.filter(isHeld).slice(0, ROWS));
    crowds.show(waiting.resources.filter((row) => row.waiting > 0).slice(0, ROWS));
    tick();
    return `${count(held.held)} held, ${count(held.waiting)} waiting, ${many(unusual.data.length, "unusual thing")}`;
  }

  const totals = figures([
    ["Held", all.held], ["Waiting", all.waiting], ["Resting", all.resting],
    ["Lost here", all.lost], ["Oldest hold", all.oldest], ["Queued items", all.items], ["Dead letters", all.dead],
  ]);
  return {
    title: "Overview",
    elements: [heading("Overview"), store, totals, unusual.element, h("div", { class: "pair" }, longest.element, crowds.element)],
    events: { prefix: "" },
    rest: 1000,
    refresh,
    tick,
  };
}

/** Notes when an answer was true, so that periods can go on without another. */
export function stamp(answer) {
  const at = performance.now() - (answer.age_ms ?? 0);
  answer.resources.forEach((row) => (row.at = at));
}

export const since = (at) => performance.now() - at;
export const heldFor = (row) => (row.holds[0] ? row.holds[0].held_ms + since(row.at) : null);

const SEVERE = { bad: "bad", warning: "warn", warn: "warn" };

const findings = ({ findings }) =>
  findings
    .filter(({ severity }) => severity in SEVERE)
    .map((one) => ({ what: "Finding", sort: SEVERE[one.severity], name: one.what, link: "#/health", details: () => plain(one.found) }));

const holds = ({ resources }) =>
  resources
    .filter((row) => row.kind !== POOL && row.holds[0] && !row.holds[0].is_resting && row.holds[0].held_ms > LONG)
    .map((row) => ({
      what: "Held for long", sort: "warn", name: row.resource, link: link("lock", { name: row.resource }),
      details: () => `by ${holder(row.holds[0].holder)}, for ${period(heldFor(row))}`,
    }));

const waiters = ({ resources }) =>
  resources
    .filter((row) => row.waiting > CROWD)
    .map((row) => ({
      what: "Crowded", sort: "warn", name: row.resource, link: link("lock", { name: row.resource }),
      details: () => `${count(row.waiting)} wait`,
    }));

const letters = ({ queues }) =>
  queues
    .filter((one) => one.dead > 0)
    .map((one) => ({
      what: "Dead letters", sort: "bad", name: one.queue, link: link("queue", { name: one.queue, which: "dead" }),
      details: () => `${count(one.dead)}, the oldest was pushed ${period(one.oldest_dead_ms)} ago`,
    }));

const unreadable = ({ unreadable }) =>
  unreadable.map((name) => ({
    what: "Unreadable", sort: "bad", name, link: link("lock", { name }), details: () => "another program may use the name",
  }));
