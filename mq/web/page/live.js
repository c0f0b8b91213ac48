// What changes, as mq tells it: server-sent events, merged into what is known.

import { ask } from "./api.js";

const AGAIN_MS = 2000;
const SECONDS = 60;
const TICK_MS = 1000;

/**
 * Watches a view, until the function that is returned is called.
 *
 * While nobody looks at the tab, nothing is asked: a browser has few connections for each host.
 */
export function watch(query, tell, onState = () => {}) {
  let source = null, known = {}, timer = null, failures = 0, told = false, isOver = false;

  function begin() {
    if (isOver || source || document.hidden) return;
    known = {};
    told = false;
    const asked = new URLSearchParams({ ...query, seconds: SECONDS });
    source = new EventSource(`-/events?${asked}`);
    source.onmessage = (event) => {
      failures = 0;
      onState(true);
      known = merged(known, JSON.parse(event.data));
      told = true;
      tell(known);
    };
    source.onerror = () => {
      if (source?.readyState === EventSource.CLOSED) {
        pause();
        again();
      } else if (++failures > 1) {
        onState(false, null); // the browser goes on trying by itself
      }
    };
  }

  function pause() {
    source?.close();
    source = null;
  }

  // A browser does not tell why a stream was refused, so the same is asked once more by hand.
  async function again() {
    try {
      await ask("GET", `-/events?${new URLSearchParams(query)}`);
      begin();
    } catch (error) {
      onState(false, error);
      clearTimeout(timer);
      if (error.status !== 401 && error.status !== 404) timer = setTimeout(again, AGAIN_MS);
    }
  }

  // What is told as a time has its age shown, which goes on by itself.
  const ticking = setInterval(() => { if (source && told) tell(known); }, TICK_MS);
  const heed = () => (document.hidden ? pause() : begin());
  document.addEventListener("visibilitychange", heed);
  begin();
  return () => {
    isOver = true;
    clearTimeout(timer);
    clearInterval(ticking);
    document.removeEventListener("visibilitychange", heed);
    pause();
  };
}

/** What is known after an event: only what is new stands in it. */
export function merged(known, news) {
  const view = { ...known, ...news };
  for (const each of ["rows", "lines"]) {
    const all = { ...known[each], ...news[each] };
    if (view.names) view[each] = Object.fromEntries(view.names.map((name) => [name, all[name]]));
  }
  return view;
}

/** Asks again and again for what has no events, until the function that is returned is called. */
export function poll(look, tell, onState = () => {}, everyMs = 2000) {
  let timer = null, isOver = false;

  async function turn() {
    clearTimeout(timer);
    if (isOver) return;
    if (!document.hidden) {
      try {
        const found = await look();
        if (isOver) return;
        onState(true);
        tell(found);
      } catch (error) {
        if (isOver || error.status === 401) return;
        onState(false, error);
      }
    }
    timer = setTimeout(turn, everyMs);
  }

  turn();
  return () => {
    isOver = true;
    clearTimeout(timer);
  };
}
