// Who consumes and how it fares; circuit breakers; claims.
import { html } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { refresh } from "../lib/figures.js";
import { useResource } from "../lib/live.js";
import { parameter, url } from "../lib/router.js";
import { may } from "../lib/session.js";
import { duration, number } from "../lib/format.js";
import { Ago, Answer, Do, Empty, Panel, State } from "../parts/basics.js";
import { Table } from "../parts/table.js";
import { confirm } from "../parts/dialog.js";
import { toast } from "../parts/toast.js";
import { SavedViews } from "../parts/saved.js";

const micro = (value) => (value === null ? "–" : duration(value / 1e6));

export function Consumers() {
  const consumers = useResource((signal) => api.consumers(signal), "consumers");
  const breakers = useResource((signal) => api.breakers(signal), "breakers");
  return html`<div class="title"><h1>Consumers</h1><div class="actions"><${SavedViews} /></div></div>
    <${Panel} title="Circuit breakers" id="breakers"><${Answer} of=${breakers} empty=${html`<${Empty} title="All closed">No handler has failed often enough to hold its group.</${Empty}>`}>${(rows) => html`<${Table} id="b" label="breakers" filter=${rows.length > 10} rows=${rows} rowKey=${(row) => `${row.queue}\u0000${row.group}`} columns=${[
      { key: "group", label: "Group", class: "name", cell: (row) => html`<a href=${url("/queue", { queue: row.queue, tab: "groups", group: row.group })}>${row.group}</a>` }, { key: "queue", label: "Queue", class: "name" },
      { key: "state", label: "State", cell: (row) => html`<${State} value=${row.state} />` }, { key: "since", label: "Since", value: (row) => -Date.parse(row.since), cell: (row) => html`<${Ago} at=${row.since} />` },
      { key: "open_until", label: "Tries again", cell: (row) => (row.state === "open" ? html`<${Ago} at=${row.open_until} />` : "–") },
      { key: "consecutive_errors", label: "Errors in a row", num: true, cell: (row) => number(row.consecutive_errors) },
      { key: "last_error", label: "Last error", class: "clip", cell: (row) => html`<span title=${row.last_error ?? ""}>${row.last_error ?? row.reason ?? "–"}</span>` },
      may("admin") && { key: "act", label: "", class: "actions", cell: (row) => row.state !== "closed" && may("admin", row.queue) && html`<${Do} class="small" run=${() => resetBreaker(row, breakers.refresh)}>Close it</${Do}>` }]} />`}</${Answer}></${Panel}>
    <${Panel} title="Consumers" id="consumers"><${Answer} of=${consumers} empty=${html`<${Empty} title="Nobody consumes" command="penstock worker app.py">A worker or a client that consumes appears here by itself.</${Empty}>`}>${(rows) => html`<${Table} id="w" label="consumers" rows=${rows} rowKey=${(row) => row.consumer_id} sort="-last_seen" columns=${[
      { key: "consumer_id", label: "Consumer", class: "name", cell: (row) => html`<strong>${row.consumer_id}</strong>${row.description && html`<div class="muted">${row.description}</div>`}` },
      { key: "status", label: "Status", cell: (row) => html`<${State} value=${row.status} />` },
      { key: "last_seen", label: "Last seen", num: true, value: (row) => (row.last_seen ? Date.parse(row.last_seen) : null), cell: (row) => html`<${Ago} at=${row.last_seen} none="never" />` },
      { key: "success_count", label: "Done", num: true, cell: (row) => number(row.success_count) }, { key: "error_count", label: "Failed", num: true, cell: (row) => html`<span class=${row.error_count ? "bad" : ""}>${number(row.error_count)}</span>` },
      { key: "consecutive_errors", label: "In a row", num: true, cell: (row) => number(row.consecutive_errors) },
      { key: "avg_processing_time", label: "Mean time", num: true, cell: (row) => micro(row.avg_processing_time) }, { key: "p99_processing_time", label: "p99", num: true, cell: (row) => micro(row.p99_processing_time) },
      { key: "last_error", label: "Last error", class: "clip", cell: (row) => html`<span title=${row.last_error ?? ""}>${row.last_error ?? "–"}</span>` },
      may("admin", null) && { key: "act", label: "", class: "actions", cell: (row) => html`<${Do} class="small" run=${() => resetConsumer(row, consumers.refresh)}>Reset</${Do}>` }]} />`}</${Answer}></${Panel}>
    ${may("admin") && html`<${Claims} />`}`;
}

function Claims() {
  const queue = parameter("queue");
  const claims = useResource((signal) => api.claims({ queue }, signal), `claims ${queue}`);
  return html`<${Panel} title="Claims" id="claims" end=${queue && html`<span class="muted">of queue ${queue}</span><a class="button" href="/consumers">All queues</a>`}><${Answer} of=${claims} empty=${html`<${Empty} title="No claims are held">Whoever pops messages holds a claim until it acknowledges them.</${Empty}>`}>${(rows) => html`<${Table} id="c" label="claims" rows=${rows} rowKey=${(row) => row.lease} columns=${[
    { key: "queue", label: "Queue", class: "name" }, { key: "group", label: "Group", class: "name" }, { key: "partition", label: "Partition", class: "name", cell: (row) => html`<a href=${url("/messages", { queue: row.queue, partition: row.partition, start: row.start })}>${row.partition}</a>` },
    { key: "start", label: "Offsets", num: true, cell: (row) => html`<span class="mono">${number(row.start)} … ${number(row.stop - 1)}</span>` }, { key: "count", label: "Messages", num: true, value: (row) => row.stop - row.start, cell: (row) => number(row.stop - row.start) },
    { key: "consumer", label: "Consumer", class: "name", cell: (row) => row.consumer ?? "–" }, { key: "attempt", label: "Attempt", num: true },
    { key: "acquired_at", label: "Held", num: true, value: (row) => -Date.parse(row.acquired_at), cell: (row) => html`<${Ago} at=${row.acquired_at} bare />` }, { key: "expires_at", label: "Lease ends", num: true, value: (row) => Date.parse(row.expires_at), cell: (row) => html`<${Ago} at=${row.expires_at} />` },
    may("admin", null) && { key: "act", label: "", class: "actions", cell: (row) => html`<${Do} class="small danger" run=${() => release(row, claims.refresh)}>Release…</${Do}>` }]} />`}</${Answer}></${Panel}>`;
}

async function release(claim, again) {
  const agreed = await confirm({ title: "Take this claim away?", text: "Whoever holds it loses it; its messages are delivered again at once.", count: claim.stop - claim.start,
    hits: [["consumer", claim.consumer ?? "unknown"], ["group", claim.group], ["queue", claim.queue], ["partition", claim.partition]], button: "Release" });
  if (!agreed) return;
  const done = await api.releaseClaim(claim.lease);
  toast(done.changed ? "The claim was released." : "The claim had ended already.");
  again();
}

async function resetBreaker(row, again) {
  await api.resetBreaker(row.queue, row.group);
  toast(`The breaker of ${row.group} is closed.`);
  again();
  refresh();
}

async function resetConsumer(row, again) {
  await api.resetConsumer(row.consumer_id);
  toast(`${row.consumer_id} counts from 0.`);
  again();
}
