// The groups of a queue: lag, rate, settings; pause, seek with a preview, delete.
import { html, useState } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { refresh } from "../lib/figures.js";
import { serverNow } from "../lib/live.js";
import { parameter, url } from "../lib/router.js";
import { may } from "../lib/session.js";
import { duration, letters, moment, number, plural, quoted } from "../lib/format.js";
import { Ago, Do, Empty, Panel, Rate, State, Unknown } from "../parts/basics.js";
import { Sparkline } from "../parts/charts.js";
import { Table } from "../parts/table.js";
import { Windows } from "../parts/windows.js";
import { close, confirm, form, show } from "../parts/dialog.js";
import { toast } from "../parts/toast.js";
import { ratesOf } from "./rates.js";
import { stateOf } from "./overview.js";
import { SettingsTable, ofGroups } from "./queue_settings.js";

export function Groups({ queue, rates }) {
  const byGroup = rates && ratesOf(rates).groups;
  const rate = (group) => byGroup?.get(`${queue.name}\u0000${group.name}`)?.acked ?? null;
  const chosen = queue.groups.find((group) => group.name === parameter("group"));
  return html`<${Panel} title="Groups" id="groups" end=${may("admin", queue.name) && html`<button onClick=${() => create(queue.name)}>New group…</button>`}>
    <${Table} id="g" label="groups" rows=${queue.groups} rowKey=${(group) => group.name} sort="-lag" mark=${(group) => (group === chosen ? "marked" : "")}
      empty=${html`<${Empty} title="Nobody reads this queue" command=${`penstock pop ${quoted(queue.name)} --group my-group`}>A group reads a queue. The first pop makes one.</${Empty}>`}
      columns=${[
        { key: "name", label: "Group", class: "name", cell: (group) => html`<a href=${url("/queue", { queue: queue.name, tab: "groups", group: group.name })}><strong>${group.name}</strong></a> <span class="muted">${group.mode}</span>` },
        { key: "state", label: "State", value: stateOf, cell: (group) => html`<${State} value=${stateOf(group)} />` },
        { key: "lag", label: "Lag", num: true, cell: (group) => (group.lag === null ? html`<${Unknown} why="not sampled yet" />` : number(group.lag)) },
        { key: "trend", label: "Last hour", cell: (group) => html`<${Sparkline} values=${group.lags} label="lag" />` },
        { key: "rate", label: "Done", num: true, value: rate, cell: (group) => html`<${Rate} value=${rate(group)} />` },
        { key: "drain", label: "Time to drain", num: true, value: (group) => drain(group, rate(group)), cell: (group) => { const left = drain(group, rate(group)); return left === null ? html`<${Unknown} />` : left === 0 ? "–" : duration(left); } },
        { key: "claimed", label: "Claimed", num: true, cell: (group) => (group.claimed === null ? html`<${Unknown} />` : html`<a href=${url("/consumers", { queue: queue.name, "c.filter": group.name })}>${number(group.claimed)}</a>`) },
        { key: "oldest_at", label: "Oldest", num: true, value: (group) => (group.oldest_at ? -Date.parse(group.oldest_at) : null), cell: (group) => html`<${Ago} at=${group.oldest_at} bare none="none" />` },
        { key: "dead_letters", label: "Dead letters", num: true, cell: (group) => (group.dead_letters ? html`<a class="bad" href=${url("/dead-letters", { queue: queue.name, group: group.name })}>${letters(group.dead_letters)}</a>` : "0") },
        may("admin", queue.name) && { key: "act", label: "", class: "actions", cell: (group) => html`
          <${Do} class="small" run=${() => pause(queue.name, group)}>${group.paused ? "Resume" : "Pause"}</${Do}> <button class="small" onClick=${() => seekDialog(queue.name, group.name)}>Seek…</button>
          <${Do} class="small danger" run=${() => remove(queue.name, group)}>Delete…</${Do}>` },
      ]} /></${Panel}>
    <${Windows} queue=${queue.name} />
    ${chosen && html`<${Panel} title="Settings of ${chosen.name}" id="group-settings"><${SettingsTable} queue=${queue.name} settings=${ofGroups(chosen.settings)} config=${chosen.config} base="the queue" save=${async (changes) => { await api.configureGroup(queue.name, chosen.name, changes); refresh(); }} /></${Panel}>`}`;
}

function drain(group, rate) {
  return group.lag === null ? null : group.lag === 0 ? 0 : rate > 0 ? group.lag / rate : null;
}

