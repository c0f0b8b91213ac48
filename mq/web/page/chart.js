// Plots, as pictures made of lines.

import { h, svg } from "./dom.js";
import { number, rate } from "./format.js";

const WIDTH = 600, HEIGHT = 140;

/** A line without axes, for a row of a table. */
export function sparkline(values, label) {
  if (!values?.length) return null;
  const most = Math.max(...values, 1);
  return svg(
    "svg", { class: "spark", viewBox: "0 0 60 16", preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("polyline", { points: points(values, most, 60, 16, 1) }),
  );
}

/**
 * A plot of the last hour, with a name and a kind of line for each series: `{ name, values }`, the last value now.
 * `isRate` tells messages a second from messages.
 */
export function plot(title, series, { isRate = false } = {}) {
  const written = isRate ? rate : number;
  const most = Math.max(...series.flatMap(({ values }) => values), isRate ? 0.1 : 1);
  const said = series.map(({ name, values }) => (
    `${name}: now ${written(values.at(-1))}, maximum ${written(Math.max(...values))}`
  ));
  return h(
    "figure", { class: "plot" },
    h("figcaption", {}, title),
    svg(
      "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}. ${said.join("; ")}` },
      [0.25, 0.5, 0.75].map((part) => svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * part, y2: HEIGHT * part })),
      series.map(({ values }, place) => (
        svg("polyline", { class: `line line-${place}`, points: points(values, most, WIDTH, HEIGHT, 3) })
      )),
    ),
    h("div", { class: "axis" }, h("span", {}, "1 hour ago"), h("span", {}, `scale: 0 to ${written(most)}${isRate ? " per second" : ""}`), h("span", {}, "now")),
    h("ul", { class: "legend" }, said.map((text, place) => h("li", { class: `line-${place}` }, text))),
  );
}

function points(values, most, width, height, margin) {
  const step = values.length > 1 ? width / (values.length - 1) : width;
  return values
    .map((value, place) => `${(place * step).toFixed(1)},${(height - margin - (value / most) * (height - 2 * margin)).toFixed(1)}`)
    .join(" ");
}
