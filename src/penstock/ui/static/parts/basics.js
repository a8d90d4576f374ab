// Small parts: numbers, times, states, empty states, copying, panels.
import { html, useState } from "../lib/dom.js";
import { UNKNOWN, age, bytes, clock, duration, moment, number, rate, short } from "../lib/format.js";
import { serverNow } from "../lib/live.js";
import { toast } from "./toast.js";

export function Unknown({ why = "unknown" }) {
  return html`<span class="unknown" title=${why}>${UNKNOWN}</span>`;
}

export function Short({ value }) {
  if (value === null || value === undefined) return html`<${Unknown} />`;
  return html`<span title=${number(value)}>${short(value)}</span>`;
}

export const Rate = ({ value }) => (value === null || value === undefined ? html`<${Unknown} />` : html`<span>${rate(value)}</span>`);
export const Bytes = ({ value }) => (value === null || value === undefined ? html`<${Unknown} />` : html`<span title="${number(value)} bytes">${bytes(value)}</span>`);

// A time in relation to now, with the exact one on hover.
export function Ago({ at, none = UNKNOWN, bare = false }) {
  if (!at) return html`<span class="unknown">${none}</span>`;
  const seconds = (serverNow() - new Date(at).getTime()) / 1000;
  const near = Math.abs(seconds) < 1;
  const text = near ? "now" : seconds > 0 ? `${age(seconds)}${bare ? "" : " ago"}` : `in ${age(-seconds)}`;
  return html`<time datetime=${at} title=${moment(at)} class="nowrap">${text}</time>`;
}

export const Clock = ({ at }) => (at ? html`<time datetime=${at} title=${moment(at)}>${clock(at)}</time>` : html`<${Unknown} />`);
export const Lasts = ({ seconds }) => (seconds === null || seconds === undefined ? html`<${Unknown} />` : html`<span class="nowrap">${duration(seconds)}</span>`);

const KINDS = {
  healthy: "ok", closed: "ok", running: "ok", done: "ok", active: "ok", ok: "ok", warm: "ok", queued: "ok",
  degraded: "warn", half_open: "warn", "backing off": "warn", retrying: "warn", delayed: "warn", paused: "warn", stopped: "warn", waiting: "", leaving: "warn", away: "warn", "no dispatcher": "warn", obstructed: "warn",
  open: "bad", failed: "bad", lost: "bad", dead: "bad", gone: "bad", held: "bad", cold: "cold", "cold queued": "cold", in_flight: "accent", "in flight": "accent",
};

export function State({ value, title }) {
  if (!value) return html`<${Unknown} />`;
  const kind = KINDS[value] ?? "";
  return html`<span class="pill ${kind}" title=${title}><span class="dot"></span>${String(value).replaceAll("_", " ")}</span>`;
}

export function Empty({ title, children, command }) {
  return html`<div class="empty"><strong>${title}</strong>${children && html`<span>${children}</span>`}${command && html`<code>${command}</code>`}</div>`;
}

export function Panel({ title, end, children, id }) {
  return html`<section class="panel" aria-labelledby=${id}>
    ${(title || end) && html`<header>${title && html`<h2 id=${id}>${title}</h2>`}${end && html`<div class="end">${end}</div>`}</header>`}
    ${children}
  </section>`;
}

// What a panel shows of a question: the answer, that it is asked, or why there is none. An old answer stays.
export function Answer({ of, children, empty }) {
  if (of.data === undefined && of.error) return html`<${Failure} error=${of.error} retry=${of.refresh} />`;
  if (of.data === undefined) return html`<div class="skeleton" role="status">Loading…</div>`;
  if (empty && (Array.isArray(of.data) ? of.data.length === 0 : false)) return empty;
  return html`${of.error && !of.error.lost && html`<${Failure} error=${of.error} />`}${children(of.data)}`;
}

export function Failure({ error, retry }) {
  return html`<div class="notice bad" role="alert">
    <strong>${error.title ?? "That did not work"}</strong><span>${error.message}</span>
    ${error.hint && html`<span class="muted">${error.hint}</span>`}
    ${retry && html`<span><button class="small" onClick=${retry}>Try again</button></span>`}
  </div>`;
}

export function Tile({ label, value, note, to, kind = "" }) {
  const inner = html`<span class="label">${label}</span><span class="value ${kind}">${value}</span>${note && html`<span class="note">${note}</span>`}`;
  return to ? html`<a class="tile" href=${to}>${inner}</a>` : html`<div class="tile">${inner}</div>`;
}

// The clipboard of browsers works on HTTPS only; a selected text can be copied everywhere.
export async function copy(text) {
  if (navigator.clipboard && window.isSecureContext) {
    try { await navigator.clipboard.writeText(text); return true; } catch { /* not allowed: try the other way */ }
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "skip";
  // A modal dialog makes all else inert, so the text must be within it.
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied;
}

export function Copy({ text, label = "Copy" }) {
  const run = async () => toast((await copy(text)) ? "Copied." : "The browser did not let me copy.");
  return html`<button class="small plain" type="button" onClick=${run}>${label}</button>`;
}

export function Meter({ share, label }) {
  const percent = Math.max(0, Math.min(100, Math.round(share * 100)));
  return html`<div class="meter" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${percent}>
    <div style=${{ width: `${percent}%` }}></div></div>`;
}

const FACTS = 100;

export function Facts({ rows }) {
  const [all, setAll] = useState(false);
  const known = rows.filter(Boolean);
  const shown = all ? known : known.slice(0, FACTS);
  return html`<dl class="facts">${shown.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
    ${shown.length < known.length && html`<button type="button" class="small" onClick=${() => setAll(true)}>${number(known.length - shown.length)} more</button>`}`;
}

// Text of ours in which commands stand between backticks.
export const Words = ({ text }) => text.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));

// A button that is disabled while what it does is under way, and says what went wrong.
export function Do({ run, children, ...rest }) {
  const [busy, setBusy] = useState(false);
  const click = async () => {
    setBusy(true);
    try { await run(); } catch (error) { toast(error.message, "bad", error.hint); } finally { setBusy(false); }
  };
  return html`<button type="button" disabled=${busy} onClick=${click} ...${rest}>${children}</button>`;
}
