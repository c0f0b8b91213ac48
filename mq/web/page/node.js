// This daemon: its store and the room it has, and the cluster that it is a node of.

import { ask, askJson, Refused } from "./api.js";
import { h, setText } from "./dom.js";
import { brief, bytes, duration, number } from "./format.js";
import { poll } from "./live.js";
import { makeTable } from "./table.js";

const EVERY_MS = 5000;
const SAMPLES = 13; // a minute
const SHORT = 0.1; // of the file system
const HISTOGRAMS = [
  ["mq_commit_seconds", "time to sync a batch to disk"],
  ["mq_publish_seconds", "time to store a published message"],
  ["mq_delivery_age_seconds", "age of a message at delivery"],
];
const PARTS = [[0.5, "p50"], [0.99, "p99"]];

/** The view. */
export function nodeView({ onState }) {
  const store = h("dl", { class: "tiles" });
  const times = makeTable("Latency", [
    ["Metric", (each) => each.what],
    ...PARTS.map(([part, title]) => [`${title}, last minute`, (each) => quantile(each.lately, part), true]),
    ...PARTS.map(([part, title]) => [`${title} since startup`, (each) => quantile(each.ever, part), true]),
    ["Measurements since startup", (each) => number(countOf(each.ever)), true],
  ], ({ what }) => what, "No measurements yet.");
  const samples = [];
  const cluster = h("p", { class: "summary" });
  const nodes = makeTable("Nodes", [
    ["Node", (each) => each.name],
    ["Cluster role", (each) => (each.is_master ? "master" : "mirror") + (each.is_draining ? ", drained" : "")],
    ["Cluster member for", (each) => duration(each.uptime_seconds), true],
  ], ({ name }) => name, "This daemon is not part of a cluster.");
  const links = makeTable("Connections to other nodes", [
    ["Neighboring node", (each) => each.node || each.address],
    ["Connection to that node", (each) => (each.is_up ? "up" : "down")],
    ["Connection from that node", (each) => (each.is_inbound_up ? "up" : "down")],
    ["Response time", (each) => (each.latency_seconds === null ? "—" : brief(each.latency_seconds)), true],
  ], ({ address }) => address, "No connections to other nodes.");

  async function look() {
    const [membership, metrics, ready] = await Promise.all([
      askJson("GET", "-/cluster"), ask("GET", "-/metrics").then((answer) => answer.text()), isReady(),
    ]);
    return { membership, values: gauges(metrics), histograms: HISTOGRAMS.map(([name]) => bucketsOf(metrics, name)), ready };
  }

  function tell({ membership, values, histograms, ready }) {
    samples.push(histograms);
    if (samples.length > SAMPLES) samples.shift();
    times.fill(HISTOGRAMS.map(([, what], place) => {
      const ever = histograms[place];
      return { what, ever, lately: difference(ever, samples[0][place]) };
    }).filter(({ ever }) => countOf(ever)));
    const free = values.get("mq_root_free_bytes"), size = values.get("mq_root_size_bytes");
    const inodes = values.get("mq_root_free_inodes"), memory = values.get("process_resident_memory_bytes");
    store.replaceChildren(
      tile("Storage", ready ? "accepts writes" : "refuses writes", !ready),
      ...(free === undefined ? [] : [
        tile("Free disk space", `${bytes(free)} of ${bytes(size)}`, free < SHORT * size), tile("Free inodes", number(inodes)),
      ]),
      tile("Queues", number(values.get("mq_queues") ?? 0)),
      ...(memory === undefined ? [] : [tile("Memory used by mq", bytes(memory))]),
      tile("Version", values.version ?? "—"),
    );
    setText(cluster, explained(membership));
    nodes.fill(membership.nodes);
    links.fill(membership.links);
  }

  const end = poll(look, tell, onState, EVERY_MS);
  const element = h(
    "section", {}, h("h1", {}, "This daemon"), h("h2", {}, "Storage"), store, h("h2", {}, "Latency"), times.element, h("h2", {}, "Cluster"), cluster, nodes.element, links.element,
  );
  return { element, end };
}

function tile(title, text, isBad = false) {
  return h("div", {}, h("dt", {}, title), h("dd", { class: isBad ? "bad" : null }, text));
}

async function isReady() {
  try {
    return (await askJson("GET", "-/ready")).ready;
  } catch (error) {
    if (error instanceof Refused && error.status === 503) return false;
    throw error;
  }
}

/** How many took how long at most, as pairs of seconds and a count that includes the ones before. */
function bucketsOf(text, name) {
  const found = [];
  for (const [, limit, count] of text.matchAll(new RegExp(`^${name}_bucket\\{le="([^"]+)"\\} (\\S+)$`, "gm"))) {
    found.push([limit === "+Inf" ? Infinity : Number(limit), Number(count)]);
  }
  return found;
}

function difference(buckets, before) {
  return buckets.map(([limit, count], place) => [limit, count - (before[place]?.[1] ?? 0)]);
}

function countOf(buckets) {
  return buckets.at(-1)?.[1] ?? 0;
}

/** The time within which a part of all was done: interpolated in its bucket, as Prometheus' histogram_quantile does. */
function quantile(buckets, part) {
  const count = countOf(buckets);
  if (!count) return "—";
  const place = buckets.findIndex(([, sum]) => sum >= part * count);
  const [limit, sum] = buckets[place];
  const [start, before] = buckets[place - 1] ?? [0, 0];
  if (limit === Infinity) return `more than ${brief(start)}`;
  return brief(start + (limit - start) * ((part * count - before) / (sum - before)));
}

/** The gauges without labels, by name, as Prometheus gets them. */
function gauges(text) {
  const found = new Map();
  for (const [, name, value] of text.matchAll(/^([a-z_]+) (\S+)$/gm)) found.set(name, Number(value));
  found.version = /^mq_build_info\{version="([^"]*)"\}/m.exec(text)?.[1];
  return found;
}

function explained(membership) {
  if (!membership.node) return "";
  const served = membership.is_available ? "available" : "currently unavailable";
  return `Node ${membership.node} has the role ${membership.role}. Cluster queues: ${number(membership.queues)}, ${served}. Election term: ${membership.term}. Failovers since this node started: ${number(membership.failovers)}. ${lease(membership)}${warned(membership)}`;
}

/** That one machine has all of it. */
function warned({ voters, nodes }) {
  const machine = voters === 1 ? " WARNING: etcd has only one member. If its disk fails, all cluster queues are lost." : "";
  const node = nodes.length === 1 ? " WARNING: the cluster has only one member. If this member fails, the cluster queues become unavailable." : "";
  return machine + node;
}

function lease({ lease_remaining_seconds: left, lease_seconds: whole }) {
  return left === null ? "This node is not a member of the cluster at the moment." : `This node's cluster membership expires in ${left.toFixed(1)} s unless it is renewed. Each renewal is valid for ${whole} s.`;
}
