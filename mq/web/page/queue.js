// One queue: its counts, its messages, and what can be done with them.

import { ask, askJson, may, movedText, path, redrive, removeMessages } from "./api.js";
import { plot } from "./chart.js";
import { askText, confirmed } from "./dialogs.js";
import { amount, button, field, h, say, setText, show } from "./dom.js";
import { age, many, number } from "./format.js";
import { poll, watch } from "./live.js";
import { deathOf, messageTable } from "./messages.js";
import { listAddress, pausedText, storeText } from "./queues.js";
import { settingsForm } from "./settings.js";

const PAGE = 50;
const MOST = 1000;
const PAUSES = [["paused", "delivery"], ["publish_paused", "publishing"]];
const EVERY_MS = 5000;
const STATES = ["ready", "leased", "delayed"];
const FLOWS = ["publish", "deliver", "acknowledge", "redeliver", "expire", "dead_letter"];

/** The view. Returns its element, and what ends it. */
export function queueView(name, { onState }) {
  let view = null, state = "ready", wanted = PAGE, counted = "", isAsking = false, isStale = false;
  let shownReady = null; // the messages that the list last showed of those that are ready
  const tiles = new Map([...STATES, "oldest", "consumers"].map((key) => [key, h("dd")]));
  const marks = h("span", { class: "marks" });
  const gone = h("p", { class: "problem", role: "alert" });
  const table = messageTable({ queue: name, actions: actionsOf(name), onChange: reload });
  const choices = STATES.map((each) => button(titled(each), () => choose(each), { "aria-pressed": String(each === state) }));
  const more = button("Show more", showMore);
  const mayPause = may("pause", name) || may("configure", name);
  const pauses = mayPause && PAUSES.map(([setting, what]) => ({
    setting, what, button: button(`Pause ${what}`, act(() => togglePause(setting, what))),
  }));
  const redriving = button("Redrive all dead letters…", act(redriveAll));
  const hour = h("div", { class: "plots unknown" });
  const { form, fill } = settingsForm(name, () => view.settings);

  const element = h(
    "section", {},
    h("p", { class: "crumbs" }, h("a", { href: listAddress() }, "Queues")),
    h("h1", {}, name, " ", marks),
    gone,
    h("dl", { class: "tiles" }, [...tiles].map(([key, value]) => h("div", {}, h("dt", {}, key === "oldest" ? "Oldest message" : titled(key)), value))),
    mayPause && h(
      "div", { class: "bar", role: "group", "aria-label": "Queue actions" },
      pauses.map((each) => each.button),
      may("configure", name) && [
        button("Purge queue…", act(purge), { class: "danger" }),
        button("Delete queue…", act(remove), { class: "danger" }),
        redriving, // the last one: it is shown and hidden, and must not move another one under the pointer
      ],
    ),
    may("monitor", name) && h("details", { open: true }, h("summary", {}, "Queue activity in the last hour"), hour),
    may("publish", name) && h("details", {}, h("summary", {}, "Publish a message"), publishForm(name)),
    may("consume", name) && h(
      "section", { "aria-label": "Messages" },
      h("h2", {}, "Messages"),
      h("div", { class: "choice", role: "group", "aria-label": "Message state" }, choices),
      table.element,
      h("div", { class: "bar" }, more),
    ),
    may("configure", name) && settings(),
  );
  show(gone, false);
  show(more, false);
  show(redriving, false);

  function settings() {
    // Filled at the click: a toggle event comes once the form is open, and would overwrite what has been typed by then.
    const summary = h("summary", { on: { click: () => view && fill() } }, "Settings");
    return h("details", {}, summary, form);
  }

  function tell(now) {
    const isFirst = view === null;
    view = now;
    if (isFirst) fill(); // an opened form that is empty would be saved as no settings at all
    for (const each of STATES) setText(tiles.get(each), number(now[each]));
    setText(tiles.get("oldest"), age(now.oldest_ms));
    setText(tiles.get("consumers"), number(now.consumers));
    show(redriving, hasDeadLetters());
    setText(marks, [storeText(now), pausedText(now.settings)].filter(Boolean).join(", "));
    for (const each of pauses || []) {
      setText(each.button, `${now.settings[each.setting] ? "Resume" : "Pause"} ${each.what}`);
    }
    table.tick();
    const counts = `${now.ready} ${now.leased} ${now.delayed} ${now.oldest_ms}`;
    if (counts !== counted) {
      counted = counts;
      reload();
    }
  }

  /** Whether some message of the queue died elsewhere, as far as is known: all are shown, or another queue sends its dead
   * letters here. */
  function hasDeadLetters() {
    if (!view.ready) return false;
    if (shownReady?.some((message) => deathOf(message) !== null)) return true;
    return view.is_dead_letter_queue && (shownReady === null || shownReady.length < view.ready);
  }

  function told(isLive, error) {
    onState(isLive, error);
    if (error?.status === 404) {
      setText(gone, error.message);
      show(gone, true);
    }
  }

  function choose(chosen) {
    state = chosen;
    choices.forEach((each, place) => each.setAttribute("aria-pressed", String(STATES[place] === chosen)));
    reload();
  }

  async function reload() {
    if (!may("consume", name)) return;
    isStale = true;
    if (isAsking) return;
    isAsking = true;
    try {
      while (isStale) {
        isStale = false;
        const asked = state;
        const { messages } = await askJson("GET", `${path(name, "preview")}?${new URLSearchParams({ state, max: wanted })}`);
        if (asked !== state) continue; // another state was chosen meanwhile
        table.fill(messages);
        if (state === "ready") shownReady = messages;
        show(redriving, hasDeadLetters());
        show(more, messages.length === wanted && wanted < MOST);
      }
    } catch (error) {
      if (error.status !== 404) say(error.message, true);
    } finally {
      isAsking = false;
    }
  }

  function showMore() {
    wanted = Math.min(wanted + PAGE, MOST);
    reload();
  }

  function act(what) {
    return async () => {
      try {
        await what();
      } catch (error) {
        say(error.message, true);
      }
    };
  }

  async function togglePause(setting, what) {
    const isPaused = !view.settings[setting];
    await askJson("PATCH", path(name), { [setting]: isPaused });
    say(isPaused ? `${what} paused` : `${what} resumed`);
  }

  async function redriveAll() {
    const text = `All dead-lettered messages in ${name} will be moved back to their original queues.`;
    if (await confirmed(`Redrive all dead letters in ${name}?`, text, "Redrive")) say(movedText(await redrive(name)));
  }

  async function purge() {
    const text = `All messages in ${name} that are not leased will be permanently deleted.`;
    if (!(await confirmed(`Purge queue ${name}?`, text, "Purge"))) return;
    const { purged } = await askJson("POST", path(name, "purge"));
    say(`${many(purged, "message")} removed`);
  }

  async function remove() {
    const count = view.ready + view.leased + view.delayed;
    const text = `The queue and its ${many(count, "message")} will be permanently deleted.`;
    if (!(await confirmed(`Delete queue ${name}?`, text, "Delete"))) return;
    await ask("DELETE", path(name));
    say(`queue ${name} deleted`);
    location.hash = "#/queues";
  }

  function draw({ minutes, slots }) {
    hour.classList.remove("unknown");
    plotHour(minutes, slots);
  }

  function plotHour(minutes, slots) {
    const perSecond = (flow) => minutes[flow].map((count) => count / minutes.seconds);
    const now = (flow) => slots[flow].at(-2) / slots.seconds;
    const series = (names) => names.map(([flow, title]) => ({ name: title, values: [...perSecond(flow).slice(1, -1), now(flow)] }));
    hour.replaceChildren(
      plot("Messages in the queue", [{ name: "messages", values: minutes.messages }]),
      plot("Messages per second", series([["publish", "published"], ["deliver", "delivered"], ["acknowledge", "acknowledged"]]), { isRate: true }),
      plot("Redeliveries, expirations and dead letters per second", series([["redeliver", "redelivered"], ["expire", "expired"], ["dead_letter", "dead-lettered"]]), { isRate: true }),
    );
  }

  const nothing = { seconds: 1, messages: [0], ...Object.fromEntries(FLOWS.map((flow) => [flow, [0, 0, 0]])) };
  plotHour(nothing, nothing); // not seen, but as high as what will be drawn
  const endWatch = watch({ view: "queue", queue: name }, tell, told);
  const endPoll = may("monitor", name)
    ? poll(() => askJson("GET", path(name, "rates")), draw, () => {}, EVERY_MS) : () => {};
  return { element, end: () => { endWatch(); endPoll(); } };
}

