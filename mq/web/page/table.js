// A table that is filled anew every now and then, and keeps the focus.

import { h, setText, show } from "./dom.js";
import { number } from "./format.js";

const MOST_ROWS = 200;

/**
 * The table. `columns` are pairs of a title and a function from an item to what its cell shows; a column with a third
 * element, true, has numbers. `keyOf` tells items apart.
 */
export function makeTable(caption, columns, keyOf, empty) {
  const body = h("tbody");
  const nothing = h("p", { class: "nothing" }, empty);
  const rest = h("p", { class: "nothing" });
  const heads = columns.map(([title, , isNumber]) => (
    title ? h("th", { scope: "col", class: isNumber ? "number" : null }, title) : h("td")
  ));
  const scroll = h(
    "div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, heads)), body),
  );

  function fill(items) {
    const focused = document.activeElement?.closest?.("[data-key]")?.dataset.key;
    body.replaceChildren(...items.slice(0, MOST_ROWS).map((item) => h(
      "tr", { "data-key": keyOf(item) },
      columns.map(([, shown, isNumber], place) => h(
        place ? "td" : "th", { class: isNumber ? "number" : null, scope: place ? null : "row" }, shown(item),
      )),
    )));
    if (focused !== undefined) body.querySelector(`[data-key="${CSS.escape(focused)}"] button`)?.focus();
    show(scroll, items.length > 0);
    show(nothing, items.length === 0);
    const left = items.length - MOST_ROWS;
    setText(rest, left > 0 ? `and ${number(left)} more: filter to find them` : "");
  }

  fill([]);
  return { element: h("div", {}, scroll, rest, nothing), fill };
}
