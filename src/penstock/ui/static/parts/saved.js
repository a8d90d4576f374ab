// Filters that a user has saved, per page, in this browser: the whole query of the address under a name.
import { html, useState } from "../lib/dom.js";
import { go, route } from "../lib/router.js";
import { form } from "./dialog.js";
import { toast } from "./toast.js";

const place = (path) => `penstock.saved:${path}`;

function load(path) {
  try { return JSON.parse(localStorage.getItem(place(path)) ?? "[]"); } catch { return []; }
}

function store(path, views) {
  try { localStorage.setItem(place(path), JSON.stringify(views)); } catch { toast("The browser does not let me save.", "bad"); }
}

export function SavedViews() {
  const { path, query } = route.value;
  const [, again] = useState(0);
  const views = load(path);
  const now = query.toString();
  const save = async () => {
    await form({
      title: "Save this view", button: "Save", text: "The address of this view is kept in this browser.",
      fields: [{ name: "name", label: "Name", required: true, maxlength: 60 }],
      run: ({ name }) => store(path, [...views.filter((each) => each.name !== name), { name, query: now }]),
    });
    again((count) => count + 1);
  };
  const remove = (name) => { store(path, views.filter((each) => each.name !== name)); again((count) => count + 1); };
  if (!now && views.length === 0) return null;
  return html`<div class="row saved">
    ${views.map((each) => html`<span class="segmented" key=${each.name}>
      <button class="small" aria-pressed=${each.query === now} onClick=${() => go(each.query ? `${path}?${each.query}` : path)}>${each.name}</button>
      <button class="small" aria-label="Forget ${each.name}" title="Forget" onClick=${() => remove(each.name)}>×</button></span>`)}
    ${now && !views.some((each) => each.query === now) && html`<button class="small plain" onClick=${save}>Save this view</button>`}
  </div>`;
}
