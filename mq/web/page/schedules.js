// Schedules: what is published regularly, when it comes next, and what went wrong.

import { ask, askJson, path } from "./api.js";
import { listView } from "./connections.js";
import { confirmed } from "./dialogs.js";
import { amount, button, field, h, say } from "./dom.js";
import { duration, time } from "./format.js";

/** The view. */
export function schedulesView({ onState }) {
  return listView({
    title: "Schedules",
    target: "-/schedules",
    name: "schedules",
    what: "schedule",
    empty: "There are no schedules that you have permission to configure.",
    keyOf: ({ name }) => name,
    columns: [
      ["Schedule", ({ name }) => name],
      ["Queue", ({ queue }) => h("a", { href: `#/queue/${encodeURIComponent(queue)}` }, queue)],
      ["Cron expression or interval", when, "short"],
      ["Next run", ({ next }) => (next ? time(Date.parse(next)) : "—"), "short"],
      ["Last run", ({ last }) => (last ? time(Date.parse(last)) : "—"), "short"],
      ["Last error", ({ error }) => error ?? ""],
      ["", (each) => button("Delete schedule…", () => remove(each), { class: "danger", "aria-label": `Delete schedule ${each.name}` })],
    ],
    beside: newSchedule(),
    onState,
  });
}

function when({ cron, zone, every, unless_waiting: unlessWaiting }) {
  const instants = cron ? `${cron} ${zone}` : `every ${every < 60 ? `${every} s` : duration(every)}`;
  return unlessWaiting ? `${instants}; a run is skipped if the message from the previous run is still in the queue` : instants;
}

function newSchedule() {
  const text = { required: true, autocomplete: "off", spellcheck: "false" };
  const pattern = "[A-Za-z0-9_][A-Za-z0-9._@\\-]*";
  const name = h("input", { ...text, maxlength: 100, pattern });
  const queue = h("input", { ...text, maxlength: 100, pattern });
  const cron = h("input", { maxlength: 200, autocomplete: "off", spellcheck: "false" });
  const zone = h("input", { value: Intl.DateTimeFormat().resolvedOptions().timeZone, maxlength: 100 });
  const every = h("input", { placeholder: "30s, 10m, 2h" });
  const body = h("textarea", { rows: 3, spellcheck: "false" });
  const type = h("input", { value: "text/plain", maxlength: 200 });
  const unlessWaiting = h("input", { type: "checkbox" });
  const details = h(
    "details", { class: "menu" },
    h("summary", {}, "New schedule"),
    h(
      "form", { class: "card", on: { submit: create } },
      field("Schedule name", name, "If a schedule with this name exists, it is updated."),
      field("Queue", queue),
      field("Cron expression", cron, "minute, hour, day, month and weekday; for example, 0 3 * * MON-FRI"),
      field("Time zone", zone),
      field("Interval (instead of a cron expression)", every),
      field("Body", body),
      field("Content type", type),
      h("label", { class: "check" }, unlessWaiting, " Skip a run if the message from the previous run is still in the queue"),
      h("button", { type: "submit", class: "primary" }, "Save schedule"),
    ),
  );
  details.addEventListener("toggle", () => details.open && name.focus());

  async function create(event) {
    event.preventDefault();
    const instants = cron.value.trim() ? { cron: cron.value.trim(), zone: zone.value.trim() } : {};
    if (every.value.trim()) instants.every = amount(every.value.trim());
    const message = { body: body.value, content_type: type.value || null };
    try {
      await askJson("PUT", path("-", "schedules", name.value), {
        ...instants, queue: queue.value, message, unless_waiting: unlessWaiting.checked,
      });
      say(`schedule ${name.value} saved`);
      details.open = false;
    } catch (error) {
      say(error.message, true);
    }
  }

  return details;
}

async function remove({ name, queue }) {
  const text = `The schedule ${name} will no longer publish to the queue ${queue}. Messages already in the queue are kept.`;
  if (!(await confirmed("Delete schedule?", text, "Delete schedule"))) return;
  try {
    await ask("DELETE", path("-", "schedules", name));
    say(`schedule ${name} deleted`);
  } catch (error) {
    say(error.message, true);
  }
}
