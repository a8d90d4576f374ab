// One message: its value, headers, what it is to each group, where it came from and what it caused.
import { html } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { useResource } from "../lib/live.js";
import { parameter, url } from "../lib/router.js";
import { may } from "../lib/session.js";
import { moment, number, plural } from "../lib/format.js";
import { Ago, Answer, Copy, Do, Empty, Facts, Meter, Panel, State } from "../parts/basics.js";
import { Table } from "../parts/table.js";
import { Value, preview } from "../parts/json_viewer.js";
import { confirm } from "../parts/dialog.js";
import { toast } from "../parts/toast.js";

const ID = /^[0-9a-f-]{36}$/i;

export function Message() {
  const id = parameter("id");
  const found = useResource((signal) => api.message(id, signal), id, { every: 0 });
  return html`<div class="title"><h1>Message</h1><span class="mono sub">${id}</span><${Copy} text=${id} label="Copy id" /></div>
    <${Answer} of=${found}>${(message) => html`<${Whole} message=${message} />`}</${Answer}>`;
}

function Whole({ message }) {
  const { queue, partition, offset } = message;
  const headers = Object.entries(message.headers ?? {});
  const parent = message.headers?.["penstock-parent"];
  const did = message.headers?.["penstock-did"];
  return html`<div class="grid two">
    <${Panel} title="Value" id="value"><div class="body"><${Value} message=${message} /></div></${Panel}>
    <div class="stack">
      <${Panel} title="Place" id="place"><div class="body"><${Facts} rows=${[
        ["Queue", html`<a href=${url("/queue", { queue })}>${queue}</a>`], ["Partition", html`<a href=${url("/messages", { queue, partition })}>${partition}</a>`],
        ["Offset", html`<a href=${url("/messages", { queue, partition, start: Math.max(0, offset - 10) })}>${number(offset)}</a>`],
        ["Time", html`${moment(message.timestamp)} <span class="muted">(<${Ago} at=${message.timestamp} />)</span>`], ["Key", message.key ?? html`<span class="muted">none</span>`],
        parent && ["Came from", ID.test(parent) ? html`<a class="mono" href=${url("/message", { id: parent })}>${parent}</a>` : parent],
        did && ID.test(did) && did !== parent && ["Entered as", html`<a class="mono" href=${url("/message", { id: did })}>${did}</a>`]]} /></div></${Panel}>
      <${Panel} title="Headers" id="headers"><div class="body">${headers.length ? html`<${Facts} rows=${headers.map(([name, value]) => [html`<code>${name}</code>`, html`<span class="mono">${value}</span>`])} />` : html`<span class="muted">none</span>`}</div></${Panel}>
    </div></div>
    <${States} message=${message} /><${Children} id=${message.id} />`;
}

function States({ message }) {
  const states = useResource((signal) => api.messageState(message.id, signal), message.id);
  return html`<${Panel} title="What it is to each group" id="states"><${Answer} of=${states} empty=${html`<${Empty} title="No group reads this queue" />`}>${(rows) => html`<${Table} id="s" label="groups" filter=${false} rows=${rows} rowKey=${(row) => row.group ?? ""}
    columns=${[
      { key: "group", label: "Group", class: "name", cell: (row) => html`<a href=${url("/queue", { queue: message.queue, tab: "groups", group: row.group })}>${row.group}</a>` },
      { key: "state", label: "State", cell: (row) => (row.state ? html`<${State} value=${row.state} />` : html`<span class="muted">not for this group</span>`) },
      { key: "attempt", label: "Attempts", num: true }, { key: "consumer", label: "Consumer", class: "name", cell: (row) => row.consumer ?? "–" },
      { key: "due_at", label: "Until", cell: (row) => html`<${Ago} at=${row.due_at} />` },
      { key: "progress", label: "Progress", cell: (row) => (row.progress === null ? row.note ?? "–" : html`<div class="row"><${Meter} share=${row.progress / 100} label="progress" />${number(row.progress)} % ${row.note}</div>`) },
      { key: "error", label: "Error", class: "clip", cell: (row) => (row.error ? html`<span class="bad" title=${row.error}>${row.error}</span>` : row.dead_letter_id ? html`<a class="bad" href=${url("/dead-letters", { queue: message.queue, group: row.group })}>dead letter</a>` : "–") },
      may("admin", message.queue) && { key: "act", label: "", class: "actions", cell: (row) => ["waiting", "in flight", "delayed", "retrying"].includes(row.state) && !row.cancelled_at && html`<${Do} class="small danger" run=${() => cancel(message, row.group, states.refresh)}>Cancel…</${Do}>` },
    ]} />`}</${Answer}></${Panel}>`;
}

async function cancel(message, group, refresh) {
  const agreed = await confirm({ title: "Cancel this message?", text: `It will not be delivered to ${group}. A handler that runs is told.`, count: 1, hits: [["group", group], ["queue", message.queue], ["id", message.id]], button: "Cancel the message" });
  if (!agreed) return;
  const done = await api.cancelMessages([message.id], group);
  toast(done.cancelled.length ? "The message was cancelled." : "It was too late: the message is done.");
  refresh();
}

function Children({ id }) {
  const found = useResource((signal) => api.children(id, signal), id, { every: 0 });
  return html`<${Panel} title="What it caused" id="children"><${Answer} of=${found}>${(data) => (data.messages.length === 0
    ? html`<${Empty} title="Nothing found">${data.partitions ? `Looked at ${plural(data.looked, "message")} of ${plural(data.partitions, "partition")} that the actions of its queue push to.` : "No action of its queue pushes to another queue."}</${Empty}>`
    : html`<${Table} id="c" label="children" filter=${false} rows=${data.messages} rowKey=${(row) => row.id} columns=${[
      { key: "queue", label: "Queue", class: "name" }, { key: "partition", label: "Partition", class: "name" },
      { key: "offset", label: "Offset", num: true, value: (row) => row.offset, cell: (row) => html`<a href=${url("/message", { id: row.id })}>${number(row.offset)}</a>` },
      { key: "timestamp", label: "When", value: (row) => -Date.parse(row.timestamp), cell: (row) => html`<${Ago} at=${row.timestamp} />` },
      { key: "value", label: "Value", class: "clip", value: preview, cell: (row) => html`<a class="mono" href=${url("/message", { id: row.id })}>${preview(row)}</a>` }]} />`)}</${Answer}></${Panel}>`;
}
