// Short messages about what was just done.
import { html, signal } from "../lib/dom.js";

const shown = signal([]);
let last = 0;

export function toast(text, kind = "", hint = "") {
  const id = ++last;
  shown.value = [...shown.value.slice(-3), { id, text, kind, hint }];
  setTimeout(() => { shown.value = shown.value.filter((each) => each.id !== id); }, kind === "bad" ? 10000 : 5000);
}

export function Toasts() {
  return html`<div class="toasts" role="status" aria-live="polite">
    ${shown.value.map((each) => html`<div key=${each.id} class="toast ${each.kind}">${each.text}${each.hint && html`<div class="muted">${each.hint}</div>`}</div>`)}
  </div>`;
}
