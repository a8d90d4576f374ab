// Dialogs: one at a time, on the browser's own <dialog>, which keeps the focus inside and gives it back.
import { html, signal, useEffect, useRef, useState } from "../lib/dom.js";
import { plural } from "../lib/format.js";
import { Toasts } from "./toast.js";

const open = signal(null);

export function show(content, { wide = false } = {}) {
  return new Promise((resolve) => { open.value = { content, wide, resolve }; });
}

export function close(result) {
  const dialog = open.value;
  open.value = null;
  dialog?.resolve(result);
}

export const isOpen = () => open.value !== null;

// While one is open all else is inert and behind it, so short messages are shown within it.
export function Dialogs() {
  const element = useRef(null);
  const current = open.value;
  useEffect(() => {
    if (current && element.current && !element.current.open) element.current.showModal();
  }, [current]);
  if (!current) return html`<${Toasts} />`;
  return html`<dialog ref=${element} class=${current.wide ? "wide" : ""} aria-labelledby="dialog-title"
    onCancel=${(event) => { event.preventDefault(); close(undefined); }}
    onClick=${(event) => { if (event.target === element.current) close(undefined); }}>${current.content}<${Toasts} /></dialog>`;
}

// Asks before something that cannot be undone: says what will be hit and how many. True if the user agrees.
export function confirm({ title, text, hits = [], count, what = "message", many = `${what}s`, button, danger = true }) {
  return show(html`<form method="dialog" onSubmit=${(event) => { event.preventDefault(); close(true); }}>
    <header><h2 id="dialog-title">${title}</h2></header>
    <div class="body">
      ${text && html`<p>${text}</p>`}
      <ul class="hits">
        ${count !== undefined && html`<li><strong>${count === null ? `An unknown number of ${many}` : plural(count, what, many)}</strong></li>`}
        ${hits.map(([name, value]) => html`<li><span class="muted">${name}</span> <strong>${value}</strong></li>`)}
      </ul>
    </div>
    <footer><button type="button" autofocus onClick=${() => close(false)}>Cancel</button>
    <button type="submit" class="primary ${danger ? "danger" : ""}">${button}</button></footer>
  </form>`);
}

// A form in a dialog: `run` gets the fields as an object; an error stays in the dialog.
export function form({ title, fields, button, run, text, wide = false }) {
  return show(html`<${Form} ...${{ title, fields, button, run, text }} />`, { wide });
}

function Form({ title, fields, button, run, text }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.target));
    for (const field of fields) if (field.type === "checkbox") given[field.name] = field.name in given;
    setBusy(true);
    try { close((await run(given)) ?? true); } catch (problem) { setError(problem); setBusy(false); }
  };
  return html`<form onSubmit=${submit}>
    <header><h2 id="dialog-title">${title}</h2></header>
    <div class="body">
      ${text && html`<p class="muted">${text}</p>`}
      ${fields.map((field, index) => html`<${Field} key=${field.name} field=${field} first=${index === 0} />`)}
      ${error && html`<div class="notice bad" role="alert"><strong>${error.message}</strong>${error.hint && html`<span>${error.hint}</span>`}</div>`}
    </div>
    <footer><button type="button" onClick=${() => close(undefined)}>Cancel</button>
    <button type="submit" class="primary" disabled=${busy}>${button}</button></footer>
  </form>`;
}

// The value is where a field begins: drawn again, for an error or while it runs, it keeps what somebody has typed.
function Field({ field, first }) {
  const { name, label, type = "text", value = "", options, hint, rows, ...rest } = field;
  if (type === "checkbox") return html`<label class="check"><input type="checkbox" name=${name} defaultChecked=${!!value} /> ${label}</label>`;
  const control = options
    ? html`<select name=${name}>${options.map((each) => html`<option value=${each[0]} selected=${each[0] === value}>${each[1]}</option>`)}</select>`
    : type === "textarea"
      ? html`<textarea name=${name} rows=${rows ?? 6} spellcheck=${false} ...${rest}>${value}</textarea>`
      : html`<input name=${name} type=${type} defaultValue=${value} autofocus=${first} spellcheck=${false} ...${rest} />`;
  return html`<label class="field">${label}${control}${hint && html`<span class="muted">${hint}</span>`}</label>`;
}
