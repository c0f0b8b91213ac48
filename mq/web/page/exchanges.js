// Exchanges and bindings as a picture: from left to right the ways that messages take, and dashed those of dead letters.

import { askJson } from "./api.js";
import { field, h, setText, show, svg } from "./dom.js";
import { many, number } from "./format.js";
import { layoutOf } from "./graph.js";
import { poll } from "./live.js";
import { makeTable } from "./table.js";

const EVERY_MS = 5000;
const MOST_DRAWN = 60;
const MOST_BETWEEN = 4; // lines from one node to another
const NODE_FONT = "13px", KEY_FONT = "12px"; // as page.css has them
const LONGEST_KEY = 170; // pixels

/** The view. */
export function exchangesView({ onState }) {
  const summary = h("p", { class: "summary" }, "Loading…");
  const filter = h("input", { type: "search", placeholder: "Filter by exchange, queue or routing key", on: { input: draw } });
  const picture = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Binding diagram" });
  const note = h("p", { class: "nothing" });
  const table = makeTable("Bindings", [
    ["Binding source", (way) => way.from.label],
    ["Binding destination", (way) => (way.to.isQueue ? h("a", { href: `#/queue/${encodeURIComponent(way.to.name)}` }, way.to.label) : way.to.label)],
    ["Binding type", (way) => (way.isDead ? "dead-lettering" : way.to.isQueue ? "exchange to queue" : "exchange to exchange")],
    ["Routing key", (way) => way.key],
  ], (way) => `${way.from.id} ${way.to.id} ${way.key} ${way.isDead}`, "No bindings.");
  let told = null, drawn = "";

  function tell(answer) {
    told = answer;
    draw();
  }

  function draw() {
    if (!told) return;
    const { nodes, ways } = graphOf(told, filter.value.trim().toLowerCase());
    const written = JSON.stringify([[...nodes.keys()], ways.map(({ from, to, key, isDead }) => [from.id, to.id, key, isDead])]);
    if (written === drawn) return;
    drawn = written;
    setText(summary, `${many(told.total.exchanges, "exchange")}, ${many(told.total.bindings, "binding")}, ${many(told.total.dead_letters, "queue")} with a dead-letter exchange`);
    const isMuch = nodes.size > MOST_DRAWN;
    setText(note, isMuch ? `There are too many exchanges and queues (${nodes.size}) for a diagram. Use the filter to show fewer.` : "");
    show(picture, nodes.size > 0 && !isMuch);
    picture.replaceChildren(...(isMuch || !nodes.size ? [] : [pictureOf(nodes, ways)]));
    table.fill(ways);
  }

  const end = poll(() => askJson("GET", "-/exchanges"), tell, onState, EVERY_MS);
  const element = h(
    "section", {}, h("h1", {}, "Exchanges"), summary, h("div", { class: "bar" }, field("Filter", filter)),
    note, picture, h("h2", {}, "Bindings"), table.element,
  );
  return { element, end };
}

/** What is drawn: nodes by id, and ways between them; only what has something to do with `wanted`. */
function graphOf(told, wanted) {
  const nodes = new Map();
  const kinds = new Map(told.exchanges.map((each) => [idOf(each.vhost, each.name), each.kind]));
  const exchange = (vhost, name) => {
    const id = idOf(vhost, name), place = vhost === "/" ? "" : `${vhost} `;
    return { id, name, isQueue: false, label: `${place}${name || "default exchange"}`, kind: kinds.get(id) ?? "" };
  };
  const queue = (name) => ({ id: `queue ${name}`, name, isQueue: true, label: name, kind: "queue" });
  const ways = [
    ...told.bindings.map((each) => ({
      from: exchange(each.vhost, each.exchange),
      to: each.to_queue === null ? exchange(each.vhost, each.to_exchange) : queue(each.to_queue),
      key: each.routing_key,
      isDead: false,
    })),
    ...told.dead_letters.flatMap((each) => [
      { from: queue(each.queue), to: exchange(each.vhost, each.exchange), key: each.routing_key ?? "", isDead: true },
      ...(each.exchange ? [] : each.targets.map((name) => (
        { from: exchange(each.vhost, ""), to: queue(name), key: each.routing_key ?? "", isDead: true }
      ))),
    ]),
  ].filter(({ from, to, key }) => [from.label, to.label, key].some((text) => text.toLowerCase().includes(wanted)));
  for (const { from, to } of ways) {
    nodes.set(from.id, from);
    nodes.set(to.id, to);
  }
  for (const each of told.exchanges) {
    const alone = exchange(each.vhost, each.name);
    if (alone.label.toLowerCase().includes(wanted)) nodes.set(alone.id, nodes.get(alone.id) ?? alone);
  }
  return { nodes, ways };
}

function idOf(vhost, name) {
  return `exchange ${vhost}\n${name}`;
}

function pictureOf(nodes, ways) {
  const drawn = together(ways);
  const lines = drawn.map(({ from, to, key }) => ({ from: from.id, to: to.id, label: cut(key, KEY_FONT, LONGEST_KEY) }));
  const layout = layoutOf([...nodes.keys()], lines, (label) => widthOf(label, KEY_FONT));
  const { width, height } = layout;
  const label = `Messages are routed ${ways.filter((way) => !way.isDead).map(({ from, to }) => `from ${from.label} to ${to.label}`).join("; ")}`;
  return svg(
    "svg", { class: "bindings", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    drawn.map((way, place) => wayOf(way, lines[place].label, layout.lines[place])),
    [...nodes.values()].map((node) => nodeOf(node, layout.nodes.get(node.id))),
  );
}

/** The ways that are drawn: of many between the same two nodes some, and one that says how many more there are. */
function together(ways) {
  const pairs = Map.groupBy(ways, ({ from, to, isDead }) => JSON.stringify([from.id, to.id, isDead]));
  return [...pairs.values()].flatMap((same) => (
    same.length <= MOST_BETWEEN
      ? same : [...same.slice(0, MOST_BETWEEN - 1), { ...same.at(-1), key: `and ${number(same.length - MOST_BETWEEN + 1)} more bindings` }]
  ));
}

function nodeOf(node, { x, y, width, height }) {
  const label = node.isQueue ? node.label : `${node.label} (${node.kind || "?"})`;
  return svg(
    "g", { class: node.isQueue ? "queue" : "exchange" },
    svg("rect", { x, y, width, height, rx: node.isQueue ? 3 : height / 2 }),
    svg("text", { x: x + width / 2, y: y + height / 2 + 5 }, cut(label, NODE_FONT, width - 24)),
    svg("title", {}, label),
  );
}

function wayOf({ key, isDead }, shown, { path, end, label }) {
  return svg(
    "g", { class: `way${isDead ? " dead" : ""}` },
    svg("path", { d: path }),
    svg("circle", { cx: end.x, cy: end.y, r: 4 }),
    label && svg("text", { x: label.x, y: label.y, class: "key" }, shown),
    label && svg("title", {}, key),
  );
}

const pen = document.createElement("canvas").getContext("2d");

/** How wide a text is in a font of the page. */
function widthOf(text, size) {
  pen.font = `${size} ${getComputedStyle(document.documentElement).fontFamily}`;
  return Math.ceil(pen.measureText(text).width) + 2;
}

/** A text, with its end left out where it is too wide. */
function cut(text, size, width) {
  if (widthOf(text, size) <= width) return text;
  const characters = [...text];
  let shown = characters.length;
  while (shown > 0 && widthOf(`${characters.slice(0, shown).join("")}…`, size) > width) shown -= 1;
  return `${characters.slice(0, shown).join("")}…`;
}
