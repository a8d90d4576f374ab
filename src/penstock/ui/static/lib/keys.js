// The keyboard: two keys to go to a page, one to filter, to move in a table, to change the theme. `?` lists them.
import { html } from "./dom.js";
import { go } from "./router.js";
import { close, isOpen, show } from "../parts/dialog.js";
import { toggleTheme } from "./theme.js";

export const PAGES = [
  ["/", "Overview", "o"], ["/queue-metrics", "Queue metrics", "m"], null, ["/queues", "Queues", "q"], ["/messages", "Messages", "e"],
  ["/dead-letters", "Dead letters", "d"], null, ["/flows", "Flows", "f"], ["/schedules", "Schedules", "s"], ["/consumers", "Consumers", "c"],
  null, ["/server", "Server", "v"],
];

const OTHERS = [["/", "Filter the table"], ["j k", "Next and previous row"], ["Enter", "Open the row"], ["r", "Load again"], ["t", "Light or dark"], ["Esc", "Leave a field, close a dialog"], ["?", "This list"]];

export function help() {
  return show(html`<header><h2 id="dialog-title">Keys</h2></header><div class="body"><dl class="facts">
    ${PAGES.filter(Boolean).map(([, label, key]) => html`<dt><kbd>g</kbd> <kbd>${key}</kbd></dt><dd>${label}</dd>`)}
    ${OTHERS.map(([key, label]) => html`<dt>${key.split(" ").map((each) => html`<kbd>${each}</kbd> `)}</dt><dd>${label}</dd>`)}
  </dl></div><footer><button type="button" autofocus onClick=${() => close()}>Close</button></footer>`);
}

function move(step) {
  const rows = [...document.querySelectorAll("main tbody tr")];
  const targets = rows.map((row) => row.querySelector("a, button")).filter(Boolean);
  if (!targets.length) return;
  const at = targets.findIndex((target) => target.closest("tr").contains(document.activeElement));
  targets[at < 0 ? (step > 0 ? 0 : targets.length - 1) : Math.max(0, Math.min(targets.length - 1, at + step))].focus();
}

export function listen(refresh) {
  let waiting = false;
  document.addEventListener("keydown", (event) => {
    const field = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && field && !isOpen()) { field.blur(); return; }
    if (field || isOpen() || event.ctrlKey || event.metaKey || event.altKey) { waiting = false; return; }
    if (waiting) {
      waiting = false;
      const page = PAGES.find((each) => each && each[2] === event.key);
      if (page) { event.preventDefault(); go(page[0]); document.getElementById("main")?.focus(); }
      return;
    }
    const acts = {
      g: () => { waiting = true; setTimeout(() => { waiting = false; }, 1500); },
      "?": help, t: toggleTheme, r: refresh, j: () => move(1), k: () => move(-1),
      "/": () => document.querySelector("main [data-filter], main input[type=search]")?.focus(),
    };
    if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
  });
}
