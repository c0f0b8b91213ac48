// A table of messages that can be chosen, looked into, and have something done with them.

import { arrange, button, h, say, setText, show } from "./dom.js";
import { age, bytes, many, reasonOf, until } from "./format.js";
import { beginning, openMessage } from "./message.js";

/** How a message died last; null for one that did not. Over AMQP a dead letter tells by its headers, and no time. */
export function deathOf({ dead_letter_history: deaths, attributes }) {
  const queue = attributes["x-first-death-queue"], reason = attributes["x-first-death-reason"];
  return deaths[0] ?? (queue && reason ? { queue, reason, receives: 0, time: null } : null);
}

/**
 * The table. `actions` are what can be done with chosen messages, `isFor` some of them; `onChange` is called after
 * something was done;
 * `isDead` shows where and why each died.
 */
export function messageTable({ queue, actions, onChange, isDead = false }) {
  const chosen = new Set();
  const heads = titles().map((title) => h("th", { scope: "col" }, title));
  const all = h("input", { type: "checkbox", "aria-label": `Select all listed messages in ${queue}`, on: { change: chooseAll } });
  const body = h("tbody");
  const bar = h("div", { class: "bar", role: "group", "aria-label": "Actions for selected messages" });
  const nothing = h("p", { class: "nothing" }, "No messages.");
  const scroll = h(
    "div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Messages in ${queue}` },
    h(
      "table", {},
      h("caption", { class: "unseen" }, `Messages in ${queue}`),
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
  const isOffered = ({ isFor = () => true }) => messages.some(isFor);
  bar.append(...buttons, count);
  const element = h("div", { class: isDead ? "deaths" : null }, bar, scroll, nothing);
  const timed = titles().indexOf("Becomes available"), died = titles().indexOf("Dead-letter reason"); // columns that are shown where they say something
  let messages = [], rows = new Map();
  update();

  function titles() {
    return isDead
      ? ["Dead-letter reason", "Message", "Source queue", "Dead-lettered", "Body size"]
      : ["Message", "Message age", "Becomes available", "Deliveries", "Body size", "Dead-letter reason"];
  }

  function fill(found) {
    messages = found;
    // A message keeps its row: a click that was meant for a row must not be lost because the row was made anew under it.
    rows = new Map(messages.map((message) => [message.id, rows.get(message.id) ?? newRow(message)]));
    for (const id of chosen) if (!rows.has(id)) chosen.delete(id);
    const hasTimes = messages.some((message) => until(message) !== "");
    const hasDeaths = messages.some((message) => deathOf(message) !== null);
    if (!isDead) {
      show(heads[timed], hasTimes);
      show(heads[died], hasDeaths);
    }
    for (const message of messages) rows.get(message.id).tell(message, hasTimes, hasDeaths);
    arrange(body, [...rows.values()].map(({ element }) => element));
    update();
  }

  function newRow(message) {
    const choice = h("input", {
      type: "checkbox", "aria-label": `Select message ${message.id}`, on: { change: () => choose(message.id, choice.checked) },
    });
    const look = button(beginning(message), () => open(message), { class: "look", title: message.id });
    const shown = titles().filter((title) => title !== "Message" && !(isDead && title === "Dead-letter reason"))
      .map((title) => h("td", { class: { "Source queue": null, "Dead-letter reason": "why" }[title] ?? "short" }));
    const reason = isDead ? h("td", { class: "why" }) : shown.at(-1);
    const row = h(
      "tr", {},
      actions.length > 0 && h("td", {}, choice),
      isDead && reason,
      h("td", { class: "message" }, look),
      shown,
    );
    const ageCell = shown[isDead ? 1 : 0];
    let since = null;

    function tell(now, hasTimes, hasDeaths) {
      message = now;
      choice.checked = chosen.has(message.id);
      const death = deathOf(message);
      since = isDead ? death?.time && death.time * 1000 : message.published_ms;
      tellWhy(reason, death);
      const cells = isDead
        ? [death?.queue ?? "—", ageText(), bytes(message.size)]
        : [age(since), until(message), String(message.receives), bytes(message.size)];
      cells.forEach((text, place) => setText(shown[place], text));
      if (!isDead) {
        show(shown[timed - 1], hasTimes);
        show(shown[died - 1], hasDeaths);
      }
    }

    function ageText() {
      return isDead && since ? `${age(since)} ago` : age(since);
    }

    function tick() {
      setText(ageCell, ageText());
      if (!isDead) setText(shown[timed - 1], until(message));
    }

    return { element: row, tell, tick };
  }

  /** The error that a worker told comes first: the reason below it is the same in most rows. */
  function tellWhy(cell, death) {
    const reason = death ? reasonOf(death) : isDead ? "unknown" : "";
    if (cell.textContent === `${death?.error ?? ""}${reason}`) return;
    const error = death?.error && h("strong", { title: death.error }, death.error);
    cell.replaceChildren(...(error ? [error, h("small", {}, reason)] : [reason]));
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
    buttons.forEach((each, place) => {
      each.disabled = chosen.size === 0;
      show(each, isOffered(actions[place]));
    });
    all.checked = chosen.size > 0 && chosen.size === messages.length;
    all.indeterminate = chosen.size > 0 && chosen.size < messages.length;
    setText(count, chosen.size ? `${many(chosen.size, "message")} selected` : "");
  }

  return { element, fill, tick: () => rows.forEach((row) => row.tick()) };
}
