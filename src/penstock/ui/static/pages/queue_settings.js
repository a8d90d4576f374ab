// Settings of a queue or a group: what holds, what was set, and an editor for each.
import { html } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { refresh } from "../lib/figures.js";
import { may } from "../lib/session.js";
import { bytes, duration, number } from "../lib/format.js";
import { Panel } from "../parts/basics.js";
import { Table } from "../parts/table.js";
import { form } from "../parts/dialog.js";
import { toast } from "../parts/toast.js";

const UNITS = { _time: "s", _bytes: "bytes", _period: "s", _window: "s", _pause: "s", _pause_max: "s", backoff_max: "s", backoff_initial: "s", delay: "s", quiet_period: "s", metrics_retention: "s" };
const unitOf = (name) => Object.entries(UNITS).find(([end]) => name.endsWith(end))?.[1] ?? "";

// What is about pushing and the log, which a group cannot set.
const OF_QUEUES = /^(push_.*|retention_.*|compression|dedupe_window|keep_until_archived|max_message_bytes|metrics_retention|spread)$/u;
export const ofGroups = (settings) => Object.fromEntries(Object.entries(settings).filter(([name]) => !OF_QUEUES.test(name)));

export function Settings({ queue }) {
  return html`<${Panel} title="Settings" id="settings"><${SettingsTable} queue=${queue.name} settings=${queue.settings} config=${queue.config} base="the default"
    save=${async (changes) => { await api.configureQueue(queue.name, changes); refresh(); }} /></${Panel}>`;
}

export function SettingsTable({ queue, settings, config, base, save }) {
  const rows = Object.entries(settings).map(([name, value]) => ({ name, value, own: name in config }));
  const edit = (row) => form({
    title: `Change ${row.name}`, button: "Save", text: `Leave it empty for ${base}. Times are in seconds.`,
    fields: [typeof row.value === "boolean"
      ? { name: "value", label: row.name, options: [["", base], ["true", "yes"], ["false", "no"]], value: row.own ? String(row.value) : "" }
      : { name: "value", label: `${row.name}${unitOf(row.name) ? ` (${unitOf(row.name)})` : ""}`, value: row.own ? shown(row.value) : "", placeholder: shown(row.value) }],
    run: async ({ value }) => { await save({ [row.name]: read(value) }); toast(`${row.name} was changed.`); },
  });
  return html`<${Table} id="s" label="settings" rows=${rows} rowKey=${(row) => row.name} columns=${[
    { key: "name", label: "Setting", cell: (row) => html`<code>${row.name}</code>` },
    { key: "value", label: "Value", value: (row) => shown(row.value), cell: (row) => html`<strong>${Number.isSafeInteger(row.value) ? number(row.value) : shown(row.value) || "none"}</strong> <span class="muted">${row.value === null ? "" : unitOf(row.name)}${readable(row)}</span>` },
    { key: "own", label: "From", value: (row) => (row.own ? "set here" : base), cell: (row) => (row.own ? html`<span class="pill accent">set here</span>` : html`<span class="muted">${base}</span>`) },
    may("admin", queue) && { key: "act", label: "", class: "actions", cell: (row) => html`<button class="small" onClick=${() => edit(row)} aria-label="Change ${row.name}">Change…</button>` },
  ]} />`;
}

// Many seconds or bytes, in units that one can compare.
function readable({ name, value }) {
  const unit = unitOf(name);
  if (unit === "s" && value >= 60) return ` (${duration(value)})`;
  return unit === "bytes" && value >= 1024 ? ` (${bytes(value)})` : "";
}

function shown(value) {
  return value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
}

// What is JSON is meant as such; all else is a text.
function read(text) {
  if (text.trim() === "") return null;
  try { return JSON.parse(text); } catch { return text; }
}
