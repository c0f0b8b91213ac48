// All queues: sorted and filtered by mq, a hundred at a time, so that ten thousand are as quick as ten.

import { askJson, may, mayAnywhere, path } from "./api.js";
import { sparkline } from "./chart.js";
import { arrange, button, field, h, say, setText, show } from "./dom.js";
import { age, many, number, rate } from "./format.js";
import { watch } from "./live.js";

const PAGE = 100;
const WAIT_MS = 150;
const COLUMNS = [
  ["name", "Queue"], ["ready", "Ready"], ["leased", "Leased"], ["delayed", "Delayed"], ["oldest", "Oldest message"],
  ["consumers", "Consumers"], ["publish", "Published / s"], ["deliver", "Delivered / s"], ["dead_letter", "Dead-lettered / s"],
];

const START = { sort: "name", reverse: "false", filter: "", skip: "0" };
let address = "#/queues";

/** The address of the list, as it was last sorted and filtered. */
export function listAddress() {
  return address;
}

/** The view, as the query of its address says. Returns its element, and what ends it. */
export function queuesView(query, { onState, onDead }) {
  const asked = { view: "queues", ...askedBy(query), max: PAGE };
  const filter = h("input", { type: "search", placeholder: "Filter by name", on: { input: later }, maxlength: 100, value: asked.filter });
  const summary = h("p", { class: "summary" });
  const body = h("tbody");
  const heads = COLUMNS.map(([key, title], place) => head(key, title, place));
  const table = h(
    "table", { class: "queues" },
    h("caption", { class: "unseen" }, "Queues"), 
    h("thead", {}, h("tr", {}, heads, h("th", { scope: "col" }, "Messages, last hour"))), body,
  );
  const before = button("Previous page", () => turn(-PAGE));
  const after = button("Next page", () => turn(PAGE));
  const place = h("span");
  const rows = new Map();
  let end = () => {}, timer = null;

  const element = h(
    "section", {},
    h("h1", {}, "Queues"),
    summary,
    h("div", { class: "bar" }, mayAnywhere("configure") && newQueue(), field("Filter", filter)),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Queue table" }, table),
    h("div", { class: "bar", role: "group", "aria-label": "Page navigation" }, before, place, after),
  );

  function head(key, title, place) {
    const order = button(title, () => sort(key));
    return h("th", { scope: "col", class: place ? "number" : null, "data-key": key }, order);
  }

  function sort(key) {
    asked.reverse = String(asked.sort === key && asked.reverse === "false");
    asked.sort = key;
    asked.skip = 0;
    begin();
  }

  function turn(by) {
    asked.skip = Math.max(0, asked.skip + by);
    begin();
  }

  function later() {
    clearTimeout(timer);
    timer = setTimeout(() => {
      asked.filter = filter.value.trim();
      asked.skip = 0;
      begin();
    }, WAIT_MS);
  }

  function begin() {
    end();
    keepAddress();
    for (const cell of heads) {
      const isUp = (cell.dataset.key === "name") === (asked.reverse === "false");
      const order = isUp ? "ascending" : "descending";
      cell.setAttribute("aria-sort", cell.dataset.key === asked.sort ? order : "none");
    }
    end = watch(asked, tell, onState);
  }

  /** Keep what is shown in the address, so that a reload, a bookmark and the browser's Back show the same. */
  function keepAddress() {
    const changed = Object.entries(START).filter(([name, usual]) => String(asked[name]) !== usual);
    const kept = new URLSearchParams(changed.map(([name]) => [name, asked[name]])).toString();
    address = `#/queues${kept && `?${kept}`}`;
    if (location.hash !== address && (kept || location.hash.includes("?"))) history.replaceState(null, "", address);
  }

  function tell(view) {
    onDead(view.dead);
    setText(summary, summaryOf(view));
    arrange(body, view.names.map((name) => row(name, view.rows[name], view.lines[name])));
    for (const name of [...rows.keys()]) if (!view.rows[name]) rows.delete(name);
    const last = asked.skip + view.names.length;
    setText(place, view.matching ? `${number(asked.skip + 1)} to ${number(last)} of ${number(view.matching)}` : "");
    before.disabled = !asked.skip;
    after.disabled = last >= view.matching;
    show(before.parentElement, view.matching > PAGE || asked.skip > 0);
  }

  function row(name, status, line) {
    let cells = rows.get(name);
    if (!cells) {
      const marks = h("span", { class: "marks" });
      const numbers = COLUMNS.slice(1).map(() => h("td", { class: "number" }));
      const link = h("a", { href: `#/queue/${encodeURIComponent(name)}` }, name);
      const hour = h("td");
      const element = h("tr", {}, h("th", { scope: "row" }, link, marks), numbers, hour);
      cells = { element, marks, numbers, hour, line: null };
      rows.set(name, cells);
    }
    setText(cells.marks, [storeText(status), pausedText(status)].filter(Boolean).join(", "));
    const texts = [
      number(status.ready), number(status.leased), number(status.delayed), age(status.oldest_ms), number(status.consumers),
      rate(status.published), rate(status.delivered), rate(status.dead_lettered),
    ];
    texts.forEach((text, place) => {
      setText(cells.numbers[place], text);
      cells.numbers[place].classList.toggle("zero", text === "0" || text === "—");
    });
    if (cells.line !== line) {
      cells.line = line;
      cells.hour.replaceChildren(...[sparkline(line, `maximum number of messages in the last hour: ${number(Math.max(...line, 0))}`)].filter(Boolean));
    }
    return cells.element;
  }

  begin();
  return { element, end: () => { clearTimeout(timer); end(); } };
}

