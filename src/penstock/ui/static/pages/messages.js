// Browse messages: by partition and offset or time, by key, by a filter of fields that the server runs within bounds.
// Looking never takes: nothing here claims a message.
import { html, useEffect, useRef, useState } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { outline } from "../lib/figures.js";
import { useResource, visible } from "../lib/live.js";
import { change, go, parameter, url } from "../lib/router.js";
import { may } from "../lib/session.js";
import { number, plural } from "../lib/format.js";
import { Ago, Answer, Empty, Panel } from "../parts/basics.js";
import { Table } from "../parts/table.js";
import { SavedViews } from "../parts/saved.js";
import { preview } from "../parts/json_viewer.js";
import { show, close } from "../parts/dialog.js";
import { pushDialog } from "./push_message.js";

const TAIL_SHOWN = 200;
const TAIL_STOPS = 5000;
const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

export function Messages() {
  const known = (outline.value ?? []).map((queue) => queue.name);
  const queue = parameter("queue") || known[0] || "";
  const queues = queue && !known.includes(queue) ? [...known, queue] : known;
  const tail = parameter("tail") === "on";
  if (outline.value && queues.length === 0) {
    return html`<div class="title"><h1>Messages</h1></div><${Panel}><${Empty} title="No messages yet" command=${'penstock push orders \'{"id": 1}\''}>The first push makes a queue.</${Empty}></${Panel}>`;
  }
  return html`<div class="title"><h1>Messages</h1><div class="actions"><${SavedViews} />
      ${queue && html`<button aria-pressed=${tail} onClick=${() => change({ tail: tail ? null : "on", start: null, before: null, time: null })}>Live tail</button>`}
      ${queue && may("push", queue) && html`<button onClick=${() => pushDialog(queue)}>Push a test message…</button>`}</div></div>
    <${Form} key=${`${queue}|${parameter("partition")}|${parameter("key")}|${parameter("filter")}|${parameter("start")}|${parameter("time")}`} queues=${queues} queue=${queue} />
    ${queue && (tail ? html`<${Tail} key=${[queue, parameter("partition"), parameter("key"), parameter("filter")].join("\u0000")} queue=${queue} />` : html`<${Page} queue=${queue} />`)}`;
}

// Queues come every few seconds, and draw this again: `defaultValue` leaves alone what somebody types meanwhile.
function Form({ queues, queue }) {
  const submit = (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.target));
    if (ID.test(given.find.trim())) { go(url("/message", { id: given.find.trim() })); return; }
    change({ queue: given.queue, partition: given.partition, key: given.key, filter: given.find, start: given.start, time: given.time && new Date(given.time).toISOString(), before: null }, { replace: false });
  };
  const time = parameter("time");
  const local = time && !Number.isNaN(Date.parse(time)) ? new Date(new Date(time).getTime() - new Date(time).getTimezoneOffset() * 60000).toISOString().slice(0, 19) : "";
  return html`<form class="panel" onSubmit=${submit}><div class="body"><div class="row">
      <label class="field">Queue<select name="queue" onChange=${(event) => change({ queue: event.target.value, partition: null, key: null, filter: null, start: null, before: null, time: null })}>${queues.map((each) => html`<option value=${each} selected=${each === queue}>${each}</option>`)}</select></label>
      <label class="field">Partition<input name="partition" defaultValue=${parameter("partition")} placeholder="all" spellcheck=${false} /></label>
      <label class="field">From offset<input name="start" type="number" min="0" defaultValue=${parameter("start")} placeholder="newest" /></label>
      <label class="field">From time<input name="time" type="datetime-local" step="1" defaultValue=${local} /></label>
      <label class="field">Key<input name="key" defaultValue=${parameter("key")} spellcheck=${false} /></label></div>
    <div class="row"><input class="grow" type="search" name="find" data-filter aria-label="Filter by fields, or a message id" placeholder="customer.id = 42 status != done “text anywhere”, or a message id" defaultValue=${parameter("filter")} spellcheck=${false} />
      <button class="primary" type="submit">Find</button><button type="button" class="plain" onClick=${filterHelp}>How to filter</button></div></div></form>`;
}

function filterHelp() {
  const rows = [["status = failed", "a field of the JSON value; quote a text with spaces"], ["customer.id >= 42", "a field within a field; numbers are compared exactly"], ["items.0.sku != \"A 1\"", "the first item of a list"],
    ["name ~ smith", "contains, in any case"], ["@key = c-17", "the key of the message"], ["@header.source = web", "a header"], ["\"late delivery\"", "a text anywhere in the value"]];
  return show(html`<header><h2 id="dialog-title">Filter messages</h2></header><div class="body"><p class="muted">All terms must match. The server looks at 5,000 messages at most for each page, or at 32 MiB of them, and says so.</p>
    <dl class="facts">${rows.map(([example, meaning]) => html`<dt><code>${example}</code></dt><dd>${meaning}</dd>`)}</dl></div><footer><button type="button" autofocus onClick=${() => close()}>Close</button></footer>`);
}

