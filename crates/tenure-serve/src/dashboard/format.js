// How figures and names are shown.

const COUNT = new Intl.NumberFormat("en");

export const count = (number) => (number === null || number === undefined ? "–" : COUNT.format(number));

/** `1 item`, `2 items`. */
export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

/** A period: its two largest units, so that a column of them is read at a glance. */
export function period(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 0) return "0 s";
  const seconds = Math.floor(ms / 1000);
  if (ms < 10_000) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  if (seconds < 60) return `${seconds} s`;
  const [minutes, hours, days] = [Math.floor(seconds / 60), Math.floor(seconds / 3600), Math.floor(seconds / 86_400)];
  if (minutes < 60) return `${minutes} m ${seconds % 60} s`;
  if (hours < 24) return `${hours} h ${minutes % 60} m`;
  return `${days} d ${hours % 24} h`;
}

/** A share of a whole: one that is small is not nothing. */
export const percent = (share) => (share > 0 && share < 0.001 ? "< 0.1 %" : `${(share * 100).toFixed(1)} %`);

export function bytes(number) {
  if (number < 1024) return `${number} B`;
  return number < 1024 * 1024 ? `${(number / 1024).toFixed(1)} KiB` : `${(number / 1024 / 1024).toFixed(1)} MiB`;
}

/** Shows the control characters of a text, and those that turn its direction: what is in a store is not trusted. */
export function plain(text) {
  return String(text ?? "").replace(
    /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (character) => `\\u{${character.codePointAt(0).toString(16)}}`,
  );
}

// The program of labels that the command makes: their text names the work.
const COMMAND = "tenure";

/** A holder for people: `backup.sh on web-3`. */
export function holder(label) {
  if (!label) return "–";
  const { program, host, text } = label;
  const work = program === COMMAND && text ? text : [program, text].filter(Boolean).join(", ");
  return plain(host ? `${work} on ${host}` : work) || "–";
}

export const SORTS = { name: "Name", held: "Held", ends: "Ends in", waiting: "Waiting" };
export const KINDS = { mutex: "mutex", rw_lock: "read-write lock", semaphore: "semaphore", slot_pool: "slot pool" };

/** An address within this page. */
export function link(page, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const text = new URLSearchParams(given).toString();
  return `#/${page}${text ? `?${text}` : ""}`;
}
