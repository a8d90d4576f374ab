// What the owner of the database asks: size, dead tuples, transactions, locks, connections, maintenance, verification.
import { html, useState } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { useResource } from "../lib/live.js";
import { url } from "../lib/router.js";
import { may } from "../lib/session.js";
import { bytes, number, short } from "../lib/format.js";
import { Ago, Answer, Bytes, Do, Empty, Meter, Panel, State, Tile } from "../parts/basics.js";
import { Table } from "../parts/table.js";

export function Server() {
  const found = useResource((signal) => api.server(signal), "server", { every: 10000 });
  return html`<div class="title"><h1>Server</h1></div><${Answer} of=${found}>${(panel) => html`<${Facts} server=${panel.server} version=${panel.version} />`}</${Answer}>
    ${may("admin", null) && html`<${Doctor} /><${Verify} />`}`;
}

function Facts({ server, version }) {
  const used = Object.values(server.connections).reduce((total, count) => total + count, 0);
  const dead = server.tables.reduce((total, table) => total + table.dead_tuples, 0);
  const timers = Object.values(server.failing_timers).reduce((total, count) => total + count, 0);
  return html`<div class="tiles">
      <${Tile} label="PostgreSQL" value=${server.server_version.split(" ")[0]} note="schema ${server.schema_version}${server.standby ? ", standby" : ""}" />
      <${Tile} label="Database" value=${bytes(server.database_bytes)} note=${server.database} />
      <${Tile} label="penstock" value=${version} note="this gateway" /><${Tile} label="Up" value=${html`<${Ago} at=${server.started_at} bare />`} />
      <${Tile} label="Connections" value=${`${number(used)} of ${number(server.max_connections)}`} note=${html`<${Meter} share=${used / server.max_connections} label="connections in use" />`} />
      <${Tile} label="Dead tuples" value=${short(dead)} /><${Tile} label="Waiting for locks" value=${number(server.waiting_for_locks)} kind=${server.waiting_for_locks ? "warn" : ""} />
      <${Tile} label="Maintenance" value=${html`<${Ago} at=${server.maintained_at} none="never" />`} note="last complete pass" />
      <${Tile} label="Failing timers" value=${number(timers)} kind=${timers ? "bad" : ""} note=${html`sampled <${Ago} at=${server.sampled_at} none="never" />`} /></div>
    <div class="grid two">
      <${Panel} title="Size by queue${server.estimated ? " (estimated)" : ""}" id="sizes"><${Table} id="q" label="sizes" filter=${server.queues.length > 20} rows=${server.queues} rowKey=${(row) => row.queue} sort="-bytes" empty=${html`<${Empty} title="Nothing is stored" />`} columns=${[
        { key: "queue", label: "Queue", class: "name", cell: (row) => html`<a href=${url("/queue", { queue: row.queue })}>${row.queue}</a>` }, { key: "bytes", label: "Size", num: true, cell: (row) => html`<${Bytes} value=${row.bytes} />` }]} /></${Panel}>
      <${Panel} title="Open transactions" id="transactions"><${Table} id="t" label="transactions" filter=${false} rows=${server.transactions} rowKey=${(row) => row.pid ?? row.prepared} empty=${html`<${Empty} title="None for more than 5 seconds">Long transactions keep the server from removing dead tuples.</${Empty}>`} columns=${[
        { key: "pid", label: "Process", cell: (row) => row.pid ?? row.prepared }, { key: "user", label: "User" }, { key: "application", label: "Application", class: "name" }, { key: "state", label: "State" }, { key: "since", label: "Open for", num: true, cell: (row) => html`<${Ago} at=${row.since} bare />` }]} /></${Panel}>
      <${Panel} title="Locks waited for" id="locks"><${Table} id="l" label="locks" filter=${false} rows=${server.lock_waits} rowKey=${(row) => `${row.pid}${row.kind}`} empty=${html`<${Empty} title="Nobody waits" />`} columns=${[
        { key: "pid", label: "Process" }, { key: "kind", label: "Lock", cell: (row) => `${row.kind} ${row.mode ?? ""}` }, { key: "table", label: "Table", cell: (row) => row.table ?? "–" }, { key: "blocked_by", label: "Held by", cell: (row) => row.blocked_by.join(", ") || "–" }, { key: "since", label: "For", num: true, cell: (row) => html`<${Ago} at=${row.since} bare />` }]} /></${Panel}>
      <${Panel} title="Connections" id="connections"><${Table} id="n" label="connections" filter=${false} rows=${Object.entries(server.connections).map(([state, count]) => ({ state, count }))} rowKey=${(row) => row.state} columns=${[{ key: "state", label: "State" }, { key: "count", label: "Sessions", num: true, cell: (row) => number(row.count) }]} /></${Panel}></div>
    <${Panel} title="Tables" id="tables"><${Table} id="b" label="tables" rows=${server.tables} rowKey=${(row) => row.name} sort="-bytes" columns=${[
      { key: "name", label: "Table", cell: (row) => html`<code>${row.name}</code>` }, { key: "bytes", label: "Size", num: true, cell: (row) => html`<${Bytes} value=${row.bytes} />` }, { key: "live_tuples", label: "Live rows", num: true, cell: (row) => number(row.live_tuples) },
      { key: "dead_tuples", label: "Dead rows", num: true, cell: (row) => html`<span class=${row.dead_tuples > 1000 && row.dead_tuples > row.live_tuples ? "warn" : ""}>${number(row.dead_tuples)}</span>` },
      { key: "vacuumed_at", label: "Vacuumed", num: true, value: (row) => (row.vacuumed_at ? Date.parse(row.vacuumed_at) : null), cell: (row) => html`<${Ago} at=${row.vacuumed_at} none="never" />` }, { key: "analyzed_at", label: "Analyzed", num: true, value: (row) => (row.analyzed_at ? Date.parse(row.analyzed_at) : null), cell: (row) => html`<${Ago} at=${row.analyzed_at} none="never" />` }]} /></${Panel}>`;
}

