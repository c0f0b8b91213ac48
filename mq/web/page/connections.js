// Who is connected, over all protocols, and who consumes: slow ones first.

import { ask, askJson, may, path } from "./api.js";
import { confirmed } from "./dialogs.js";
import { button, field, h, say, setText } from "./dom.js";
import { bytes, duration, many, number, rate } from "./format.js";
import { poll } from "./live.js";
import { makeTable } from "./table.js";

const MOST = 1000;
const FULL_SECONDS = 10;
const STUCK_SECONDS = 60;

/** Whether a consumer does not keep up: it has all it may have, or has something and does nothing with it. */
export function isSlow(consumer) {
  const { prefetch, unacknowledged, idle_seconds: idle } = consumer;
  return (prefetch > 0 && unacknowledged >= prefetch && idle > FULL_SECONDS) || (unacknowledged > 0 && idle > STUCK_SECONDS);
}

/** The view of connections. */
export function connectionsView({ onState }) {
  const mayClose = may("administer", null);
  return listView({
    title: "Connections",
    target: "-/connections",
    name: "connections",
    what: "connection",
    empty: "No clients are connected except this page.",
    keyOf: ({ id }) => id,
    columns: [
      ["Client", (each) => `${each.address}${each.port ? `:${each.port}` : ""}`, "short"],
      ["Protocol", (each) => (each.vhost === null ? each.protocol : `${each.protocol} ${each.vhost}`), "short"],
      ["User", (each) => each.user ?? "—"],
      ["State", (each) => each.state],
      ["Channels", (each) => (each.channels.length ? number(each.channels.length) : ""), true],
      ["Unacknowledged", (each) => number(sum(each.channels, "unacknowledged")), true],
      ["Connected for", (each) => duration(each.open_seconds), true],
      ["Idle for", (each) => duration(each.idle_seconds), true],
      ["Bytes in", (each) => (each.received_bytes === null ? "—" : bytes(each.received_bytes)), true],
      ["Bytes out", (each) => (each.sent_bytes === null ? "—" : bytes(each.sent_bytes)), true],
      ...(mayClose ? [["", (each) => button("Close…", () => close(each), { class: "danger" })]] : []),
    ],
    onState,
  });
}

/** The view of consumers. */
export function consumersView({ onState }) {
  return listView({
    title: "Consumers",
    target: "-/consumers",
    name: "consumers",
    what: "consumer",
    empty: "No consumers are connected, and no requests are waiting for messages.",
    keyOf: (each) => [each.connection, each.channel, each.tag, each.queue].join(" "),
    order: (one, other) => isSlow(other) - isSlow(one) || other.unacknowledged - one.unacknowledged,
    columns: [
      ["Queue", (each) => h("a", { href: `#/queue/${encodeURIComponent(each.queue)}` }, each.queue)],
      ["Consumer", (each) => [each.tag ?? "HTTP request waiting for a message", isSlow(each) ? h("span", { class: "marks" }, "slow") : null]],
      ["User", (each) => each.user ?? "—"],
      ["Client", (each) => `${each.protocol} ${each.address}`, "short"],
      ["Prefetch", (each) => (each.prefetch === null ? "—" : each.prefetch || "any"), true],
      ["Unacknowledged", (each) => number(each.unacknowledged), true],
      ["Delivered", (each) => number(each.delivered), true],
      ["Delivered / s", (each) => (each.protocol === "amqp" ? rate(each.delivered_per_second) : "—"), true],
      ["Idle for", (each) => duration(each.idle_seconds), true],
      ["Active for", (each) => duration(each.open_seconds), true],
    ],
    onState,
  });
}

/** A view of a list that mq tells page by page: its first page, asked for again and again, and filtered here. */
export function listView({ title, target, name, what, empty, keyOf, columns, order = null, beside = null, onState }) {
  const filter = h("input", { type: "search", placeholder: "Filter by text in any column", on: { input: fill } });
  const summary = h("p", { class: "summary" }, "Loading…");
  const table = makeTable(title, columns, keyOf, empty);
  let found = [];

  function fill() {
    const wanted = filter.value.trim().toLowerCase();
    const matching = found.filter((each) => JSON.stringify(Object.values(each)).toLowerCase().includes(wanted));
    table.fill(order ? matching.toSorted(order) : matching);
  }

  function tell(answer) {
    found = answer[name];
    setText(summary, answer.next === null ? many(found.length, what) : `Showing the first ${many(found.length, what)}`);
    fill();
  }

  const end = poll(() => askJson("GET", `${target}?max=${MOST}`), tell, onState);
  const element = h(
    "section", {}, h("h1", {}, title), summary, h("div", { class: "bar" }, beside, field("Filter", filter)), table.element,
  );
  return { element, end };
}

async function close(connection) {
  const user = connection.user ? ` (user ${connection.user})` : "";
  const text = `The connection from ${connection.address}${user} will be closed, and its unacknowledged messages will be requeued.`;
  if (!(await confirmed("Close connection?", text, "Close connection"))) return;
  try {
    await ask("DELETE", path("-", "connections", connection.id));
    say("connection closed");
  } catch (error) {
    say(error.message, true);
  }
}

function sum(items, name) {
  return items.reduce((total, item) => total + item[name], 0);
}
