// Dead letters: grouped by reason, inspected with their traceback, redriven or discarded, all that match by the server.
import { html, useEffect, useState } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { outline, outlineError, refresh } from "../lib/figures.js";
import { useResource } from "../lib/live.js";
import { change, parameter, url } from "../lib/router.js";
import { may } from "../lib/session.js";
import { letters, moment, number } from "../lib/format.js";
import { Ago, Answer, Copy, Do, Empty, Facts, Failure, Meter, Panel } from "../parts/basics.js";
import { Table } from "../parts/table.js";
import { SavedViews } from "../parts/saved.js";
import { Value, preview } from "../parts/json_viewer.js";
import { close, confirm, show } from "../parts/dialog.js";
import { toast } from "../parts/toast.js";

const PAGE = 50;

export function DeadLetters() {
  const queues = (outline.value ?? []).map((queue) => ({ name: queue.name, letters: queue.groups.reduce((total, group) => total + group.dead_letters, 0) }));
  const wanted = parameter("queue");
  const some = queues.filter((queue) => queue.letters > 0).sort((a, b) => b.letters - a.letters);
  const queue = wanted || some[0]?.name || "";
  if (!outline.value) return outlineError.value ? html`<${Failure} error=${outlineError.value} />` : html`<div class="skeleton" role="status">Loading…</div>`;
  const shown = wanted && !some.some((each) => each.name === wanted) ? [...some, { name: wanted, letters: 0 }] : some;
  return html`<div class="title"><h1>Dead letters</h1><div class="actions"><${SavedViews} />
      ${shown.length > 0 && html`<select aria-label="Queue" onChange=${(event) => change({ queue: event.target.value, group: null, reason: null, after: null }, { replace: false })}>${shown.map((each) => html`<option value=${each.name} selected=${each.name === queue}>${each.name} (${letters(each.letters)})</option>`)}</select>`}</div></div>
    <${Jobs} />
    ${queue ? html`<${OfQueue} key=${queue} queue=${queue} />` : html`<${Panel}><${Empty} title="No dead letters">A message whose attempts are used up would be here, with its reason.</${Empty}></${Panel}>`}`;
}

function OfQueue({ queue }) {
  const group = parameter("group");
  const reason = parameter("reason");
  const after = parameter("after");
  const reasons = useResource((signal) => api.reasons(queue, { group }, signal), `${queue}\u0000${group}`);
  const letters = useResource((signal) => api.deadLetters(queue, { group, reason, after, limit: PAGE }, signal), `${queue}\u0000${group}\u0000${reason}\u0000${after}`);
  const matching = reasons.data?.filter((each) => !reason || each.reason === reason).reduce((total, each) => total + each.letters, 0) ?? null;
  const again = () => { reasons.refresh(); letters.refresh(); refresh(); };
  useEffect(() => { const listen = () => again(); addEventListener("penstock:letters", listen); return () => removeEventListener("penstock:letters", listen); });
  const filter = { ...(group ? { group } : {}), ...(reason ? { reason } : {}) };
  return html`<${Panel} title="By reason" id="reasons" end=${(group || reason) && html`<span class="muted">${[group && `group ${group}`, reason && `reason ${reason}`].filter(Boolean).join(", ")}</span><button onClick=${() => change({ group: null, reason: null, after: null })}>Show all</button>`}>
      <${Answer} of=${reasons} empty=${html`<${Empty} title="No dead letters in ${queue}">Nothing is left to do here.</${Empty}>`}>${(rows) => html`<${Table} id="r" label="reasons" filter=${rows.length > 10} rows=${rows} rowKey=${(row) => `${row.group}\u0000${row.reason}`} sort="-letters" mark=${(row) => (row.reason === reason && (!group || row.group === group) ? "marked" : "")} columns=${[
        { key: "reason", label: "Reason", class: "name", cell: (row) => html`<a href=${url("/dead-letters", { queue, group: row.group, reason: row.reason })}><strong>${row.reason}</strong></a>` }, { key: "group", label: "Group", class: "name" },
        { key: "letters", label: "Letters", num: true, cell: (row) => number(row.letters) }, { key: "first_died_at", label: "First", num: true, value: (row) => Date.parse(row.first_died_at), cell: (row) => html`<${Ago} at=${row.first_died_at} />` },
        { key: "last_died_at", label: "Last", num: true, value: (row) => Date.parse(row.last_died_at), cell: (row) => html`<${Ago} at=${row.last_died_at} />` }]} />`}</${Answer}></${Panel}>
    <${Panel} title="Letters" id="letters" end=${may("admin", queue) && matching !== 0 && html`<${Do} class="primary" run=${() => settleAll("redrive", queue, filter, matching)}>Redrive all that match…</${Do}><${Do} class="danger" run=${() => settleAll("discard", queue, filter, matching)}>Discard all that match…</${Do}>`}>
      <${Answer} of=${letters}>${(page) => html`<${Table} id="l" label="dead letters" filter=${false} rows=${page.items} rowKey=${(row) => row.id}
        server=${{ searched: true, note: `${number(page.items.length)} shown, the oldest first`, next: page.next ? () => change({ after: page.next }, { replace: false }) : null, previousLabel: "First", previous: after ? () => change({ after: null }, { replace: false }) : null }} columns=${[
        { key: "died_at", label: "Died", cell: (row) => html`<${Ago} at=${row.died_at} />` }, { key: "reason", label: "Reason", class: "name", cell: (row) => html`<button class="plain small" onClick=${() => inspect(queue, row, again)}>${row.reason}</button>` },
        { key: "last_error", label: "Last error", class: "clip", cell: (row) => html`<span title=${row.last_error ?? ""}>${row.last_error ?? "–"}</span>` }, { key: "group", label: "Group", class: "name" }, { key: "partition", label: "Place", class: "nowrap", cell: (row) => html`<a href=${url("/message", { id: row.message_id })}>${row.partition} : ${number(row.offset)}</a>` }, { key: "attempts", label: "Attempts", num: true }, { key: "value", label: "Value", class: "clip", cell: (row) => html`<span class="mono">${preview(row, 28)}</span>` },
        { key: "act", label: "", class: "actions", cell: (row) => html`<button class="small" onClick=${() => inspect(queue, row, again)}>Inspect</button>` }]} />`}</${Answer}></${Panel}>`;
}