const asked = () => ({ partition: parameter("partition"), key: parameter("key"), filter: parameter("filter"), start: parameter("start"), before: parameter("before"), time: parameter("time") });

function Page({ queue }) {
  const query = asked();
  const found = useResource((signal) => api.browse(queue, query, signal), JSON.stringify([queue, query]), { every: query.start || query.before || query.time || query.filter ? 0 : 10000 });
  return html`<${Panel}><${Answer} of=${found}>${(data) => html`<${Rows} rows=${data.messages} server=${pager(data, query)} queue=${queue}
    empty=${html`<${Empty} title=${query.filter || query.key ? "Nothing matches" : "Nothing here"}>${said(data)}</${Empty}>`} />`}</${Answer}></${Panel}>`;
}

function said(data) {
  const where = data.partition ? `of partition ${data.partition}${data.head !== null && data.head !== undefined ? `, which has offsets ${number(data.floor)} to ${number(data.head)}` : ""}` : `in the newest partitions of ${number(data.partitions)}`;
  return `Looked at ${plural(data.looked, "message")} ${where}.`;
}

function pager(data) {
  const turn = (parameters) => () => change({ start: null, before: null, time: null, ...parameters }, { replace: false });
  return {
    searched: true, note: `${number(data.messages.length)} shown. ${said(data)}`, nextLabel: "Older", previousLabel: "Newer",
    next: data.older ? turn({ before: data.older }) : null, previous: data.newer !== null && data.newer !== undefined ? turn({ start: data.newer }) : null,
  };
}

function Rows({ rows, server, empty, queue }) {
  if (rows.length === 0 && !server.next && !server.previous) return empty;
  return html`<${Table} id="m" label="messages" filter=${false} rows=${rows} server=${server} rowKey=${(row) => row.id} columns=${[
    { key: "timestamp", label: "When", cell: (row) => html`<${Ago} at=${row.timestamp} />` },
    { key: "partition", label: "Partition", class: "name", cell: (row) => html`<a href=${url("/messages", { queue, partition: row.partition })}>${row.partition}</a>` },
    { key: "offset", label: "Offset", num: true, cell: (row) => html`<a href=${url("/message", { id: row.id })}>${number(row.offset)}</a>` },
    { key: "key", label: "Key", class: "clip", cell: (row) => row.key ?? html`<span class="muted">–</span>` },
    { key: "value", label: "Value", class: "clip", cell: (row) => html`<a class="mono" href=${url("/message", { id: row.id })} title="Show all of it">${preview(row)}</a>` },
    { key: "headers", label: "Headers", num: true, cell: (row) => (row.headers ? number(Object.keys(row.headers).length) : "0") },
  ]} />`;
}

// Follows the newest messages; it stops by itself, so that a forgotten window does not ask for ever.
function Tail({ queue }) {
  const [shown, setShown] = useState([]);
  const [state, setState] = useState({ seen: 0, missed: false, error: null });
  const known = useRef(new Set());
  const begun = useRef(false);
  const count = useRef(0);
  useEffect(() => {
    let ended = false;
    let timer = null;
    const controller = new AbortController();
    const run = async () => {
      if (!visible.value) { timer = setTimeout(run, 1000); return; }
      const began = performance.now();
      try {
        const data = await api.browse(queue, { partition: parameter("partition"), key: parameter("key"), filter: parameter("filter"), limit: 200, look: 1000 }, controller.signal);
        if (ended) return;
        const first = !begun.current;
        begun.current = true;
        const fresh = data.messages.filter((each) => !known.current.has(each.id)).slice(0, first ? 20 : undefined);
        for (const each of data.messages) known.current.add(each.id);
        count.current += fresh.length;
        setState((before) => ({ seen: count.current, missed: before.missed || (!first && fresh.length === 200), error: null }));
        if (fresh.length) setShown((before) => [...fresh, ...before].slice(0, TAIL_SHOWN));
      } catch (error) { if (ended || error.name === "AbortError") return; setState((before) => ({ ...before, error })); }
      if (count.current < TAIL_STOPS && !ended) timer = setTimeout(run, Math.max(1000, (performance.now() - began) * 20));
    };
    run();
    return () => { ended = true; clearTimeout(timer); controller.abort(); };
  }, [queue]);
  return html`<${Panel} end=${html`<span class="muted" role="status">${state.seen >= TAIL_STOPS ? `Stopped after ${number(TAIL_STOPS)} messages.` : `Following; ${plural(state.seen, "message")} so far, the newest ${TAIL_SHOWN} are shown.`}${state.missed ? " More came than can be shown: some were left out." : ""}${state.error ? ` ${state.error.message}` : ""}</span>`}>
    <${Rows} rows=${shown} queue=${queue} server=${{ searched: true }} empty=${html`<${Empty} title="Waiting for messages" />`} /></${Panel}>`;
}

