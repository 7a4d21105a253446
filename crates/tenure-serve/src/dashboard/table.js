// Tables whose rows are known by a key, and stay where they are while somebody uses them.

import { h, isSelected, mark, put } from "./dom.js";

/**
 * Makes a table of `{caption, columns, key, empty}`. A column is `{title, sort, is: "number"|"name", text(row), link(row), note(row),
 * make(current), show(element, row)}`: `text` alone is a cell of text, with `link` an address as well; `make` makes a cell's element once,
 * for a row that `current()` tells, and `show` brings it up to date.
 */
export class Table {
  constructor({ caption, columns, key, empty, sorted }) {
    Object.assign(this, { columns, key, rows: new Map(), data: [], emptyText: empty, sorted });
    this.caption = h("caption", {}, caption);
    this.heads = columns.map((column) => this.head(column));
    this.body = h("tbody", { role: "rowgroup" });
    // Roles are said, since narrow windows show rows as blocks, and some readers take a block for no row.
    this.table = h(
      "table",
      { role: "table" },
      this.caption,
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, this.heads)),
      this.body,
    );
    // A table without rows is no table for who hears it.
    this.name = h("strong", {}, caption);
    this.none = h("p", { class: "none", hidden: true }, this.name, empty);
    this.element = h("div", { class: "table" }, this.table, this.none);
  }

  head(column) {
    const class_ = column.is ?? null;
    if (!column.sort) return h("th", { scope: "col", role: "columnheader", class: class_ }, column.title || h("span", { class: "unseen" }, "Acts"));
    return h("th", { scope: "col", role: "columnheader", class: class_ }, h("a", { href: "#/", "data-sort": column.sort }, column.title));
  }

  /** Says by what it is sorted, and where the heads lead. */
  sort(by, address) {
    this.columns.forEach((column, at) => {
      if (!column.sort) return;
      const is = column.sort === by;
      mark(this.heads[at], "aria-sort", is ? (by === "held" || by === "waiting" ? "descending" : "ascending") : null);
      mark(this.heads[at].firstChild, "href", address(column.sort));
    });
  }

  /** Shows other data. A row with the focus keeps its place on the page, and while a text is selected nothing changes. */
  show(data, caption) {
    if (isSelected(this.body)) return;
    this.data = data;
    if (caption) put(this.caption, caption);
    const wanted = new Map(data.map((row) => [this.key(row), row]));
    const kept = [...this.rows.values()].find((row) => row.element.contains(document.activeElement));
    for (const [key, row] of this.rows) {
      if (wanted.has(key)) continue;
      if (row === kept) {
        // Somebody is in it: it goes when they do.
        row.element.classList.add("gone");
        row.element.addEventListener("focusout", () => !this.isWanted(key) && this.drop(key), { once: true });
      } else {
        this.drop(key);
      }
    }
    let isBefore = kept !== undefined && wanted.has(kept.key);
    let last = null;
    for (const [key, given] of wanted) {
      const row = this.rows.get(key) ?? this.add(key);
      row.given = given;
      row.element.classList.remove("gone");
      if (row === kept) {
        // All others move round it: what is moved loses the focus.
        while (row.element.previousSibling !== last) row.element.previousSibling.remove();
        isBefore = false;
      } else {
        const next = last ? last.nextSibling : this.body.firstChild;
        if (next !== row.element) this.body.insertBefore(row.element, isBefore && next === null ? kept.element : next);
      }
      last = row.element;
    }
    this.wanted = wanted;
    this.tick();
    this.none.hidden = this.rows.size > 0;
    this.table.hidden = this.rows.size === 0;
    put(this.name, this.caption.textContent);
  }

  isWanted(key) {
    return this.wanted.has(key);
  }

  drop(key) {
    this.rows.get(key)?.element.remove();
    this.rows.delete(key);
  }

  add(key) {
    const row = { key, given: null };
    row.cells = this.columns.map((column) => {
      if (column.make) return column.make(() => row.given);
      return column.link ? h("a", { href: "#/" }) : null;
    });
    row.places = this.columns.map((column, at) =>
      h(column.is?.startsWith("name") ? "th" : "td", {
        class: column.is ?? null,
        role: column.is?.startsWith("name") ? "rowheader" : "cell",
        scope: column.is?.startsWith("name") ? "row" : null,
        "data-title": column.title,
      }, row.cells[at]),
    );
    row.element = h("tr", { role: "row" }, row.places);
    this.rows.set(key, row);
    return row;
  }

  /** Brings all texts up to date: periods grow without news. */
  tick() {
    for (const row of this.rows.values()) {
      if (!row.given) continue;
      this.columns.forEach((column, at) => {
        const [cell, place] = [row.cells[at], row.places[at]];
        if (column.text) put(cell ?? place, column.text(row.given));
        if (column.link) mark(cell, "href", column.link(row.given));
        if (column.show) column.show(cell, row.given);
        if (column.note) mark(place, "data-note", column.note(row.given));
      });
    }
  }
}
