// One message: its beginning in a list, and all of it in a dialog.

import { ask, path } from "./api.js";
import { shown } from "./dialogs.js";
import { button, h, setText } from "./dom.js";
import { asHex, asJson, asText, bytes, fromBase64, time, until, why } from "./format.js";

const MOST_BYTES = 256 * 1024;
const HEX_BYTES = 16 * 1024;

/** The beginning of a body, on one line. */
export function beginning(message) {
  if (message.damage) return h("em", { class: "bad" }, message.damage);
  if (message.text === undefined) return h("em", {}, `${bytes(message.size)} of binary data`);
  const text = message.text.replace(/\s+/g, " ");
  return text ? h("code", {}, text) : h("em", {}, "empty");
}

/** Shows a message whole: its body as text, JSON or bytes, its headers, and how it died. */
export async function openMessage(message) {
  const { data, isWhole } = await bodyOf(message);
  const text = asText(data) ?? (isWhole ? null : asText(data.slice(0, -4)));
  const json = text === null || !isWhole ? null : asJson(text);
  const pane = h("pre", { class: "body", tabindex: 0, "aria-label": "Body" });
  const ways = [
    ["Plain text", text === null ? null : () => text],
    ["JSON", json === null ? null : () => json],
    ["Hex dump", () => asHex(data.slice(0, HEX_BYTES)) + (data.length > HEX_BYTES ? "\n…" : "")],
  ].filter(([, written]) => written);
  const buttons = ways.map(([name, written]) => button(name, () => choose(name, written), { "aria-pressed": "false" }));

  function choose(name, written) {
    setText(pane, written());
    for (const each of buttons) each.setAttribute("aria-pressed", String(each.textContent === name));
  }

  choose(...(ways.find(([name]) => name === "JSON") ?? ways[0]));
  return shown("Message", [
    h("dl", {}, facts(message).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h(
      "div", { class: "bar" },
      h("div", { class: "choice", role: "group", "aria-label": "Body format" }, buttons),
      h("a", { href: path(message.queue, "messages", message.id), download: message.id }, "Download body"),
      isWhole || h("span", {}, `showing the first ${bytes(data.length)} of ${bytes(message.size)}`),
    ),
    pane,
  ]);
}

function facts(message) {
  return [
    ["ID", h("code", {}, message.id)],
    ["Queue", message.queue],
    ["Message state", message.state],
    ...(until(message) ? [["Becomes available", until(message)]] : []),
    ["Published at", time(message.published_ms)],
    ["Deliveries", String(message.receives)],
    ["Body size", bytes(message.size)],
    ["Content type", message.content_type],
    ...(message.content_encoding ? [["Content encoding", message.content_encoding]] : []),
    ...Object.entries(message.attributes).map(([name, value]) => [`Header ${name}`, value]),
    ...message.dead_letter_history.map((death) => ["Dead-lettered", `from ${death.queue} at ${time(death.time * 1000)}; reason: ${why(death)}`]),
  ];
}

async function bodyOf(message) {
  if (message.text !== undefined && new TextEncoder().encode(message.text).length === message.size) {
    return { data: new TextEncoder().encode(message.text), isWhole: true };
  }
  if (message.base64 !== undefined && fromBase64(message.base64).length === message.size) {
    return { data: fromBase64(message.base64), isWhole: true };
  }
  const response = await ask("GET", path(message.queue, "messages", message.id));
  const reader = response.body.getReader();
  const parts = [];
  let size = 0;
  while (size < MOST_BYTES) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    size += value.length;
  }
  reader.cancel();
  const data = new Uint8Array(await new Blob(parts).arrayBuffer());
  return { data, isWhole: data.length === message.size };
}
