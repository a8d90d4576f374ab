// Shows a value: JSON as a tree that opens and closes, other text as text, other bytes as hex. Only text nodes are made.
import { html, useState } from "../lib/dom.js";
import { Num, Obj, parse, write } from "../lib/json.js";
import { bytes, number, plural } from "../lib/format.js";
import { Copy } from "./basics.js";

const MANY = 100;
const LONG = 20000;

export function Json({ value, open = 2 }) {
  return html`<div class="json"><${Node} value=${value} depth=${0} open=${open} /></div>`;
}

function Node({ value, depth, open, name }) {
  const key = name === undefined ? null : html`<span class="key">${JSON.stringify(name)}</span>: `;
  if (value instanceof Obj || Array.isArray(value)) return html`<${Branch} ...${{ value, depth, open, label: key }} />`;
  if (value instanceof Num) return html`<span>${key}<span class="number">${value.text}</span></span>`;
  if (typeof value === "string") return html`<span>${key}<${Text} text=${JSON.stringify(value)} /></span>`;
  return html`<span>${key}<span class="word">${String(value)}</span></span>`;
}

function Text({ text }) {
  const [whole, setWhole] = useState(text.length <= 1000);
  return html`<span class="string">${whole ? text : text.slice(0, 1000)}</span>${!whole &&
    html` <button type="button" onClick=${() => setWhole(true)}>… ${number(text.length - 1000)} more characters</button>`}`;
}

function Branch({ value, depth, open, label }) {
  const [shown, setShown] = useState(depth < open);
  const [count, setCount] = useState(MANY);
  const list = Array.isArray(value);
  const items = list ? value.map((each) => [undefined, each]) : value.entries;
  const [first, last] = list ? ["[", "]"] : ["{", "}"];
  if (items.length === 0) return html`<span>${label}${first}${last}</span>`;
  const size = plural(items.length, list ? "item" : "field");
  if (!shown) {
    return html`<span>${label}<button type="button" aria-expanded="false" onClick=${() => setShown(true)}>${first} … ${last} ${size}</button></span>`;
  }
  return html`<span>${label}<button type="button" aria-expanded="true" aria-label="close ${size}" onClick=${() => setShown(false)}>${first} ▾</button>
    <ul>${items.slice(0, count).map(([key, each], index) => html`<li key=${index}><${Node} value=${each} name=${key} depth=${depth + 1} open=${open} /></li>`)}
    ${items.length > count && html`<li><button type="button" onClick=${() => setCount(count + 10 * MANY)}>… ${number(items.length - count)} more</button></li>`}</ul>${last}</span>`;
}

// Bytes as hexadecimal digits beside the characters that they would be.
export function hex(data, limit = 4096) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, limit); at += 16) {
    const part = [...data.slice(at, Math.min(at + 16, limit))];
    const digits = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    lines.push(`${at.toString(16).padStart(8, "0")}  ${digits}  ${part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("")}`);
  }
  if (data.length > limit) lines.push(`… ${bytes(data.length - limit)} more`);
  return lines.join("\n");
}

export function fromBase64(text) {
  return Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (sign) => sign.charCodeAt(0));
}

// What kind of value a message has: `value` is parsed JSON, `value_text` other text, `value_base64` other bytes.
export function kindOf(message) {
  if (message.value_base64 !== undefined) return "bytes";
  if (message.value_text !== undefined) return "text";
  return message.value === null ? "null" : "json";
}

export function textOf(message) {
  switch (kindOf(message)) {
    case "bytes": return message.value_base64;
    case "text": return message.value_text;
    default: return write(message.value);
  }
}

export function preview(message, length = 160) {
  const kind = kindOf(message);
  if (kind === "null") return "null";
  if (kind === "bytes") {
    const data = fromBase64(message.value_base64);
    return `${bytes(data.length)}: ${[...data.slice(0, 24)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ")}`;
  }
  const text = kind === "text" ? message.value_text : write(message.value, 0);
  return text.length > length ? `${text.slice(0, length)}…` : text;
}

export function Value({ message }) {
  const kind = kindOf(message);
  const [raw, setRaw] = useState(false);
  if (kind === "null") return html`<p class="muted">A null value (a tombstone): nothing is stored but the key and headers.</p>`;
  const body = kind === "bytes" ? html`<pre class="code">${hex(fromBase64(message.value_base64))}</pre>`
    : kind === "text" || raw ? html`<pre class="code">${textOf(message).slice(0, LONG)}${textOf(message).length > LONG ? "\n… cut here; copy has it all" : ""}</pre>`
      : html`<div class="code"><${Json} value=${message.value} /></div>`;
  return html`<div class="stack"><div class="row">
      <span class="muted">${{ bytes: "Bytes that are no text", text: "Text", json: "JSON" }[kind]}</span>
      ${kind === "json" && html`<button class="small" type="button" aria-pressed=${raw} onClick=${() => setRaw(!raw)}>Raw</button>`}
      <${Copy} text=${textOf(message)} label=${kind === "bytes" ? "Copy as base64" : "Copy"} /></div>${body}</div>`;
}

// Text that may be JSON, such as a header's value.
export function parsed(text) {
  try { return parse(text); } catch { return undefined; }
}
