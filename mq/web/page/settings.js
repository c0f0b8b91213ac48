// A queue's settings, as a form.

import { askJson, path } from "./api.js";
import { amount, field, h, say } from "./dom.js";
import { notation } from "./format.js";

const FIELDS = [
  ["visibility", "duration", "Visibility timeout", "time within which a consumer must acknowledge a fetched message, such as 30s, 10m or 1.5h"],
  ["delay", "duration", "Delivery delay", "delay between publishing a message and making it available to consumers"],
  ["ttl", "duration", "Time to live", "time after which a message expires"],
  ["max_messages", "number", "Maximum number of messages", "maximum number of messages in the queue"],
  ["max_bytes", "size", "Maximum total body size", "maximum total size of the message bodies in the queue, such as 10MiB"],
  ["overflow", ["reject", "drop-head"], "When the queue is full", "refuse new messages, or drop the oldest messages"],
  ["retry_delay", "duration", "Retry delay", "time before a message is redelivered after a failure"],
  ["retry_factor", "number", "Backoff multiplier", "the retry delay is multiplied by this number after each further failure"],
  ["retry_jitter", "number", "Retry jitter", "maximum fraction by which a retry delay is shortened at random"],
  ["retry_max", "duration", "Maximum retry delay", "upper limit for the retry delay"],
  ["max_receives", "number", "Maximum deliveries", "number of times a message can be delivered before it is dead-lettered; requires a dead-letter queue"],
  ["dead_letter_queue", "text", "Dead-letter queue", "queue that receives this queue's dead-lettered messages"],
  ["unique", "checkbox", "Reject duplicate messages", "do not store a message if the queue already contains one with the same body"],
  ["max_priority", "number", "Maximum priority", "messages with a higher priority are delivered first; 0 disables priorities"],
  ["groups", "checkbox", "Message groups", "messages in a group are delivered in order, one at a time"],
  ["key_window", "duration", "Idempotency window", "how long idempotency keys are remembered"],
];

/** The form. `settings()` returns them as they are now. */
export function settingsForm(queue, settings) {
  const inputs = FIELDS.map(([name, kind, label, hint]) => ({ name, kind, label, hint, input: control(kind) }));
  const form = h(
    "form", { class: "settings", on: { submit: save } },
    inputs.map(({ kind, label, hint, input }) => (
      kind === "checkbox" ? h("label", { class: "check" }, input, ` ${label}: ${hint}`) : field(label, input, hint)
    )),
    h("button", { type: "submit", class: "primary" }, "Save"),
  );

  const filled = new Map(); // what each input showed before it was edited

  function fill() {
    const now = settings();
    for (const { name, kind, input } of inputs) {
      if (kind === "checkbox") input.checked = Boolean(now[name]);
      else input.value = kind === "duration" && now[name] !== null ? notation(now[name]) : now[name] ?? "";
      filled.set(name, shown(kind, input));
    }
  }

  async function save(event) {
    event.preventDefault();
    if (!filled.size) return; // an empty form would reset all settings
    const patch = {};
    for (const { name, kind, input } of inputs) {
      if (shown(kind, input) !== filled.get(name)) patch[name] = read(kind, input);
    }
    if (!Object.keys(patch).length) {
      say("no settings were changed");
      return;
    }
    try {
      await askJson("PATCH", path(queue), patch);
      say("settings saved");
      for (const { name, kind, input } of inputs) filled.set(name, shown(kind, input));
    } catch (error) {
      say(error.message, true);
    }
  }

  return { form, fill };
}

function control(kind) {
  if (Array.isArray(kind)) return h("select", {}, kind.map((word) => h("option", {}, word)));
  if (kind === "number") return h("input", { inputmode: "decimal", pattern: "[0-9]*\\.?[0-9]*", autocomplete: "off" });
  return h("input", { type: kind === "checkbox" ? kind : "text", autocomplete: "off" });
}

function shown(kind, input) {
  return kind === "checkbox" ? input.checked : input.value.trim();
}

function read(kind, input) {
  const value = shown(kind, input);
  if (kind === "checkbox") return value;
  if (value === "") return null;
  return kind === "text" || Array.isArray(kind) ? value : amount(value);
}
