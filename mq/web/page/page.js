// The page: who asks, the views, and the way between them.

import { enter, logOut, may, mayAnywhere, session, whenStranger } from "./api.js";
import { connectionsView, consumersView } from "./connections.js";
import { deadView } from "./dead.js";
import { closeDialogs } from "./dialogs.js";
import { button, h, say, setText } from "./dom.js";
import { exchangesView } from "./exchanges.js";
import { loginView } from "./login.js";
import { nodeView } from "./node.js";
import { queueView } from "./queue.js";
import { queuesView } from "./queues.js";
import { schedulesView } from "./schedules.js";

const main = document.getElementById("main");
const views = document.getElementById("views");
const user = document.getElementById("user");
const dead = h("span", { class: "badge" });
const live = h("span", { class: "live" });
const VIEWS = new Map([
  ["queues", { title: "Queues", make: (query) => queuesView(query, tools) }],
  ["dead", { title: "Dead letters", make: () => deadView(tools) }],
  ["schedules", { title: "Schedules", make: () => schedulesView(tools), anywhere: "configure" }],
  ["consumers", { title: "Consumers", make: () => consumersView(tools), right: "monitor" }],
  ["connections", { title: "Connections", make: () => connectionsView(tools), right: "monitor" }],
  ["exchanges", { title: "Exchanges", make: () => exchangesView(tools), right: "monitor" }],
  ["node", { title: "This daemon", make: () => nodeView(tools), right: "monitor" }],
]);

let end = () => {};

const tools = {
  onDead: (count) => setText(dead, count ? String(count) : ""),
  onState: (isLive) => {
    setText(live, isLive ? "live" : "disconnected");
    live.classList.toggle("bad", !isLive);
  },
};

function frame() {
  views.replaceChildren(...[...VIEWS].filter(([, view]) => isFor(view)).map(([name, { title }]) => (
    h("a", { href: `#/${name}` }, title, name === "dead" ? [" ", dead] : null)
  )));
  user.replaceChildren(live, ...(session.csrf ? [h("span", {}, session.user), button("Log out", leave)] : []));
}

function isFor({ right, anywhere }) {
  return (!right || may(right, null)) && (!anywhere || mayAnywhere(anywhere));
}

async function leave() {
  await logOut().catch((error) => say(error.message, true));
  start();
}

let routed = null; // the address of the view that is shown

function route() {
  routed = location.hash;
  const [place, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, name] = place.split("/").map(decoded);
  end();
  const known = VIEWS.has(view) && isFor(VIEWS.get(view)) ? view : "queues";
  const shown = view === "queue" && name ? queueView(name, tools) : VIEWS.get(known).make(new URLSearchParams(query));
  end = shown.end;
  main.replaceChildren(shown.element);
  document.title = `${view === "queue" && name ? name : VIEWS.get(known).title} – mq`;
  const current = `#/${known}`;
  for (const link of views.children) {
    if (link.getAttribute("href") !== current) link.removeAttribute("aria-current");
    else {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "center" }); // on a phone the views scroll sideways
    }
  }
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // written by hand
  }
}

function stranger() {
  closeDialogs();
  end();
  end = () => {};
  views.replaceChildren();
  user.replaceChildren();
  document.title = "Log in – mq";
  main.replaceChildren(loginView(open));
}

function open() {
  frame();
  route();
}

async function start() {
  try {
    await enter();
  } catch (error) {
    if (error.status === 401) stranger();
    else main.replaceChildren(h("p", { class: "problem", role: "alert" }, error.message));
    return;
  }
  open();
}

whenStranger(stranger);
addEventListener("hashchange", () => {
  if (location.hash === routed) return; // the event of an earlier change came late: this view is shown already
  closeDialogs(); // the browser's Back works beside a dialog, too
  if (views.children.length) { route(); main.focus({ preventScroll: true }); scrollTo(0, 0); }
});
start();
