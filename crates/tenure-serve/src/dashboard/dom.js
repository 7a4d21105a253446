// Makes elements. Data becomes text nodes and attributes alone: a name like `<img onerror=…>` is a text like any other.

/** Makes an element: `h("a", {href: "#/", class: "x", on: {click}}, "text", child)`. What is null or false is left out. */
export function h(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Changes a text only if it is another: what is selected stays so. */
export function put(element, text) {
  const now = String(text);
  if (element.textContent !== now) element.textContent = now;
}

/** Sets an attribute, or removes it. */
export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Whether a text is selected within an element: it must stay as it is. */
export function isSelected(element) {
  const selection = document.getSelection();
  return Boolean(selection && !selection.isCollapsed && selection.rangeCount && selection.getRangeAt(0).intersectsNode(element));
}

// Whoever listens to a page is told what changes, and not more often than this.
const SAY_EVERY = 10_000;
let said = { text: "", at: -SAY_EVERY, timer: 0 };

/** Tells who cannot see it. What has happened by itself waits its turn, and only the latest is told. */
export function say(text, isAnswer = false) {
  clearTimeout(said.timer);
  const tell = () => {
    if (text === said.text) return;
    put(document.getElementById("said"), text);
    said = { text, at: performance.now(), timer: 0 };
  };
  const rest = said.at + SAY_EVERY - performance.now();
  if (isAnswer || rest <= 0) tell();
  else said.timer = setTimeout(tell, rest);
}

/** A line that tells of an error, with what to do about it. */
export function trouble(problem) {
  return h("p", { class: "note bad", role: "alert" }, h("strong", {}, "Not done. "), problem.message, problem.hint ? h("span", { class: "hint" }, problem.hint) : null);
}

/** Tells in a place of the page what was done. The focus goes there: what was acted on may be gone. */
export function told(place, text) {
  const note = h("p", { class: "note good", tabindex: "-1" }, text);
  place.replaceChildren(note);
  note.focus();
  say(text, true);
}

/** A heading of a page, which is given the focus when somebody comes to it. */
export function heading(text, ...more) {
  return h("div", { class: "heading" }, h("h1", { tabindex: "-1" }, text), ...more);
}

/** A list of figures: `figures([["Held", element], …])`. */
export function figures(pairs) {
  return h("dl", { class: "figures" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), value)));
}
