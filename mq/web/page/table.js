// A table that is filled anew every now and then, and keeps its rows, so neither focus nor clicks are lost.

import { arrange, h, setText, show } from "./dom.js";
import { number } from "./format.js";

const MOST_ROWS = 200;

/**
 * The table. `columns` are pairs of a title and a function from an item to what its cell shows; a column with a third
 * element has numbers where that is true, and else times or sizes, which do not wrap. `keyOf` tells items apart.
 */
export function makeTable(caption, columns, keyOf, empty) {
  const body = h("tbody");
  const nothing = h("p", { class: "nothing" }, empty);
  const rest = h("p", { class: "nothing" });
  const heads = columns.map(([title, , kind]) => (
    title ? h("th", { scope: "col", class: classOf(kind) }, title) : h("td")
  ));
  const scroll = h(
    "div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, heads)), body),
  );

  let rows = new Map();

  function fill(items) {
    const before = rows;
    rows = new Map();
    for (const item of items.slice(0, MOST_ROWS)) {
      let key = keyOf(item);
      while (rows.has(key)) key += "+"; // two requests of one connection may wait for one queue
      rows.set(key, kept(before.get(key), cellsOf(item)));
    }
    arrange(body, [...rows.values()]);
    show(scroll, items.length > 0);
    show(nothing, items.length === 0);
    const left = items.length - MOST_ROWS;
    setText(rest, left > 0 ? `${number(left)} more ${left === 1 ? "row is" : "rows are"} not shown. Use the filter to find ${left === 1 ? "it" : "them"}.` : "");
  }

  function cellsOf(item) {
    return columns.map(([, shown, kind], place) => h(
      place ? "td" : "th", { class: classOf(kind), scope: place ? null : "row" }, shown(item),
    ));
  }

  fill([]);
  return { element: h("div", {}, scroll, rest, nothing), fill };
}

function classOf(kind) {
  return kind === true ? "number" : kind ?? null;
}

/** The row with these cells. Those of the row before stay where they say the same: a click on a button is not lost. */
function kept(row, cells) {
  if (!row) return h("tr", {}, cells);
  cells.forEach((cell, place) => {
    if (!row.children[place].isEqualNode(cell)) row.children[place].replaceWith(cell);
  });
  return row;
}
