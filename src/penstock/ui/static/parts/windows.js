// The windows of groups in Valkey: state, how full each is, how often it went from warm to cold and back.
import { html } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { useResource } from "../lib/live.js";
import { url } from "../lib/router.js";
import { number } from "../lib/format.js";
import { Ago, Bytes, Meter, Panel, State, Unknown } from "./basics.js";
import { Table } from "./table.js";

const MEANS = {
  warm: "All that waits is in the window", cold: "More waits than the window holds", leaving: "The window is being given back",
  away: "Valkey cannot be used, and PostgreSQL serves the group alone", "no dispatcher": "Nobody keeps the window: run penstock dispatch, or a worker",
  obstructed: "PostgreSQL serves the group alone",
};

// What its dispatcher said last counts only while there is one.
export function windowState(row) {
  if (row.obstacle) return "obstructed";
  return row.live ? row.state : "no dispatcher";
}

export function Windows({ queue }) {
  const found = useResource((signal) => api.windows(signal), "windows");
  const rows = (found.data ?? []).filter((row) => !queue || row.queue === queue);
  if (rows.length === 0) return null;
  return html`<${Panel} title="Windows in Valkey" id="windows"><${Table} id="w" label="windows" filter=${rows.length > 10} rows=${rows} sort="-fill" rowKey=${(row) => `${row.queue}\u0000${row.name}`}
    columns=${[
      { key: "name", label: "Group", class: "name", cell: (row) => html`<a href=${url("/queue", { queue: row.queue, tab: "groups", group: row.name })}>${row.name}</a>` },
      !queue && { key: "queue", label: "Queue", class: "name", cell: (row) => html`<a href=${url("/queue", { queue: row.queue })}>${row.queue}</a>` },
      { key: "state", label: "State", value: windowState, cell: (row) => html`<${State} value=${windowState(row)} title=${row.obstacle ?? MEANS[windowState(row)] ?? ""} />` },
      { key: "fill", label: "Fill", value: fill, cell: (row) => (fill(row) === null ? html`<${Unknown} why="no dispatcher has said" />` : html`<div class="row"><${Meter} share=${fill(row)} label="fill of the window" /><span class="nowrap">${number(row.items)} of ${number(row.capacity)}</span></div>`) },
      { key: "size", label: "Bytes", num: true, cell: (row) => html`<${Bytes} value=${row.size} />` },
      { key: "transitions", label: "Transitions", num: true, title: "How often it went from warm to cold or back", cell: (row) => (row.transitions === null ? html`<${Unknown} />` : number(row.transitions)) },
      { key: "since", label: "In this state", num: true, value: (row) => (row.since ? -Date.parse(row.since) : null), cell: (row) => html`<${Ago} at=${row.since} bare />` },
      { key: "dispatcher", label: "Dispatcher", class: "name", cell: (row) => row.dispatcher ?? "–" },
    ]} /></${Panel}>`;
}

function fill(row) {
  return row.items === null || !row.capacity ? null : row.items / row.capacity;
}
