// All locks: searched, filtered and sorted by the server, a page at a time.

import { get } from "./api.js";
import { h, heading, mark, put } from "./dom.js";
import { count, holder, KINDS, link, period, plain, SORTS } from "./format.js";
import { heldFor, since, stamp } from "./overview.js";
import { Table } from "./table.js";

const ROWS = 100;
/** How long after the last key the list is asked for. */
const TYPED = 250;

const endsIn = (row) => (row.holds[0] ? Math.max(0, row.holds[0].ends_in_ms - since(row.at)) : null);

function whoHolds(row) {
  const [first] = row.holds;
  if (!first) return "–";
  const more = row.hold_count > 1 ? ` and ${count(row.hold_count - 1)} more` : "";
  return `${first.is_resting ? `rests after ${holder(first.holder)}` : holder(first.holder)}${more}`;
}

/** Names that we may not read are no names that we find. */
function nothing(problem) {
  if (problem.kind !== "forbidden") throw problem;
  return { resources: [], count: 0, held: 0, waiting: 0, is_whole: true };
}

export function locks(given) {
  let query = {};
  const table = new Table({
    caption: "Locks",
    key: (row) => row.resource,
    empty: "There is no such lock: nobody holds one, or waits for one, that fits.",
    columns: [
      { title: "Name", is: "name", sort: "name", text: (row) => plain(row.resource), link: (row) => link("lock", { name: row.resource }) },
      { title: "Kind", text: (row) => (row.capacity > 1 ? `${row.kind}, ${count(row.used)} of ${count(row.capacity)}` : row.kind) },
      { title: "Holder", text: whoHolds },
      { title: "Held", is: "number", sort: "held", text: (row) => period(heldFor(row)) },
      { title: "Ends in", is: "number", sort: "ends", text: (row) => period(endsIn(row)) },
      { title: "Waiting", is: "number", sort: "waiting", text: (row) => count(row.waiting) },
    ],
  });
  const field = (id, label, input) => h("p", {}, h("label", { for: id }, label), input);
  const prefix = h("input", { id: "prefix", type: "search", placeholder: "billing/", autocomplete: "off", spellcheck: "false" });
  const who = h("input", { id: "holder", type: "search", placeholder: "program, host or text", autocomplete: "off", spellcheck: "false" });
  const kind = h("select", { id: "kind" }, h("option", { value: "" }, "all"), Object.entries(KINDS).map(([value, text]) => h("option", { value }, text)));
  const back = h("a", { class: "button", rel: "prev" }, "Previous");
  const on = h("a", { class: "button", rel: "next" }, "Next");
  const where = h("span", {});
  let timer = 0;
  const filter = () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      // The list is changed by what is typed, and the way back leads to where somebody came from.
      history.replaceState(null, "", link("locks", { ...query, prefix: prefix.value, holder: who.value, kind: kind.value, page: "" }));
      dispatchEvent(new HashChangeEvent("hashchange"));
    }, TYPED);
  };
  const form = h(
    "form", { class: "filters", role: "search", "aria-label": "Locks", on: { input: filter, submit: (event) => event.preventDefault() } },
    field("prefix", "Name begins with", prefix), field("kind", "Kind", kind), field("holder", "Holder has", who),
  );

  function turn(next) {
    query = next;
    const [first, second, third] = [query.prefix ?? "", query.holder ?? "", query.kind ?? ""];
    if (prefix.value !== first) prefix.value = first;
    if (who.value !== second) who.value = second;
    if (kind.value !== third) kind.value = third;
    page.events = { prefix: first };
    return true;
  }

  async function refresh() {
    const number = Math.max(1, Number.parseInt(query.page, 10) || 1);
    const sort = query.sort in SORTS ? query.sort : "name";
    const offset = (number - 1) * ROWS;
    const asked = query;
    const { prefix: begins, kind: is, holder: has } = query;
    const answer = await get("/v1/resources", { prefix: begins, kind: is, holder: has, sort, offset, limit: ROWS, brief: true }).catch(nothing);
    if (asked !== query) return null;
    stamp(answer);
    const all = answer.count;
    const [first, last] = [all ? offset + 1 : 0, Math.min(offset + ROWS, all)];
    const rest = answer.is_whole ? "" : ", and more that were not looked at";
    table.sort(sort, (by) => link("locks", { ...query, sort: by, page: "" }));
    table.show(answer.resources, `Locks ${count(first)} to ${count(last)} of ${count(all)} by ${SORTS[sort].toLowerCase()}${rest}`);
    put(where, `Page ${count(number)} of ${count(Math.max(1, Math.ceil(all / ROWS)))}`);
    const lead = (element, to, is) => mark(element, "href", is ? link("locks", { ...query, page: to }) : null);
    lead(back, number - 1, number > 1);
    lead(on, number + 1, last < all);
    return `${count(all)} locks, ${count(answer.held)} held, ${count(answer.waiting)} waiting`;
  }

  const page = {
    title: "Locks",
    elements: [heading("Locks"), form, table.element, h("nav", { class: "pages", "aria-label": "Pages of the list" }, back, where, on)],
    rest: 500,
    refresh,
    tick: () => table.tick(),
    turn,
  };
  turn(given);
  return page;
}
