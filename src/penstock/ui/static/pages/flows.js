// The graph of queues, flows, actions and what they push to; the flows with their state and errors.
import { html, useEffect, useState } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { outline } from "../lib/figures.js";
import { vendor } from "../lib/late.js";
import { useResource } from "../lib/live.js";
import { url } from "../lib/router.js";
import { may } from "../lib/session.js";
import { number, rate, short } from "../lib/format.js";
import { Ago, Answer, Do, Empty, Panel, Rate, State } from "../parts/basics.js";
import { Table } from "../parts/table.js";
import { toast } from "../parts/toast.js";
import { ratesOf } from "./rates.js";

export function Flows() {
  const flows = useResource((signal) => api.flows(signal), "flows");
  const actions = useResource((signal) => api.actions(signal), "actions", { every: 15000 });
  const rates = useResource((signal) => api.rates(signal), "rates", { every: 10000 });
  const byGroup = rates.data && ratesOf(rates.data).groups;
  // Flows on Spark say their own rate. Of one whose actions workers run it is what its groups have done.
  const rateOf = (flow) => {
    const done = (actions.data ?? []).filter((each) => each.flow === flow.name && each.queue).map((each) => byGroup?.get(`${each.queue}\u0000${each.flow}.${each.action}`)?.acked ?? null);
    return done.length === 0 ? flow.rows_per_second : done.every((each) => each === null) ? null : done.reduce((total, each) => total + (each ?? 0), 0);
  };
  return html`<div class="title"><h1>Flows</h1></div>
    <${Panel} title="Graph" id="graph">${flows.data && actions.data ? html`<${Graph} flows=${flows.data} actions=${actions.data} rates=${rates.data} />` : html`<${Answer} of=${flows.error ? flows : actions}>${() => null}</${Answer}>`}</${Panel}>
    <${Panel} title="Flows" id="flows"><${Answer} of=${flows} empty=${html`<${Empty} title="No flows" command="penstock run flows.py">Flows that run on Spark, or whose actions workers run, appear here.</${Empty}>`}>${(rows) => html`<${Table} id="f" label="flows" rows=${rows} rowKey=${(row) => row.name} sort="name" columns=${[
      { key: "name", label: "Flow", class: "name", cell: (row) => html`<strong>${row.name}</strong>${row.error && html`<div class="bad">${row.error}</div>`}` }, { key: "flow_type", label: "Type", cell: (row) => html`<span class="muted">${row.flow_type}</span>` },
      { key: "state", label: "State", cell: (row) => html`<${State} value=${row.paused ? "paused" : row.state} />` }, { key: "lag", label: "Lag", num: true, cell: (row) => number(row.lag) }, { key: "cold", label: "Cold", num: true, cell: (row) => number(row.cold) },
      { key: "rows_per_second", label: "Rate", num: true, value: rateOf, cell: (row) => html`<${Rate} value=${rateOf(row)} />` }, { key: "oldest_since", label: "Oldest", num: true, cell: (row) => html`<${Ago} at=${row.oldest_since} bare none="none" />` },
      { key: "epoch_at", label: "Last epoch", num: true, cell: (row) => html`<${Ago} at=${row.epoch_at} />` }, { key: "dead_letters", label: "Dead letters", num: true, cell: (row) => number(row.dead_letters) },
      may("admin", null) && { key: "act", label: "", class: "actions", cell: (row) => html`<${Do} class="small" run=${async () => { await api.pauseFlow(row.name, !row.paused); toast(row.paused ? `${row.name} goes on.` : `${row.name} is paused.`); flows.refresh(); }}>${row.paused ? "Resume" : "Pause"}</${Do}>` }]} />`}</${Answer}></${Panel}>
    <${Panel} title="Actions" id="actions"><${Answer} of=${actions} empty=${html`<${Empty} title="No actions" command="penstock worker app.py">Actions register when a worker runs them.</${Empty}>`}>${(rows) => html`<${Table} id="a" label="actions" rows=${rows} rowKey=${(row) => `${row.flow}\u0000${row.action}`} sort="flow" columns=${[
      { key: "flow", label: "Flow", class: "name" }, { key: "action", label: "Action", class: "name" }, { key: "action_class", label: "Action Class", class: "name", cell: (row) => html`<span class="mono" title="Plugin: ${row.plugin}">${row.action_class}</span>` },
      { key: "queue", label: "Takes from", class: "name", cell: (row) => (row.queue ? html`<a href=${url("/queue", { queue: row.queue })}>${row.queue}</a>` : "–") }, { key: "output", label: "Pushes to", class: "name", cell: (row) => (row.output ? html`<a href=${url("/queue", { queue: row.output })}>${row.output}</a>` : "–") },
      { key: "warm", label: "Warm", num: true, cell: (row) => number(row.warm) }, { key: "cold", label: "Cold", num: true, cell: (row) => html`<span class=${row.cold ? "cold" : ""}>${number(row.cold)}</span>` }]} />`}</${Answer}></${Panel}>`;
}

