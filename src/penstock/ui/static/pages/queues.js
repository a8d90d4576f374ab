// All queues, with what waits in them.
import { html } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { outline, outlineError, refresh } from "../lib/figures.js";
import { useResource } from "../lib/live.js";
import { go, url } from "../lib/router.js";
import { may } from "../lib/session.js";
import { letters, number } from "../lib/format.js";
import { Ago, Empty, Failure, Panel, Rate, State, Unknown } from "../parts/basics.js";
import { Table } from "../parts/table.js";
import { form } from "../parts/dialog.js";
import { SavedViews } from "../parts/saved.js";
import { Sparkline } from "../parts/charts.js";
import { ratesOf } from "./rates.js";

export function Queues() {
  const rates = useResource((signal) => api.rates(signal), "rates", { every: 10000 });
  const queues = outline.value;
  if (!queues) return outlineError.value ? html`<${Failure} error=${outlineError.value} />` : html`<div class="skeleton" role="status">Loading…</div>`;
  const byQueue = rates.data && ratesOf(rates.data).queues;
  const rows = queues.map((queue) => ({ ...queue, ...sums(queue.groups), rate: byQueue?.get(queue.name)?.pushed ?? null }));
  return html`<div class="title"><h1>Queues</h1><span class="sub">${number(rows.length)}</span>
      <div class="actions"><${SavedViews} />${may("admin") && html`<button onClick=${create}>New queue…</button>`}</div></div>
    <${Panel}><${Table} label="queues" rows=${rows} rowKey=${(row) => row.name} sort="name"
      empty=${html`<${Empty} title="No queues yet" command=${'penstock push orders \'{"id": 1}\''}>The first push makes one.</${Empty}>`}
      columns=${[
        { key: "name", label: "Queue", class: "name", cell: (row) => html`<a href=${url("/queue", { queue: row.name })}><strong>${row.name}</strong></a>
          ${row.settings.push_paused && html` <${State} value="paused" title="Pushes are refused" />`}${row.description && html`<div class="muted">${row.description}</div>`}` },
        { key: "groups", label: "Groups", num: true, value: (row) => row.groups.length, cell: (row) => (row.groups.length ? number(row.groups.length) : html`<span class="warn" title="Nobody reads it">0</span>`) },
        { key: "lag", label: "Lag", num: true, title: "All groups together", cell: (row) => (row.lag === null ? html`<${Unknown} why="not sampled yet" />` : number(row.lag)) },
        { key: "trend", label: "Last hour", cell: (row) => html`<${Sparkline} values=${row.lags} label="lag" />` },
        { key: "rate", label: "Pushed", num: true, cell: (row) => html`<${Rate} value=${row.rate} />` },
        { key: "oldest", label: "Oldest waiting", num: true, value: (row) => (row.oldest ? -Date.parse(row.oldest) : null), cell: (row) => html`<${Ago} at=${row.oldest} bare none="none" />` },
        { key: "dead", label: "Dead letters", num: true, cell: (row) => (row.dead ? html`<a class="bad" href=${url("/dead-letters", { queue: row.name })}>${letters(row.dead)}</a>` : "0") },
        { key: "created_at", label: "Created", num: true, value: (row) => Date.parse(row.created_at), cell: (row) => html`<${Ago} at=${row.created_at} />` },
        { key: "open", label: "", value: () => "", class: "actions", cell: (row) => html`<a href=${url("/messages", { queue: row.name })}>Messages</a>` },
      ].map((column) => (column.key === "open" ? { ...column, value: undefined } : column))} /></${Panel}>`;
}

function sums(groups) {
  const known = groups.filter((group) => group.lag !== null);
  // The largest group's past stands for the queue's.
  const largest = [...known].sort((a, b) => b.lag - a.lag)[0];
  return {
    lag: groups.length && !known.length ? null : known.reduce((total, group) => total + group.lag, 0), lags: largest?.lags ?? null,
    oldest: known.map((group) => group.oldest_at).filter(Boolean).sort()[0] ?? null, dead: groups.reduce((total, group) => total + group.dead_letters, 0),
  };
}

async function create() {
  const made = await form({
    title: "New queue", button: "Create", text: "A push makes a queue, too. Here you can do it before.",
    fields: [{ name: "name", label: "Name", required: true }, { name: "description", label: "Description" }],
    run: async ({ name, description }) => { await api.createQueue(name, description || null); return name; },
  });
  if (made) { refresh(); go(url("/queue", { queue: made })); }
}