function Doctor() {
  const [checks, setChecks] = useState(null);
  const kinds = { ok: "ok", info: "", warn: "warn", fail: "bad" };
  return html`<${Panel} title="Checks" id="doctor" end=${html`<${Do} run=${async () => setChecks((await api.doctor()).checks)}>Run the checks</${Do}>`}>
    ${checks === null ? html`<${Empty} title="Not run yet">What <code>penstock doctor</code> looks at: server, schema, groups.</${Empty}>`
      : html`<${Table} id="d" label="checks of the server" filter=${false} rows=${checks} rowKey=${(row) => row.name} columns=${[{ key: "name", label: "Check" }, { key: "outcome", label: "Result", cell: (row) => html`<span class="pill ${kinds[row.outcome]}"><span class="dot"></span>${row.outcome}</span>` },
        { key: "found", label: "Found", class: "name" }, { key: "advice", label: "Advice", class: "name", cell: (row) => row.advice || "–" }]} />`}</${Panel}>`;
}

function Verify() {
  const [checks, setChecks] = useState(null);
  return html`<${Panel} title="Verify" id="verify" end=${html`<${Do} run=${async () => setChecks((await api.verify()).checks)}>Compare state and log</${Do}>`}>
    ${checks === null ? html`<${Empty} title="Not run yet">It compares the positions of all groups with the log, and reads a lot to do so.</${Empty}>`
      : html`<${Table} id="v" label="checks" filter=${false} rows=${checks} rowKey=${(row) => row.name} sort="-violations" columns=${[{ key: "name", label: "Check", cell: (row) => html`<code>${row.name}</code>` },
        { key: "state", label: "Result", value: (row) => row.violations, cell: (row) => html`<${State} value=${row.violations ? "failed" : "ok"} />` }, { key: "violations", label: "Violations", num: true, cell: (row) => number(row.violations) }, { key: "meaning", label: "Meaning", class: "name" }]} />`}</${Panel}>`;
}