/** What to ask for by the query of an address; what it does not say, or says wrongly, is as at the start. */
function askedBy(query) {
  const sort = query.get("sort"), skip = query.get("skip") ?? "";
  return {
    sort: COLUMNS.some(([key]) => key === sort) ? sort : START.sort,
    reverse: String(query.get("reverse") === "true"),
    filter: (query.get("filter") ?? "").slice(0, 100),
    skip: /^[0-9]{1,9}$/.test(skip) ? Number(skip) : 0,
  };
}

/** Where a queue lives, if that is not the disk of a daemon alone. */
export function storeText({ store }) {
  return { memory: "stored in memory", node: "stored on this node only", cluster: "cluster" }[store] ?? "";
}

/** What is said of a queue that is paused. */
export function pausedText({ paused, publish_paused: isPublishPaused }) {
  if (paused && isPublishPaused) return "paused";
  return paused ? "delivery paused" : isPublishPaused ? "publishing paused" : "";
}

function summaryOf(view) {
  if (!view.queues) return "No queues exist, or you do not have permission to see them.";
  const all = many(view.queues, "queue");
  const found = view.matching === view.queues ? all : `${number(view.matching)} of ${all}`;
  const states = `${number(view.ready)} ready, ${number(view.leased)} leased, ${number(view.delayed)} delayed`;
  return `${found}: ${states}`;
}

function newQueue() {
  const name = h("input", {
    required: true, maxlength: 100, pattern: "[A-Za-z0-9_][A-Za-z0-9._@\\-]*", autocomplete: "off", spellcheck: "false",
  });
  const keepsDead = h("input", { type: "checkbox", checked: true });
  const hint = "letters, digits and any of . _ @ -";
  const details = h(
    "details", { class: "menu" },
    h("summary", {}, "New queue"),
    h(
      "form", { class: "card", on: { submit: create } },
      field("Queue name", name, hint),
      h("label", { class: "check" }, keepsDead, " Also create the dead-letter queue NAME.dead"),
      h("button", { type: "submit", class: "primary" }, "Create"),
    ),
  );
  details.addEventListener("toggle", () => details.open && name.focus());

  async function create(event) {
    event.preventDefault();
    try {
      await make(name.value, keepsDead.checked);
    } catch (error) {
      say(error.message, true);
      return;
    }
    location.hash = `#/queue/${encodeURIComponent(name.value)}`;
  }

  return details;
}

async function make(name, keepsDead) {
  await askJson("PUT", path(name));
  if (!keepsDead) return;
  const dead = `${name}.dead`;
  if (!may("configure", dead) || !may("publish", dead) || !may("consume", name)) {
    say(`queue ${name} was created, but you do not have permission to create its dead-letter queue ${dead}`, true);
    return;
  }
  await askJson("PUT", path(dead));
  await askJson("PATCH", path(name), { dead_letter_queue: dead });
}
