// Push a message by hand.
import { html } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { refresh } from "../lib/figures.js";
import { parse } from "../lib/json.js";
import { url } from "../lib/router.js";
import { form, show, close } from "../parts/dialog.js";
import { Copy } from "../parts/basics.js";

export async function pushDialog(queue) {
  const done = await form({
    title: `Push to ${queue}`, button: "Push", wide: true,
    fields: [
      { name: "value", label: "Value", type: "textarea", value: '{"test": true}', rows: 8, hint: "JSON is stored as it is, digit by digit; anything else as text." },
      { name: "partition", label: "Partition", placeholder: "picked by the key, or at random" }, { name: "key", label: "Key" },
      { name: "headers", label: "Headers", type: "textarea", rows: 2, placeholder: '{"source": "by hand"}', hint: "A JSON object of texts, or empty." },
    ],
    run: async ({ value, partition, key, headers }) => {
      const json = isJson(value);
      const given = headers.trim() ? JSON.parse(headers) : undefined;
      const answer = await api.push(queue, { ...(json ? { value } : { text: value }), partition, key, headers: given });
      return answer.results[0];
    },
  });
  if (!done || done === true) return;
  refresh();
  const id = done.ids?.[0];
  await show(html`<header><h2 id="dialog-title">Pushed</h2></header><div class="body"><dl class="facts"><dt>Partition</dt><dd>${done.partition}</dd><dt>Offset</dt><dd>${done.first_offset ?? "when it is due"}</dd>
    ${id && html`<dt>Id</dt><dd class="mono">${id} <${Copy} text=${id} /></dd>`}</dl></div>
    <footer>${id && html`<a class="button" href=${url("/message", { id })} onClick=${() => close()}>Show it</a>`}<button autofocus type="button" class="primary" onClick=${() => close()}>Close</button></footer>`);
}

function isJson(text) {
  try { parse(text); return true; } catch { return false; }
}