async function pause(queue, group) {
  await api.pauseGroup(queue, group.name, !group.paused);
  toast(group.paused ? `${group.name} gets messages again.` : `${group.name} gets no more messages until it is resumed.`);
  refresh();
}

async function create(queue) {
  await form({
    title: "New group", button: "Create",
    fields: [{ name: "name", label: "Name", required: true },
      { name: "mode", label: "Mode", options: [["ordered", "ordered: one claim per partition at a time"], ["shared", "shared: many consumers share a partition"]] },
      { name: "subscription", label: "Begins with", options: [["all", "the oldest message"], ["new", "what is pushed from now on"]] }],
    run: ({ name, mode, subscription }) => api.createGroup(queue, name, mode, subscription),
  });
  refresh();
}

async function remove(queue, group) {
  const agreed = await confirm({
    title: "Delete this group?", text: "Its positions and dead letters go; the messages of the queue stay. This cannot be undone.",
    count: group.lag, what: "message that it has not done", many: "messages that it has not done", hits: [["group", group.name], ["queue", queue], ["dead letters", letters(group.dead_letters)]], button: "Delete",
  });
  if (!agreed) return;
  await api.deleteGroup(queue, group.name);
  toast(`${group.name} was deleted.`);
  refresh();
}

// As a field for a time wants it: in the zone of the browser, by the clock of the server.
function anHourAgo() {
  const at = new Date(serverNow() - 3600000);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
}

export function seekDialog(queue, group) {
  return show(html`<${Seek} queue=${queue} group=${group} />`);
}

// First says what a seek would do; only then it can be done.
function Seek({ queue, group }) {
  const [preview, setPreview] = useState(null);
  const [error, setError] = useState(null);
  const [kind, setKind] = useState("time");
  const read = (element) => {
    const given = Object.fromEntries(new FormData(element));
    const to = kind === "time" ? new Date(given.time).toISOString() : kind === "offset" ? Number(given.offset) : kind;
    return { to, ...(given.partition ? { partition: given.partition } : {}) };
  };
  const look = async (event) => {
    event.preventDefault();
    setError(null);
    try {
      const body = read(event.target);
      setPreview({ body, found: await api.seek(queue, group, { ...body, preview: true }) });
    } catch (problem) { setPreview(null); setError(problem); }
  };
  const run = async () => {
    const done = await api.seek(queue, group, { ...preview.body, preview: false });
    toast(`${group} was moved: ${plural(done.redelivered, "message")} again, ${plural(done.skipped, "message")} skipped.`);
    refresh();
    close(true);
  };
  const [begun] = useState(anHourAgo);
  return html`<form onSubmit=${look} onInput=${() => setPreview(null)}><header><h2 id="dialog-title">Seek ${group}</h2></header><div class="body">
      <label class="field">To<select name="kind" value=${kind} onChange=${(event) => setKind(event.target.value)}>
        ${[["time", "a time"], ["earliest", "the oldest message"], ["latest", "the end: skip all that waits"], ["offset", "an offset"]].map(([value, label]) => html`<option value=${value} selected=${value === kind}>${label}</option>`)}</select></label>
      ${kind === "time" && html`<label class="field">Time<input type="datetime-local" step="1" name="time" defaultValue=${begun} required /></label>`}
      ${kind === "offset" && html`<label class="field">Offset<input type="number" min="0" name="offset" required /></label>`}
      <label class="field">Partition<input name="partition" placeholder="all partitions" spellcheck=${false} /></label>
      ${error && html`<div class="notice bad" role="alert"><strong>${error.message}</strong>${error.hint && html`<span>${error.hint}</span>`}</div>`}
      ${preview && html`<div role="status"><ul class="hits"><li><strong>${plural(preview.found.redelivered, "message")}</strong> would be delivered again</li><li><strong>${plural(preview.found.skipped, "message")}</strong> would be skipped</li>
        <li><strong>${plural(preview.found.moved, "partition")}</strong> of ${number(preview.found.visited)} would move</li><li><strong>${plural(preview.found.revoked, "claim")}</strong> would be taken away</li>
        <li class="muted">to ${typeof preview.body.to === "number" ? `offset ${number(preview.body.to)}` : preview.body.to.includes("T") ? moment(preview.body.to) : preview.body.to} in ${preview.body.partition ?? "all partitions"} of ${queue}</li></ul></div>`}
    </div><footer><button type="button" onClick=${() => close(false)}>Cancel</button><button type="submit" class=${preview ? "" : "primary"}>Preview</button>
      ${preview && html`<${Do} class="primary danger" run=${run}>Seek</${Do}>`}</footer></form>`;
}