function inspect(queue, letter, again) {
  const discard = async () => {
    const agreed = await confirm({ title: "Discard this dead letter?", text: "It is deleted, and cannot be brought back.", count: 1, what: "dead letter", hits: [["queue", queue], ["group", letter.group], ["place", `${letter.partition}, offset ${number(letter.offset)}`]], button: "Discard" });
    if (agreed) await act("discard", "The dead letter was discarded.")();
  };
  const act = (name, said) => async () => { const done = await api.settleLetters(queue, name, { ids: [letter.id] }); toast(done.moved ? said : "It was gone already."); close(); again(); };
  return show(html`<header><h2 id="dialog-title">Dead letter: ${letter.reason}</h2></header><div class="body">
      <${Facts} rows=${[["Queue", queue], ["Group", letter.group], ["Place", `${letter.partition}, offset ${number(letter.offset)}`], ["Message", html`<a class="mono" href=${url("/message", { id: letter.message_id })} onClick=${() => close()}>${letter.message_id}</a>`], ["Pushed", moment(letter.timestamp)], ["Died", moment(letter.died_at)],
        ["Attempts", number(letter.attempts)], ["Consumer", letter.consumer ?? "unknown"], ["Key", letter.key ?? "none"], letter.first_error && letter.first_error !== letter.last_error && ["First error", letter.first_error], ["Last error", letter.last_error ?? "unknown"]]} />
      ${letter.traceback && html`<div class="stack"><div class="row"><h3>Traceback</h3><${Copy} text=${letter.traceback} /></div><pre class="code">${letter.traceback}</pre></div>`}
      <h3>Value</h3><${Value} message=${letter} />
      ${letter.headers && html`<h3>Headers</h3><${Facts} rows=${Object.entries(letter.headers).map(([name, value]) => [html`<code>${name}</code>`, html`<span class="mono">${value}</span>`])} />`}</div>
    <footer>${may("admin", queue) && html`<${Do} class="danger" run=${discard}>Discard…</${Do}><${Do} class="primary" run=${act("redrive", `It is delivered again to ${letter.group}.`)}>Redrive</${Do}>`}<button type="button" autofocus onClick=${() => close()}>Close</button></footer>`, { wide: true });
}

async function settleAll(act, queue, filter, count) {
  const redrive = act === "redrive";
  const agreed = await confirm({
    title: redrive ? "Redrive all that match?" : "Discard all that match?", danger: !redrive, count, what: "dead letter", button: redrive ? "Redrive all" : "Discard all",
    text: redrive ? "They are delivered again, to the group that failed and to no other. The server does it; you can leave this page, or stop it." : "They are deleted. The server does it; you can stop it, but what is gone cannot be brought back.",
    hits: [["queue", queue], ["group", filter.group ?? "all groups"], ["reason", filter.reason ?? "all reasons"]],
  });
  if (!agreed) return;
  await api.startJob(queue, act, filter);
  dispatchEvent(new Event("penstock:jobs"));
}

// What the server is at: how far it is, and a button to stop it.
function Jobs() {
  const [busy, setBusy] = useState(false);
  const jobs = useResource((signal) => api.jobs(signal), "jobs", { every: busy ? 1000 : 10000 });
  const [known, setKnown] = useState("");
  useEffect(() => { const listen = () => jobs.refresh(); addEventListener("penstock:jobs", listen); return () => removeEventListener("penstock:jobs", listen); });
  const rows = jobs.data ?? [];
  const states = rows.map((job) => `${job.job_id}${job.state}${job.done}`).join();
  useEffect(() => setBusy(rows.some((job) => job.state === "running" || job.state === "stopping")), [states]);
  useEffect(() => { if (states !== known) { setKnown(states); if (known) dispatchEvent(new Event("penstock:letters")); } }, [states]);
  if (!rows.length) return null;
  return html`<${Panel} title="What the server does" id="jobs"><ul class="problems">${rows.map((job) => html`<li key=${job.job_id}><span class="dot ${job.state === "running" ? "ok" : ["failed", "lost"].includes(job.state) ? "bad" : ""}"></span>
    <div><strong>${job.kind === "redrive" ? "Redrive" : "Discard"}</strong> ${job.queue}${job.filter.group ? `, group ${job.filter.group}` : ""}${job.filter.reason ? `, reason ${job.filter.reason}` : ""}: <span data-job=${job.state}>${number(job.done)} of ${number(job.total)} letters, ${job.state}</span>
      ${job.error && html`<div class="bad">${job.error}</div>`}${job.state === "running" && job.total > 0 && html`<${Meter} share=${job.done / job.total} label="progress" />`}</div>
    ${job.state === "running" && may("admin", job.queue) ? html`<${Do} class="small" run=${async () => { await api.stopJob(job.job_id); jobs.refresh(); }}>Stop</${Do}>` : html`<span class="muted"><${Ago} at=${job.changed_at} /></span>`}</li>`)}</ul></${Panel}>`;
}