/** What can be done with chosen messages of a queue: a button's text, what it does, and for which messages there is one. */
export function actionsOf(queue) {
  return [
    may("configure", queue) && {
      text: "Redrive",
      isFor: (message) => deathOf(message) !== null,
      act: async (ids) => {
        const done = await redrive(queue, { ids });
        if (done.moved) say(movedText(done, " back"));
        else say('No messages were moved: the original queues of the selected messages are unknown or have been deleted. To choose a queue, use "Move…".', true);
      },
    },
    may("configure", queue) && may("consume", queue) && {
      text: "Move…",
      act: async (ids) => {
        const to = await askText(`Move ${many(ids.length, "message")}`, "Destination queue", "Move");
        if (to) say(movedText(await redrive(queue, { to, ids }), ` to ${to}`));
      },
    },
    may("consume", queue) && {
      text: "Remove…",
      act: async (ids) => {
        const text = `${many(ids.length, "message")} in ${queue} will be permanently deleted.`;
        if (!(await confirmed("Remove messages?", text, "Remove"))) return;
        say(`${many(await removeMessages(queue, ids), "message")} removed`);
      },
    },
  ].filter(Boolean);
}

function publishForm(queue) {
  const body = h("textarea", { rows: 4, spellcheck: "false" });
  const type = h("input", { value: "text/plain", list: "types", maxlength: 200 });
  const encoding = h("input", { maxlength: 255 });
  const delay = h("input", { placeholder: "30s, 10m, 2h" });
  const ttl = h("input", { placeholder: "30s, 10m, 2h" });
  const priority = h("input", { inputmode: "numeric", pattern: "[0-9]*" });
  const group = h("input", { maxlength: 128 });
  const attributes = h("textarea", { rows: 2, spellcheck: "false" });
  return h(
    "form", { class: "publish", on: { submit: send } },
    field("Body", body),
    h(
      "div", { class: "fields" },
      field("Content type", type),
      field("Content encoding", encoding),
      field("Delivery delay", delay),
      field("Expires after", ttl),
      field("Priority", priority),
      field("Message group", group),
      field("Headers", attributes, 'one per line, in the form "name: value"'),
    ),
    h("datalist", { id: "types" }, ["text/plain", "application/json"].map((value) => h("option", { value }))),
    h("button", { type: "submit", class: "primary" }, "Publish"),
  );

  async function send(event) {
    event.preventDefault();
    try {
      const line = { body: body.value, content_type: type.value || null, attributes: headersIn(attributes.value) };
      if (encoding.value.trim()) line.content_encoding = encoding.value.trim();
      if (delay.value.trim()) line.delay = amount(delay.value.trim());
      if (ttl.value.trim()) line.ttl = amount(ttl.value.trim());
      if (group.value.trim()) line.group = group.value.trim();
      if (priority.value.trim()) line.priority = Number(priority.value);
      const headers = { "Content-Type": "application/x-ndjson" };
      const response = await ask("POST", path(queue, "messages", "batch"), { body: `${JSON.stringify(line)}\n`, headers });
      const outcome = JSON.parse(await response.text());
      if (outcome.detail) say(outcome.detail, true);
      else say(outcome.status === 201 ? "published" : "the queue already contains this message");
    } catch (error) {
      say(error.message, true);
    }
  }
}

function headersIn(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const colon = line.indexOf(":");
    if (colon > 0) found[line.slice(0, colon).trim()] = line.slice(colon + 1).trim();
    else if (line.trim()) throw new Error(`"${line.trim()}" is not a valid header. Enter each header in the form "name: value".`);
  }
  return found;
}

function titled(word) {
  return word[0].toUpperCase() + word.slice(1);
}
