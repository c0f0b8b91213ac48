// Asks mq, as the user who has logged in.

/** Who asks: `user`, `rights`, `csrf`. Without users everybody may do everything. */
export const session = { user: null, rights: {}, csrf: null };

const CHANGING = new Set(["POST", "PUT", "PATCH", "DELETE"]);

/** mq has refused, or cannot be reached. `status` is 0 in the second case. */
export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

let onStranger = () => {};

/** What to do once mq does not know the user any more. */
export function whenStranger(act) {
  onStranger = act;
}

/** The address of a queue, a message, …: relative, as all are, for a proxy may have put mq under a path. */
export function path(...segments) {
  return `./${segments.map(encodeURIComponent).join("/")}`;
}

/** The response. Throws Refused. */
export async function ask(method, target, { body, headers = {} } = {}) {
  const csrf = session.csrf && CHANGING.has(method) ? session.csrf : "";
  let response;
  try {
    response = await fetch(target, { method, body, headers: { ...headers, "X-CSRF-Token": csrf }, cache: "no-store" });
  } catch {
    throw new Refused(0, "cannot connect to mq");
  }
  if (response.ok) return response;
  if (response.status === 401 && target !== "-/session") onStranger();
  let detail = `${response.status} ${response.statusText}`;
  try {
    detail = (await response.json()).detail;
  } catch { /* it is no answer of mq's: its status has to do */ }
  throw new Refused(response.status, detail);
}

/** The JSON that is answered. */
export async function askJson(method, target, value) {
  const body = value === undefined ? undefined : JSON.stringify(value);
  const response = await ask(method, target, { body, headers: body ? { "Content-Type": "application/json" } : {} });
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

/** Finds out who asks. */
export async function enter() {
  Object.assign(session, await askJson("GET", "-/session"));
}

/** Logs in. */
export async function logIn(name, secret) {
  Object.assign(session, await askJson("POST", "-/session", { name, secret }));
}

/** Logs out. */
export async function logOut() {
  await ask("DELETE", "-/session");
  Object.assign(session, { user: null, rights: {}, csrf: null });
}

/** Whether the user has a right on a queue; null is the broker as a whole. As mq judges it, see docs/access.md. */
export function may(right, queue) {
  const patterns = [...(session.rights[right] ?? []), ...(session.rights.administer ?? [])];
  if (queue === null) return patterns.includes("*");
  return patterns.some((pattern) => expression(pattern).test(queue));
}

/** Whether the user has a right on some queue. */
export function mayAnywhere(right) {
  return [...(session.rights[right] ?? []), ...(session.rights.administer ?? [])].length > 0;
}

function expression(pattern) {
  const escaped = pattern.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return new RegExp(`^${escaped.replace(/\\\*/g, ".*").replace(/\\\?/g, ".")}$`, "s");
}

/** Moves messages out of a queue: to where they died, or to `to`; all, or those with `ids`. How many were `moved`, and
 * how many `stay`, as where the other queue is full. */
export async function redrive(queue, { to, ids } = {}) {
  let moved = 0;
  for (;;) {
    const done = await askJson("POST", `${path(queue)}/redrive`, { ...(to && { to }), ...(ids && { ids }) });
    moved += done.moved;
    if (ids || !done.moved || !done.remaining) return { moved, stay: ids ? ids.length - moved : done.remaining };
  }
}

/** The outcome of a redrive, in words. */
export function movedText({ moved, stay }, where = "") {
  return `${moved} message${moved === 1 ? "" : "s"} moved${where}${stay > 0 ? `; ${stay} not moved` : ""}`;
}

/** Removes messages for good. How many were there. */
export async function removeMessages(queue, ids) {
  const body = ids.map((id) => `${JSON.stringify({ id })}\n`).join("");
  const headers = { "Content-Type": "application/x-ndjson" };
  const response = await ask("POST", `${path(queue)}/messages/delete`, { body, headers });
  const outcomes = (await response.text()).trim().split("\n").map((line) => JSON.parse(line));
  return outcomes.filter((outcome) => outcome.status < 300).length;
}
