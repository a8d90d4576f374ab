// What waits for each action, warm and cold, and what runs.
import { html, useState } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { useResource } from "../lib/live.js";
import { change, parameter, url } from "../lib/router.js";
import { duration, number } from "../lib/format.js";
import { Ago, Answer, Clock, Empty, Lasts, Meter, Panel, Rate, Unknown } from "../parts/basics.js";
import { Sparkline } from "../parts/charts.js";
import { Table } from "../parts/table.js";
import { SavedViews } from "../parts/saved.js";
import { Windows } from "../parts/windows.js";
import { ratesOf } from "./rates.js";

const LONG = 5 * 60 * 1000;
const keyOf = (row) => [row.flowName, row.actionName, row.actionClass].join("\u0000");

export function QueueMetrics() {
  const queues = useResource((signal) => api.detailed(signal), "detailed");
  const work = useResource((signal) => api.work(signal), "work");
  const plugins = useResource((signal) => api.plugins(signal), "plugins", { every: 60000 });
  const rates = useResource((signal) => api.rates(signal), "rates", { every: 10000 });
  const grouped = parameter("group") === "class";
  return html`<div class="title"><h1>Queue metrics</h1><div class="actions"><${SavedViews} />
      <label class="check"><input type="checkbox" checked=${grouped} onChange=${(event) => change({ group: event.target.checked ? "class" : null })} /> Group by Action Class</label></div></div>
    <${Panel} title="Action queues" id="queues"><${Answer} of=${queues}>${(data) => html`<${Queues} data=${data} work=${work.data ?? []} plugins=${plugins.data ?? {}} rates=${rates.data} grouped=${grouped} />`}</${Answer}></${Panel}>
    <${Running} /><${Windows} />`;
}

function rowsOf(data, work, rates) {
  const rows = new Map();
  const at = (entry) => {
    const key = keyOf(entry);
    if (!rows.has(key)) rows.set(key, { flowName: entry.flowName, flowType: entry.flowType, actionName: entry.actionName, actionClass: entry.actionClass, warm: 0, cold: 0, oldest: null, lags: null, depths: null, rate: null });
    return rows.get(key);
  };
  const older = (a, b) => (!a ? b : !b ? a : a < b ? a : b);
  // What runs dry stays in the list, with zeros, as long as it is sampled.
  for (const each of work) {
    const row = at({ flowName: each.flow ?? each.queue, flowType: each.flow_type, actionName: each.action ?? each.group, actionClass: each.action_class ?? each.queue });
    Object.assign(row, { lags: each.lags, queue: each.queue, group: each.group, rate: rates?.groups.get(`${each.queue}\u0000${each.group}`)?.acked ?? null });
  }
  for (const each of data.warmQueues) { const row = at(each); row.warm += each.count; row.oldest = older(row.oldest, each.oldestQueuedAt); }
  for (const each of data.coldQueues) { const row = at(each); row.cold += each.count; row.oldest = older(row.oldest, each.oldestQueuedAt); }
  return [...rows.values()].map((row) => ({ ...row, total: row.warm + row.cold, drain: drain(row) }));
}

// How long what waits takes at the present rate, if nothing more comes.
function drain(row) {
  const total = row.warm + row.cold;
  return total === 0 ? 0 : row.rate > 0 ? total / row.rate : null;
}

function byClass(rows) {
  const classes = new Map();
  for (const row of rows) {
    const known = classes.get(row.actionClass) ?? { actionClass: row.actionClass, flows: new Set(), warm: 0, cold: 0, total: 0, oldest: null, rate: null, lags: null };
    known.flows.add(row.flowName);
    for (const name of ["warm", "cold", "total"]) known[name] += row[name];
    if (row.oldest && (!known.oldest || row.oldest < known.oldest)) known.oldest = row.oldest;
    if (row.rate !== null) known.rate = (known.rate ?? 0) + row.rate;
    classes.set(row.actionClass, known);
  }
  return [...classes.values()].map((row) => ({ ...row, drain: drain(row) }));
}

