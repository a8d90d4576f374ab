// Partitions of a queue: a map of where lag sits, and a table that the server searches, sorts and pages.
import { html } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { useResource } from "../lib/live.js";
import { change, parameter, url } from "../lib/router.js";
import { may } from "../lib/session.js";
import { number, plural } from "../lib/format.js";
import { Ago, Answer, Do, Empty, Panel, State, Unknown } from "../parts/basics.js";
import { Table } from "../parts/table.js";
import { confirm } from "../parts/dialog.js";
import { toast } from "../parts/toast.js";
import { SavedViews } from "../parts/saved.js";

const PAGE = 50;

export function Partitions({ queue }) {
  const groups = queue.groups.map((group) => group.name);
  // The group that lags most is what somebody comes for.
  const most = [...queue.groups].sort((a, b) => (b.lag ?? 0) - (a.lag ?? 0))[0]?.name ?? "";
  const group = groups.includes(parameter("group")) ? parameter("group") : most;
  const search = parameter("search");
  const sort = parameter("order", group ? "lag" : "name");
  const partition = parameter("partition");
  // By name a page begins after a name, and otherwise after so many.
  const at = parameter("at");
  const skip = Number(at) || 0;
  const query = { group, search, sort, limit: PAGE, ...(sort === "name" ? { after: at } : { skip }) };
  const found = useResource((signal) => api.partitions(queue.name, query, signal), [queue.name, group, search, sort, at].join("\u0000"));
  const move = (next) => () => change({ at: next || null }, { replace: false });
  const server = (data) => {
    const full = data.partitions.length === PAGE;
    const cursor = sort === "name" ? data.looked_to : full ? skip + PAGE : null;
    return {
      searched: true, note: note(data, sort, search), previousLabel: sort === "name" ? "First" : "Previous",
      next: cursor !== null && cursor !== undefined ? move(cursor) : null, previous: at ? move(sort === "name" ? null : Math.max(0, skip - PAGE)) : null,
    };
  };
  return html`${group && html`<${Heat} queue=${queue.name} group=${group} />`}
    ${partition && html`<${History} queue=${queue.name} group=${group} partition=${partition} />`}
    <${Panel} title="Partitions" id="partitions" end=${html`<${SavedViews} />
      <input class="grow" type="search" data-filter aria-label="Search partitions by a part of the name" placeholder="Search by a part of the name…" value=${search} onInput=${(event) => change({ search: event.target.value, at: null })} />
      <select aria-label="Group" value=${group} onChange=${(event) => change({ group: event.target.value, at: null })}>${groups.length ? groups.map((each) => html`<option value=${each} selected=${each === group}>group ${each}</option>`) : html`<option value="">no groups</option>`}</select>
      <select aria-label="Order" value=${sort} onChange=${(event) => change({ order: event.target.value, at: null })}>
        ${[...(group ? [["lag", "by lag"]] : []), ["name", "by name"], ["newest", "by newest message"]].map(([value, label]) => html`<option value=${value} selected=${sort === value}>${label}</option>`)}</select>`}>
      <${Answer} of=${found}>${(data) => html`<${Table} id="p" label="partitions" filter=${false} rows=${data.partitions} server=${server(data)} rowKey=${(row) => row.partition_id} mark=${(row) => (row.name === partition ? "marked" : "")}
        columns=${[
          { key: "name", label: "Partition", class: "name", cell: (row) => html`<a href=${url("/queue", { queue: queue.name, group, search, order: parameter("order"), at, partition: row.name })}>${row.name}</a>` },
          { key: "lag", label: "Lag", num: true, cell: (row) => (row.lag === null ? html`<${Unknown} why=${group ? "the group has not begun it" : "no group"} />` : number(row.lag)) },
          { key: "state", label: "State", cell: (row) => (row.state ? html`<${State} value=${row.state} title=${row.last_error} />` : html`<${Unknown} />`) },
          { key: "attempt", label: "Attempt", num: true, cell: (row) => (row.attempt ? number(row.attempt) : "–") },
          { key: "head", label: "Messages", num: true, title: "From the first one that is kept to the newest", cell: (row) => number(row.head - row.floor) },
          { key: "span", label: "Offsets", num: true, cell: (row) => html`<span class="mono">${number(row.floor)} … ${number(row.head)}</span>` },
          { key: "newest_at", label: "Newest", num: true, cell: (row) => html`<${Ago} at=${row.newest_at} none="never" />` },
          { key: "open", label: "", class: "actions", cell: (row) => html`<a href=${url("/messages", { queue: queue.name, partition: row.name })}>Messages</a>
            ${may("admin", queue.name) && html` <${Do} class="small plain" run=${() => purge(queue.name, row)}>Purge…</${Do}>`}` },
        ]} />`}</${Answer}>
    </${Panel}>`;
}

