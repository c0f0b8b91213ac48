// Elements, made of text and never of markup: what somebody has published is only ever shown.

const SVG = "http://www.w3.org/2000/svg";

/** An element. Attributes: `on` has listeners by event; true sets one without a value; false and null leave it out. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An element of a picture. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && typeof child !== "boolean"));
  return element;
}

/** A button that does something. */
export function button(text, act, attributes = {}) {
  return h("button", { type: "button", ...attributes, on: { click: act } }, text);
}

let fields = 0;

/** A labelled field of a form, with a hint below it. */
export function field(label, input, hint = null) {
  fields += 1;
  input.id = `field-${fields}`;
  if (hint) input.setAttribute("aria-describedby", `hint-${fields}`);
  if (hint && input.hasAttribute("pattern")) input.title = hint; // the browser shows it where the pattern does not fit
  return h(
    "div", { class: "field" },
    h("label", { for: input.id }, label), input, hint && h("small", { id: `hint-${fields}` }, hint),
  );
}

/** A number, or text for the daemon to read, such as "10m" or "64KiB". */
export function amount(text) {
  return /^[0-9]+(\.[0-9]+)?$/.test(text) ? Number(text) : text;
}

/** Sets the text of an element, if it is another one: what has not changed keeps its selection. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Shows or hides. */
export function show(element, isShown) {
  element.hidden = !isShown;
}

/** Puts children into this order, and moves only those that stand elsewhere, so that the focus stays where it is. */
export function arrange(parent, children) {
  const focused = document.activeElement;
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  children.forEach((child, place) => {
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
  });
  if (focused !== document.activeElement && focused?.isConnected) focused.focus();
}

/** Says something, also to those who hear the page. */
export function say(text, isBad = false) {
  const said = document.getElementById("said");
  said.className = isBad ? "bad" : "good";
  said.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { said.textContent = ""; said.className = ""; }, isBad ? 12000 : 5000);
}
