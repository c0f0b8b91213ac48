// All dead letters in one place, wherever they lie: why each died, and the way back.

import { askJson, may, movedText, redrive } from "./api.js";
import { confirmed } from "./dialogs.js";
import { arrange, button, field, h, say, setText, show } from "./dom.js";
import { many, why } from "./format.js";
import { watch } from "./live.js";
import { messageTable } from "./messages.js";
import { actionsOf } from "./queue.js";

const SHOWN = 200;

/** The view. Returns its element, and what ends it. */
export function deadView({ onState, onDead }) {
  const summary = h("p", { class: "summary" }, "Loading…");
  const groups = h("div");
  const known = new Map();
  const filter = h("input", { type: "search", placeholder: "Filter by reason, queue or text", on: { input: () => fill(found) } });
  const bar = h("div", { class: "bar" }, field("Filter", filter));
  let counted = null, found = [], isAsking = false, isStale = false;
  const element = h("section", {}, h("h1", {}, "Dead letters"), summary, bar, groups);

  function tell(view) {
    onDead(view.dead);
    for (const { table } of known.values()) table.tick();
    const counts = `${view.dead} ${view.ready} ${view.leased}`;
    if (counts !== counted) {
      counted = counts;
      load();
    }
  }

  async function load() {
    if (isAsking) {
      isStale = true;
      return;
    }
    isAsking = true;
    try {
      do {
        isStale = false;
        found = (await askJson("GET", `-/dead-letters?max=${SHOWN}`)).queues;
        fill(found);
      } while (isStale);
    } catch (error) {
      say(error.message, true);
    } finally {
      isAsking = false;
    }
  }

  function fill(queues) {
    const dead = queues.reduce((sum, { ready }) => sum + ready, 0);
    const full = queues.filter(({ ready }) => ready);
    setText(summary, dead ? `${many(dead, "dead letter")} in ${many(full.length, "queue")}` : explained(queues));
    show(bar, dead > 0);
    arrange(groups, full.map(group));
  }

  function group({ queue, ready, messages }) {
    let shown = known.get(queue);
    if (!shown) {
      shown = makeGroup(queue, load);
      known.set(queue, shown);
    }
    const wanted = filter.value.trim().toLowerCase();
    const matching = messages.filter((message) => textOf(message).includes(wanted));
    const rest = ready - messages.length, unlike = messages.length - matching.length;
    setText(shown.count, many(ready, "message"));
    setText(shown.rest, [
      unlike > 0 && `${many(unlike, "message")} ${unlike === 1 ? "does" : "do"} not match the filter.`,
      rest > 0 && `The queue contains ${many(rest, "more message")}. Open the queue to see ${rest === 1 ? "it" : "them"}.`,
    ].filter(Boolean).join(" "));
    shown.table.fill(matching);
    return shown.element;
  }

  const end = watch({ view: "queues", max: 1 }, tell, onState);
  return { element, end };
}

/** What a dead letter is found by: what is shown of it. */
function textOf({ text, attributes, dead_letter_history: deaths, content_type: type }) {
  return [text, type, ...Object.values(attributes), ...deaths.flatMap((death) => [death.queue, why(death)])].join("\n").toLowerCase();
}

function explained(queues) {
  if (queues.length) return "No dead-lettered messages. New ones appear here automatically.";
  return "No queue has a dead-letter queue. Set a dead-letter queue in a queue's settings, or create one together with a new queue.";
}

function makeGroup(queue, reload) {
  const count = h("span", { class: "marks" });
  const rest = h("p", {});
  const table = messageTable({ queue, actions: actionsOf(queue), onChange: reload, isDead: true });
  const element = h(
    "section", { class: "card", "aria-label": queue },
    h(
      "div", { class: "bar" },
      h("h2", {}, h("a", { href: `#/queue/${encodeURIComponent(queue)}` }, queue), " ", count),
      may("configure", queue) && button("Redrive all messages…", all),
    ),
    table.element,
    rest,
  );

  async function all() {
    const text = `All messages in ${queue} will be moved back to their original queues.`;
    if (!(await confirmed(`Redrive all messages in ${queue}?`, text, "Redrive"))) return;
    try {
      say(movedText(await redrive(queue)));
    } catch (error) {
      say(error.message, true);
    }
    reload();
  }

  return { element, table, count, rest };
}