// Nodes are queues, and flows or actions that read one and push to another. An edge into a worker has its lag and rate.
function shape(flows, actions, rates) {
  const nodes = new Map();
  const edges = [];
  const queue = (name) => { nodes.set(`q ${name}`, { id: `q ${name}`, kind: "queue", label: name, to: url("/queue", { queue: name }) }); return `q ${name}`; };
  const by = rates && ratesOf(rates);
  const groupOf = (name, group) => outline.value?.find((each) => each.name === name)?.groups.find((each) => each.name === group);
  // A flow whose actions workers run is drawn as its actions.
  const drawn = new Set(actions.filter((each) => each.queue).map((each) => each.flow));
  for (const flow of flows.filter((each) => !drawn.has(each.name))) {
    const id = `f ${flow.name}`;
    nodes.set(id, { id, kind: "flow", label: flow.name, note: flow.paused ? "paused" : flow.state, bad: ["failed", "lost", "backing off"].includes(flow.state), paused: flow.paused, to: "/flows" });
    for (const source of flow.sources) edges.push({ from: queue(source), to: id, lag: flow.lag, rate: flow.rows_per_second });
    for (const output of flow.outputs) edges.push({ from: id, to: queue(output) });
  }
  for (const action of actions.filter((each) => each.queue)) {
    const id = `a ${action.flow}\u0000${action.action}`;
    const group = groupOf(action.queue, `${action.flow}.${action.action}`);
    nodes.set(id, { id, kind: "flow", label: action.action, note: action.flow, bad: !!group?.breaker && group.breaker !== "closed", paused: group?.paused, to: url("/queue", { queue: action.queue, tab: "groups", group: `${action.flow}.${action.action}` }) });
    edges.push({ from: queue(action.queue), to: id, lag: group?.lag ?? action.warm + action.cold, rate: by?.groups.get(`${action.queue}\u0000${action.flow}.${action.action}`)?.acked ?? null });
    if (action.output) edges.push({ from: id, to: queue(action.output) });
  }
  return { nodes: [...nodes.values()], edges };
}

function Graph({ flows, actions, rates }) {
  const { nodes, edges } = shape(flows, actions, rates);
  const [placed, setPlaced] = useState(null);
  const form = JSON.stringify([nodes.map((node) => node.id), edges.map((edge) => [edge.from, edge.to])]);
  useEffect(() => {
    let ended = false;
    const place = async () => {
      const dagre = await vendor("dagre");
      const graph = new dagre.Graph();
      graph.setGraph({ rankdir: matchMedia("(max-width: 760px)").matches ? "TB" : "LR", nodesep: 24, ranksep: 96, marginx: 16, marginy: 16 });
      graph.setDefaultEdgeLabel(() => ({}));
      for (const node of nodes) graph.setNode(node.id, { width: Math.min(240, 28 + 7.2 * Math.max(node.label.length, (node.note ?? "").length)), height: node.note ? 46 : 34 });
      for (const edge of edges) graph.setEdge(edge.from, edge.to);
      dagre.layout(graph);
      if (!ended) setPlaced({ form, graph });
    };
    if (nodes.length) place();
    return () => { ended = true; };
  }, [form]);
  if (!nodes.length) return html`<${Empty} title="No flows or actions yet" command="penstock worker app.py">What is registered is drawn here.</${Empty}>`;
  if (placed?.form !== form) return html`<div class="skeleton" role="status">Drawing…</div>`;
  const { width, height } = placed.graph.graph();
  return html`<div class="graph"><svg width=${width} height=${height} viewBox="0 0 ${width} ${height}" role="group" aria-label="Graph of ${nodes.length} queues and actions; the tables below say the same">
    <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" /></marker></defs>
    ${edges.map((edge) => { const { points } = placed.graph.edge(edge.from, edge.to); const middle = points[Math.floor(points.length / 2)];
      return html`<g key=${edge.from + edge.to}><path class=${edge.rate > 0 ? "busy" : ""} marker-end="url(#arrow)" d=${`M${points.map((point) => `${point.x.toFixed(1)} ${point.y.toFixed(1)}`).join("L")}`} />
        ${edge.lag !== undefined && html`<text class="small" text-anchor="middle" x=${middle.x} y=${middle.y - 6}>${short(edge.lag)} waiting</text>${edge.rate !== null && html`<text class="small" text-anchor="middle" x=${middle.x} y=${middle.y + 14}>${rate(edge.rate)}</text>`}`}</g>`; })}
    ${nodes.map((node) => { const at = placed.graph.node(node.id); const room = Math.floor((at.width - 18) / 7);
      return html`<a key=${node.id} href=${node.to} class="${node.kind} ${node.bad ? "bad" : ""} ${node.paused ? "paused" : ""}"><rect x=${at.x - at.width / 2} y=${at.y - at.height / 2} width=${at.width} height=${at.height} rx=${node.kind === "queue" ? at.height / 2 : 6} />
        <text text-anchor="middle" x=${at.x} y=${at.y + (node.note ? -3 : 4)}>${node.label.length > room ? `${node.label.slice(0, room - 1)}…` : node.label}</text>${node.note && html`<text class="small" text-anchor="middle" x=${at.x} y=${at.y + 13}>${node.note}</text>`}</a>`; })}
  </svg></div>`;
}
