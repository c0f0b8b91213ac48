// A table of messages that can be chosen, looked into, and have something done with them.

import { arrange, button, h, say, setText, show } from "./dom.js";
import { age, bytes, many, until, why } from "./format.js";
import { beginning, openMessage } from "./message.js";

/** How a message died last; null for one that did not. Over AMQP a dead letter tells by its headers, and no time. */
function deathOf({ deaths, attributes }) {
  const queue = attributes["x-first-death-queue"], reason = attributes["x-first-death-reason"];
  return deaths[0] ?? (queue && reason ? { queue, reason, receives: 0, time: null } : null);
}

/**
 * The table. `actions` are what can be done with chosen messages; `onChange` is called after something was done;
 * `isDead` shows where and why each died.
 */
export function messageTable({ queue, actions, onChange, isDead = false }) {
  const chosen = new Set();
  const heads = titles().map((title) => h("th", { scope: "col" }, title));
  const all = h("input", { type: "checkbox", "aria-label": `Choose all shown of ${queue}`, on: { change: chooseAll } });
  const body = h("tbody");
  const bar = h("div", { class: "bar", role: "group", "aria-label": "With chosen messages" });
  const nothing = h("p", { class: "nothing" }, "No messages here.");
  const scroll = h(
    "div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Messages of ${queue}` },
    h(
      "table", {},
      h("caption", { class: "unseen" }, `Messages of ${queue}`),
      h(
        "thead", {},
        h(
          "tr", {},
          actions.length > 0 && h("td", {}, all),
          heads,
        ),
      ),
      body,
    ),
  );
  const count = h("span");
  const buttons = actions.map(({ text, act }) => button(text, () => run(act)));
  bar.append(...buttons, count);
  const element = h("div", { class: isDead ? "deaths" : null }, bar, scroll, nothing);
  const timed = isDead ? null : titles().indexOf("Until");
  let messages = [], rows = new Map();
  update();

  function titles() {
    return isDead
      ? ["Message", "Died in", "Why", "Ago", "Size"] : ["Message", "Age", "Until", "Handed out", "Size", "Died"];
  }

  function fill(found) {
    messages = found;
    // A message keeps its row: a click that was meant for a row must not be lost because the row was made anew under it.
    rows = new Map(messages.map((message) => [message.id, rows.get(message.id) ?? newRow(message)]));
    for (const id of chosen) if (!rows.has(id)) chosen.delete(id);
    const hasTimes = messages.some(({ at_ms }) => at_ms !== undefined);
    if (!isDead) show(heads[timed], hasTimes);
    for (const message of messages) rows.get(message.id).tell(message, hasTimes);
    arrange(body, [...rows.values()].map(({ element }) => element));
    update();
  }

  function newRow(message) {
    const choice = h("input", {
      type: "checkbox", "aria-label": `Choose ${message.id}`, on: { change: () => choose(message.id, choice.checked) },
    });
    const look = button(beginning(message), () => open(message), { class: "look", title: message.id });
    const shown = titles().slice(1).map(() => h("td"));
    const row = h(
      "tr", {},
      actions.length > 0 && h("td", {}, choice),
      h("td", { class: "message" }, look),
      shown,
    );
    const ageCell = shown[isDead ? 2 : 0];
    let since = null;

    function tell(now, hasTimes) {
      message = now;
      choice.checked = chosen.has(message.id);
      const death = deathOf(message);
      since = isDead ? death?.time && death.time * 1000 : message.published_ms;
      const cells = isDead
        ? [death?.queue ?? "—", death ? why(death) : "unknown", age(since), bytes(message.size)]
        : [age(since), until(message.at_ms), String(message.receives), bytes(message.size), death ? why(death) : ""];
      cells.forEach((text, place) => setText(shown[place], text));
      if (!isDead) show(shown[timed - 1], hasTimes);
    }

    function tick() {
      setText(ageCell, age(since));
      if (!isDead) setText(shown[timed - 1], until(message.at_ms));
    }

    return { element: row, tell, tick };
  }

  async function open(message) {
    try {
      await openMessage(message);
    } catch (error) {
      say(error.message, true);
    }
  }

  function choose(id, isChosen) {
    if (isChosen) chosen.add(id);
    else chosen.delete(id);
    update();
  }

  function chooseAll() {
    chosen.clear();
    if (all.checked) for (const { id } of messages) chosen.add(id);
    fill(messages);
  }

  async function run(act) {
    try {
      await act([...chosen]);
      chosen.clear();
    } catch (error) {
      say(error.message, true);
    }
    onChange();
  }

  function update() {
    show(bar, actions.length > 0 && messages.length > 0);
    show(scroll, messages.length > 0);
    show(nothing, messages.length === 0);
    for (const each of buttons) each.disabled = chosen.size === 0;
    all.checked = chosen.size > 0 && chosen.size === messages.length;
    all.indeterminate = chosen.size > 0 && chosen.size < messages.length;
    setText(count, chosen.size ? `${many(chosen.size, "message")} chosen` : "");
  }

  return { element, fill, tick: () => rows.forEach((row) => row.tick()) };
}