function Queues({ data, work, plugins, rates, grouped }) {
  const rows = rowsOf(data, work, rates && ratesOf(rates));
  const shown = grouped ? byClass(rows) : rows;
  const columns = [
    !grouped && { key: "flowName", label: "Flow", class: "name" },
    !grouped && { key: "flowType", label: "Type", cell: (row) => html`<span class="muted">${row.flowType}</span>` },
    !grouped && { key: "actionName", label: "Action", class: "name", cell: (row) => (row.queue ? html`<a href=${url("/queue", { queue: row.queue, tab: "groups", group: row.group })}>${row.actionName}</a>` : row.actionName) },
    { key: "actionClass", label: "Action Class", class: "name", cell: (row) => html`<span class="mono" title="Plugin: ${plugins[row.actionClass] ?? "unknown"}">${row.actionClass}</span>` },
    grouped && { key: "flows", label: "Flows", num: true, value: (row) => row.flows.size, cell: (row) => number(row.flows.size) },
    { key: "warm", label: "Warm", num: true, cell: (row) => number(row.warm) },
    { key: "cold", label: "Cold", num: true, cell: (row) => (row.cold > 0 && row.queue
      ? html`<a class="pill cold" href=${url("/queue", { queue: row.queue, group: row.group })} title="Show where they wait">${number(row.cold)}</a>`
      : row.cold > 0 ? html`<span class="pill cold">${number(row.cold)}</span>` : "0") },
    { key: "total", label: "Total", num: true, cell: (row) => html`<strong>${number(row.total)}</strong>` },
    { key: "oldest", label: "Oldest", num: true, value: (row) => (row.oldest ? -Date.parse(row.oldest) : null), cell: (row) => html`<${Ago} at=${row.oldest} bare none="none" />` },
    !grouped && { key: "trend", label: "Trend", cell: (row) => html`<${Sparkline} values=${row.lags} label="waiting" />` },
    { key: "rate", label: "Rate", num: true, cell: (row) => html`<${Rate} value=${row.rate} />` },
    { key: "drain", label: "Time to drain", num: true, title: "At the present rate, if nothing more comes", cell: (row) => (row.drain === null ? html`<${Unknown} why="nothing is being done" />` : row.drain === 0 ? "–" : duration(row.drain)) },
  ];
  return html`<${Table} id="q" label="action queues" rows=${shown} columns=${columns} sort="-total" rowKey=${grouped ? (row) => row.actionClass : keyOf}
    empty=${html`<${Empty} title="Nothing is queued for any action" command="penstock worker app.py">Register actions by running a worker.</${Empty}>`} />`;
}

function Running() {
  const [open, setOpen] = useState(parameter("running") === "open");
  const running = useResource((signal) => api.running(signal), "running", { every: 5000 });
  const tasks = useResource((signal) => api.tasks(signal), "tasks", { every: 5000, enabled: open });
  const found = running.data?.tasks ?? [];
  const details = new Map((tasks.data ?? []).map((task) => [`${task.did}\u0000${task.action}\u0000${task.worker}`, task]));
  const rows = found.map((task) => ({ ...task, ...more(details, task) })).sort((a, b) => b.runningForMs - a.runningForMs);
  const toggle = (event) => { setOpen(event.target.open); change({ running: event.target.open ? "open" : null }); };
  return html`<section class="panel"><details open=${open} onToggle=${toggle}>
    <summary>Running Tasks (${running.data ? number(found.length) : "–"})</summary>
    <${Answer} of=${running}>${() => html`<${Table} id="r" label="running tasks" rows=${rows} sort="-runningForMs" rowKey=${(task) => `${task.did}${task.actionName}${task.appName}${task.startTime}`}
      mark=${(task) => (task.runningForMs > LONG ? "late" : "")}
      empty=${html`<${Empty} title="Nothing is running">Tasks that take less than a few seconds may not be seen here.</${Empty}>`}
      columns=${[
        { key: "actionName", label: "Action", class: "name" },
        { key: "actionClass", label: "Action Class", class: "name", cell: (task) => html`<span class="mono">${task.actionClass}</span>` },
        { key: "did", label: "Message", cell: (task) => html`<a class="mono" href=${url("/message", { id: task.messageId ?? task.did })}>${task.did.slice(0, 13)}…</a>` },
        { key: "runningForMs", label: "Duration", num: true, cell: (task) => html`<span class=${task.runningForMs > LONG ? "warn" : ""}><${Lasts} seconds=${task.runningForMs / 1000} /></span>` },
        { key: "progress", label: "Progress", cell: (task) => (task.progress === null || task.progress === undefined ? html`<span class="muted">${task.text ?? "–"}</span>` : html`<div class="row"><${Meter} share=${task.progress / 100} label="progress" /><span>${number(task.progress)} %</span><span class="muted">${task.text}</span></div>`) },
        { key: "startTime", label: "Started", cell: (task) => html`<${Clock} at=${task.startTime} />` },
        { key: "appName", label: "Worker", class: "name", cell: (task) => task.appName ?? html`<${Unknown} />` },
      ]} />`}</${Answer}></details></section>`;
}

function more(details, task) {
  const known = details.get(`${task.did}\u0000${task.actionName}\u0000${task.appName}`);
  return { progress: known?.progress ?? null, text: known?.text ?? null, messageId: known?.message_id ?? null };
}
