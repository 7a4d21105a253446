// Asks before something is done that cannot be undone.

import { h } from "./dom.js";

/**
 * Asks `{title, lines, act, now}`, and resolves to null for no, or `{now}` for yes. `now` is `{label, warning, digits, must}`: a way that
 * is dangerous, for which the last digits of a token must be typed: whoever types them has looked at what they do.
 */
export function ask({ title, lines, act, now }) {
  const dialog = document.getElementById("ask");
  const digits = now && h("input", { id: "ask-digits", inputmode: "numeric", autocomplete: "off", maxlength: String(now.digits.length), size: "6" });
  const at = now && !now.must && h("input", { type: "checkbox", id: "ask-now" });
  const yes = h("button", { class: "danger", value: "yes" }, act);
  const isNow = () => Boolean(now && (now.must || at.checked));
  const danger = now && h(
    "div", { class: "now" },
    h("p", { class: "warning" }, now.warning),
    h("p", {}, h("label", { for: "ask-digits" }, `Type the last digits of the token, ${now.digits}: `), digits),
  );
  const turn = () => {
    if (danger) danger.hidden = !isNow();
    yes.disabled = isNow() && digits.value !== now.digits;
  };
  const no = h("button", { value: "no", class: "plain", autofocus: true }, "Cancel");
  const form = h(
    "form", { method: "dialog", on: { input: turn } },
    h("h2", { id: "ask-title" }, title),
    lines.map((line) => h("p", {}, line)),
    at && h("p", {}, at, h("label", { for: "ask-now" }, ` ${now.label}`)),
    danger,
    h("div", { class: "acts" }, no, yes),
  );
  // Enter in a field means the first button: never the one that does it.
  dialog.replaceChildren(form);
  dialog.returnValue = "no";
  turn();
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" ? { now: isNow() } : null), { once: true });
  });
}
