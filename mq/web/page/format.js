// Numbers, times and bodies, as people read them.

const counts = new Intl.NumberFormat("en");
const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

/** 1,234. */
export function number(value) {
  return counts.format(value);
}

/** "1 message", "2 messages". */
export function many(count, what) {
  return `${number(count)} ${what}${count === 1 ? "" : "s"}`;
}

/** Messages a second: two digits are enough. */
export function rate(value) {
  if (!value) return "0";
  return value >= 100 ? number(Math.round(value)) : String(Number(value.toPrecision(2)));
}

/** 1.5 KiB. */
export function bytes(size) {
  let value = size;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return `${unit === "B" ? value : value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TiB`;
}

/** 3 min. */
export function duration(seconds) {
  for (const [unit, length] of UNITS) {
    if (seconds >= length) return `${Math.floor(seconds / length)} ${unit}`;
  }
  return seconds >= 0 ? "< 1 s" : "—";
}

/** A duration as the daemon reads it, in the largest unit in which it is a short number: 90 is "1.5m". */
export function notation(seconds) {
  for (const [unit, length] of [["d", 86_400], ["h", 3_600], ["m", 60]]) {
    const count = Math.round((seconds / length) * 10) / 10;
    if (count >= 1 && Math.abs(count * length - seconds) < 1e-6) return `${count}${unit}`;
  }
  return seconds ? `${seconds}s` : "0";
}

/** 1.5 ms: what takes less than a minute. */
export function brief(seconds) {
  if (seconds >= 60) return duration(seconds);
  return seconds >= 1 ? `${Number(seconds.toPrecision(2))} s` : `${Number((seconds * 1000).toPrecision(2))} ms`;
}

/** How long ago something was; a dash where it was not. */
export function age(milliseconds) {
  return milliseconds === null || milliseconds === undefined
    ? "—" : duration(Math.max(0, (Date.now() - milliseconds) / 1000));
}

/** A time of the day, with the day where it is another one. */
export function time(milliseconds) {
  const at = new Date(milliseconds);
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? at.toLocaleTimeString() : at.toLocaleString();
}

const HOLDERS = {
  connection: "leased until the consumer's connection closes", consumer: "leased until the consumer finishes its batch",
};

/** Until when a message is delayed or leased, and for how long that is; nothing for a ready one. */
export function until({ at_ms: milliseconds, leased_by: holder }) {
  if (milliseconds === undefined) return HOLDERS[holder] ?? "";
  const seconds = (milliseconds - Date.now()) / 1000;
  return `${time(milliseconds)}, ${seconds >= 1 ? `in ${duration(seconds)}` : "now"}`;
}

/** Bytes from base64. */
export function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** Text, or null for what is none. */
export function asText(data) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    return null;
  }
}

/** JSON with a line for each member; null for what is none. Numbers stay as they were written, however long. */
export function asJson(text) {
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  let shown = "", depth = 0;
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    if (token === "{" || token === "[") {
      depth += 1;
      shown += token + line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      shown = /[{[]\s*$/.test(shown) ? shown.trimEnd() + token : shown + line() + token;
    } else if (token === ",") {
      shown += token + line();
    } else {
      shown += token === ":" ? ": " : token;
    }
  }
  return shown;
}

/** Sixteen bytes a line: where they are, what they are, and as characters. */
export function asHex(data) {
  const lines = [];
  for (let start = 0; start < data.length; start += 16) {
    const row = [...data.slice(start, start + 16)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const characters = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${start.toString(16).padStart(8, "0")}  ${digits.padEnd(47)}  ${characters}`);
  }
  return lines.join("\n");
}

const REASONS = {
  receives: ({ receives }) => `not acknowledged after ${receives} ${receives === 1 ? "delivery" : "deliveries"}`,
  expired: () => "time to live expired",
  dropped: () => "dropped to make room for newer messages",
  rejected: () => "rejected by a consumer",
  maxlen: () => "dropped to make room for newer messages",
  delivery_limit: () => "requeued by consumers too many times",
};

/** Why a message died, as the broker knows it. */
export function reasonOf(death) {
  return Object.hasOwn(REASONS, death.reason) ? REASONS[death.reason](death) : String(death.reason);
}

/** Why a message died: first the last worker's error, which differs from message to message, then the reason. */
export function why(death) {
  return death.error ? `${death.error} (${reasonOf(death)})` : reasonOf(death);
}
