// What the page knows of its connection and of time: whether the gateway answers, since when it does not, whether the
// window is hidden. While it is hidden nothing is asked for.
import { signal, computed, useEffect, useRef, useState } from "./dom.js";

export const visible = signal(!document.hidden);
export const now = signal(Date.now());
// When the last answer came, and since when none comes.
export const answeredAt = signal(null);
export const lostAt = signal(null);
export const lostWhy = signal(null);
// How far the server's clock is ahead of ours, in milliseconds: ages are told by the server's.
const skew = signal(0);

export const state = computed(() =>
  !visible.value ? "paused" : lostAt.value !== null ? "lost" : answeredAt.value === null ? "connecting" : "live");

export function answered(date) {
  answeredAt.value = Date.now();
  lostAt.value = null;
  lostWhy.value = null;
  const server = date ? Date.parse(date) : NaN;
  if (!Number.isNaN(server)) {
    // The header has whole seconds.
    const ahead = server + 500 - Date.now();
    skew.value = Math.abs(ahead) < 2000 ? 0 : ahead;
  }
}

export function lost(why) {
  if (lostAt.value === null) lostAt.value = Date.now();
  lostWhy.value = why;
}

export function serverNow() {
  return now.value + skew.value;
}

export function begin() {
  document.addEventListener("visibilitychange", () => {
    visible.value = !document.hidden;
    now.value = Date.now();
  });
  setInterval(() => { if (visible.value) now.value = Date.now(); }, 1000);
}

// Asks for something now and every so many milliseconds while the window is visible. The last answer stays when the next
// one fails: `error` says so. `key` is what the question depends on; a new one begins anew.
export function useResource(ask, key, { every = 5000, enabled = true } = {}) {
  const [answer, setAnswer] = useState({ data: undefined, error: null, at: null, key: null });
  const again = useRef(() => {});
  const seen = visible.value;
  useEffect(() => {
    if (!enabled || !seen) return undefined;
    let timer = null;
    let ended = false;
    let controller = null;
    const run = async () => {
      clearTimeout(timer);
      // One that is asked again before its answer has come goes on once, and not as often as it was asked.
      controller?.abort();
      const mine = controller = new AbortController();
      let wait = every;
      const began = performance.now();
      try {
        const data = await ask(mine.signal);
        if (ended || mine !== controller) return;
        setAnswer({ data, error: null, at: Date.now(), key });
        if (every) wait = pause(performance.now() - began, every);
      } catch (error) {
        if (ended || mine !== controller || error.name === "AbortError") return;
        setAnswer((before) => ({ ...(before.key === key && error.status !== 403 ? before : { data: undefined, at: null }), error, key }));
        // A lost connection is tried again soon; a refusal is not.
        wait = error.lost ? 2000 : every;
      }
      if (wait && !ended) timer = setTimeout(run, wait);
    };
    again.current = run;
    addEventListener("penstock:refresh", run);
    run();
    return () => { ended = true; clearTimeout(timer); controller?.abort(); removeEventListener("penstock:refresh", run); };
  }, [key, seen, enabled, every]);
  const current = answer.key === key ? answer : { data: undefined, error: null, at: null };
  return { ...current, refresh: () => again.current(), loading: current.data === undefined && !current.error };
}

// An open page may cost the database a hundredth of a core: what takes long is asked for less often.
export function pause(took, every) {
  return Math.min(60000, Math.max(every, took * 50));
}
