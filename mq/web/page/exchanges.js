// Exchanges and bindings as a picture: from left to right the ways that messages take, and dashed those of dead letters.

import { askJson } from "./api.js";
import { field, h, setText, show, svg } from "./dom.js";
import { many } from "./format.js";
import { poll } from "./live.js";
import { makeTable } from "./table.js";

const EVERY_MS = 5000;
const MOST_DRAWN = 60;
const WIDTH = 190, HEIGHT = 34, GAP_X = 150, GAP_Y = 16, MARGIN = 10;
const LONGEST = 24;

/** The view. */
export function exchangesView({ onState }) {
  const summary = h("p", { class: "summary" }, "Looking…");
  const filter = h("input", { type: "search", placeholder: "an exchange, a queue or a key", on: { input: draw } });
  const picture = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Picture of the bindings" });
  const note = h("p", { class: "nothing" });
  const table = makeTable("Bindings", [
    ["From", (way) => way.from.label],
    ["To", (way) => (way.to.isQueue ? h("a", { href: `#/queue/${encodeURIComponent(way.to.name)}` }, way.to.label) : way.to.label)],
    ["Kind", (way) => (way.isDead ? "dead letters" : way.to.isQueue ? "to a queue" : "to an exchange")],
    ["Routing key", (way) => way.key],
  ], (way) => `${way.from.id} ${way.to.id} ${way.key} ${way.isDead}`, "Nothing is bound.");
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
    setText(summary, `${many(told.there.exchanges, "exchange")}, ${many(told.there.bindings, "binding")}, ${many(told.there.dead_letters, "queue")} with a dead-letter exchange`);
    const isMuch = nodes.size > MOST_DRAWN;
    setText(note, isMuch ? `${nodes.size} exchanges and queues are too many for a picture: filter to see some.` : "");
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
  const columns = columnsOf(nodes, ways);
  const places = new Map();
  columns.forEach((column, x) => column.forEach((id, y) => places.set(id, {
    x: MARGIN + x * (WIDTH + GAP_X), y: MARGIN + y * (HEIGHT + GAP_Y),
  })));
  const width = 2 * MARGIN + columns.length * (WIDTH + GAP_X) - GAP_X;
  const height = 2 * MARGIN + Math.max(...columns.map((column) => column.length)) * (HEIGHT + GAP_Y);
  const label = `Messages go ${ways.filter((way) => !way.isDead).map(({ from, to }) => `from ${from.label} to ${to.label}`).join("; ")}`;
  return svg(
    "svg", { class: "bindings", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    ways.map((way) => wayOf(way, places)),
    [...nodes.values()].map((node) => nodeOf(node, places.get(node.id))),
  );
}

function nodeOf(node, { x, y }) {
  return svg(
    "g", { class: node.isQueue ? "queue" : "exchange" },
    svg("rect", { x, y, width: WIDTH, height: HEIGHT, rx: node.isQueue ? 3 : HEIGHT / 2 }),
    svg("text", { x: x + WIDTH / 2, y: y + HEIGHT / 2 + 5 }, cut(node.isQueue ? node.label : `${node.label} (${node.kind || "?"})`)),
    svg("title", {}, node.label),
  );
}

function wayOf({ from, to, key, isDead }, places) {
  const start = places.get(from.id), end = places.get(to.id);
  const isBack = end.x <= start.x;
  const x1 = start.x + WIDTH, y1 = start.y + HEIGHT / 2;
  const x2 = isBack ? end.x + WIDTH : end.x, y2 = end.y + HEIGHT / 2;
  const bend = isBack ? Math.max(x1, x2) + 50 : (x1 + x2) / 2;
  return svg(
    "g", { class: isDead ? "way dead" : "way" },
    svg("path", { d: `M ${x1} ${y1} C ${bend} ${y1}, ${bend} ${y2}, ${x2} ${y2}` }),
    svg("circle", { cx: x2, cy: y2, r: 4 }),
    key && svg("text", { x: isBack ? bend - 4 : x2 - 8, y: y2 - 6, class: "key" }, cut(key)),
  );
}

/** Exchanges by how far they are from where messages come in, and all queues to their right. */
function columnsOf(nodes, ways) {
  const depths = new Map([...nodes.values()].filter((node) => !node.isQueue).map(({ id }) => [id, 0]));
  for (let turn = 0; turn < depths.size; turn += 1) {
    for (const { from, to, isDead } of ways) {
      if (!isDead && !to.isQueue && !from.isQueue && depths.get(to.id) <= depths.get(from.id) && turn < depths.size - 1) {
        depths.set(to.id, Math.min(depths.get(from.id) + 1, depths.size - 1));
      }
    }
  }
  const columns = [];
  for (const [id, depth] of depths) (columns[depth] ??= []).push(id);
  const queues = [...nodes.values()].filter((node) => node.isQueue).map(({ id }) => id).sort();
  return [...columns, queues].filter((column) => column?.length);
}

function cut(text) {
  return text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text;
}
