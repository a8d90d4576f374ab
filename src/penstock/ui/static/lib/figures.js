// What the whole page knows of all queues, kept fresh while the window is visible: the outline, and sums of it.
import { signal, effect, computed } from "./dom.js";
import * as api from "./api.js";
import { answered, lost, pause, visible } from "./live.js";

export const outline = signal(undefined);
export const outlineError = signal(null);
// The last snapshot that the server has sent by itself: sums, rates, problems.
export const snapshot = signal(undefined);
let again = () => {};

export const figures = computed(() => {
  const queues = outline.value;
  if (!queues) return undefined;
  const groups = queues.flatMap((queue) => queue.groups.map((group) => ({ queue: queue.name, ...group })));
  // Before the first sample nothing is known, which is not the same as nothing.
  const sampled = groups.length === 0 || groups.some((group) => group.sampled_at);
  const sum = (name) => (sampled || name === "dead_letters" ? groups.reduce((total, group) => total + (group[name] ?? 0), 0) : null);
  const oldest = groups.map((group) => group.oldest_at).filter(Boolean).sort()[0] ?? null;
  return {
    queues: queues.length, groups, lag: snapshot.value?.totals?.lag ?? sum("lag"), cold: snapshot.value?.totals?.cold ?? sum("depth"), claimed: sum("claimed"), deadLetters: sum("dead_letters"),
    sampled, oldest: snapshot.value?.totals?.oldest_at ?? oldest, open: groups.filter((group) => group.breaker && group.breaker !== "closed").length, paused: groups.filter((group) => group.paused).length,
  };
});

export function refresh() { again(); }

// What one key may see is not for the next one.
function forget() {
  outline.value = undefined;
  snapshot.value = undefined;
}

export function begin() {
  let timer = null;
  let controller = null;
  const run = async () => {
    clearTimeout(timer);
    controller?.abort();
    controller = new AbortController();
    const began = performance.now();
    let wait = 5000;
    try {
      outline.value = await api.outline(controller.signal);
      outlineError.value = null;
      wait = pause(performance.now() - began, 5000);
    } catch (error) {
      if (error.name === "AbortError") return;
      outlineError.value = error;
      if (error.status === 403) forget();
      wait = error.lost ? 2000 : 15000;
    }
    timer = setTimeout(run, wait);
  };
  again = run;
  effect(() => {
    if (visible.value && !api.signedOut.value) {
      run();
      listen();
    } else {
      clearTimeout(timer);
      controller?.abort();
      hush();
      if (api.signedOut.value) {
        forget();
        outlineError.value = null;
      }
    }
  });
}

let source = null;
let later = null;

// The server tells what has changed. A browser connects again by itself where the connection broke, and never where the
// answer was another than a stream: nobody has signed in yet, or too many listen.
function listen() {
  clearTimeout(later);
  if (source) return;
  const mine = source = api.events();
  mine.addEventListener("figures", (event) => {
    const found = JSON.parse(event.data);
    if (found.reachable) {
      snapshot.value = found;
      answered(null);
    } else lost(`the database does not answer: ${found.error}`);
  });
  mine.addEventListener("error", () => {
    // Whether it is the stream alone or the gateway, the next request will tell.
    again();
    if (mine !== source || mine.readyState !== EventSource.CLOSED) return;
    source = null;
    later = setTimeout(listen, 5000);
  });
}

function hush() {
  clearTimeout(later);
  source?.close();
  source = null;
}