function note(data, sort, search) {
  const shown = `${number(data.partitions.length)} shown`;
  if (sort === "lag") return `${shown}; ${plural(data.looked, "partition")} with work ${search ? "match" : "looked at"}`;
  return `${shown}; looked at ${plural(data.looked, "partition")}${data.looked_to ? ", there are more" : ", to the end"}`;
}

function Heat({ queue, group }) {
  const map = useResource((signal) => api.lagMap(queue, { group, cells: 120 }, signal), `${queue}\u0000${group}`, { every: 10000 });
  return html`<${Panel} title="Where the lag of ${group} sits" id="heat"><${Answer} of=${map}>${(cells) => {
    if (!cells.length) return html`<${Empty} title="No lag">The group ${group} has nothing to do.</${Empty}>`;
    const top = Math.max(...cells.map((cell) => cell.worst_lag));
    const level = (lag) => (lag === top && top >= 100 ? 5 : Math.min(4, Math.max(1, Math.ceil((lag / top) * 4))));
    return html`<div class="body"><div class="heat">${cells.map((cell) => html`<button type="button" key=${cell.cell} class="h${level(cell.worst_lag)}" aria-label="${plural(cell.partitions, "partition")}, lag ${number(cell.lag)}, most in ${cell.worst}"
      title="${plural(cell.partitions, "partition")}, lag ${number(cell.lag)}; most in ${cell.worst}: ${number(cell.worst_lag)}" onClick=${() => change({ partition: cell.worst, search: cell.partitions === 1 ? cell.worst : parameter("search"), at: null })}></button>`)}</div>
      <span class="muted">Each cell stands for ${plural(cells[0].partitions, "partition")} with lag, in the order in which they were created; darker and warmer is more, at most ${number(top)}.</span></div>`;
  }}</${Answer}></${Panel}>`;
}

function History({ queue, group, partition }) {
  const history = useResource((signal) => (group ? api.history(queue, group, partition, signal) : Promise.resolve([])), `${queue}\u0000${group}\u0000${partition}`);
  return html`<${Panel} title="What happened to ${partition} in ${group || "no group"}" id="history" end=${html`<a class="button" href=${url("/messages", { queue, partition })}>Messages</a><button onClick=${() => change({ partition: null })}>Close</button>`}>
    <${Answer} of=${history} empty=${html`<${Empty} title="Nothing yet">The group has not begun this partition.</${Empty}>`}>${(rows) => html`<${Table} id="h" label="history" filter=${false} rows=${rows} rowKey=${(row) => row.version}
      columns=${[
        { key: "at", label: "When", value: (row) => -Date.parse(row.at), cell: (row) => html`<${Ago} at=${row.at} />` },
        { key: "state", label: "State", cell: (row) => html`<${State} value=${row.state} />` },
        { key: "committed", label: "Committed", num: true, cell: (row) => number(row.committed) },
        { key: "claimed_to", label: "Claimed to", num: true, cell: (row) => number(row.claimed_to) },
        { key: "attempt", label: "Attempt", num: true },
        { key: "consumer", label: "Consumer", class: "name", cell: (row) => row.consumer ?? "–" },
        { key: "error", label: "Error", class: "clip", cell: (row) => (row.error ? html`<span class="bad" title=${row.error}>${row.error}</span>` : "–") },
      ]} />`}</${Answer}></${Panel}>`;
}

async function purge(queue, row) {
  const agreed = await confirm({
    title: "Purge this partition?", text: "All of its messages are dropped, those that wait included. This cannot be undone.",
    count: row.head - row.floor, hits: [["queue", queue], ["partition", row.name]], button: "Purge",
  });
  if (!agreed) return;
  const done = await api.purge(queue, row.name);
  toast(`${plural(done.messages, "message")} of ${row.name} ${done.messages === 1 ? "was" : "were"} dropped.`);
}
