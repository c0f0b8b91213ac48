// A queue's settings, as a form.

import { askJson, path } from "./api.js";
import { field, h, say } from "./dom.js";

const FIELDS = [
  ["visibility", "number", "Lease, in seconds", "how long a fetched message is held back"],
  ["delay", "number", "Delay, in seconds", "from publishing until it can be fetched"],
  ["ttl", "number", "Time to live, in seconds", "after which a message expires"],
  ["max_messages", "number", "Most messages", "in the queue"],
  ["max_bytes", "number", "Most bytes", "of their bodies"],
  ["overflow", ["reject", "drop-head"], "When it is full", "refuse the new message, or drop the oldest"],
  ["retry_delay", "number", "Wait after a failure, in seconds", "before a message comes again"],
  ["retry_factor", "number", "Longer each time", "so many times as long after the next failure"],
  ["retry_jitter", "number", "Jitter", "by up to this part a wait is shorter, by chance"],
  ["retry_max", "number", "Longest wait, in seconds", "after a failure"],
  ["max_receives", "number", "Most receives", "after which a message dies; needs a dead-letter queue"],
  ["dead_letter_queue", "text", "Dead-letter queue", "where dead messages go"],
  ["unique", "checkbox", "Unique", "a body that is there is not stored again"],
  ["max_priority", "number", "Highest priority", "messages of a higher one come first; 0 for none"],
  ["groups", "checkbox", "Message groups", "messages of one group come one after the other, in order"],
  ["key_window", "number", "Key window, in seconds", "how long an Idempotency-Key is remembered"],
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

  function fill() {
    const now = settings();
    for (const { name, kind, input } of inputs) {
      if (kind === "checkbox") input.checked = Boolean(now[name]);
      else input.value = now[name] ?? "";
    }
  }

  async function save(event) {
    event.preventDefault();
    const now = settings(), patch = {};
    for (const { name, kind, input } of inputs) {
      const value = read(kind, input);
      if (value !== (now[name] ?? null)) patch[name] = value;
    }
    if (!Object.keys(patch).length) {
      say("nothing was changed");
      return;
    }
    try {
      await askJson("PATCH", path(queue), patch);
      say("saved");
    } catch (error) {
      say(error.message, true);
    }
  }

  return { form, fill };
}

function control(kind) {
  if (Array.isArray(kind)) return h("select", {}, kind.map((word) => h("option", {}, word)));
  if (kind === "number") return h("input", { inputmode: "decimal", pattern: "[0-9]*\\.?[0-9]*", autocomplete: "off" });
  return h("input", { type: kind, autocomplete: "off" });
}

function read(kind, input) {
  if (kind === "checkbox") return input.checked;
  const text = input.value.trim();
  if (text === "") return null;
  return kind === "number" ? Number(text) : text;
}
