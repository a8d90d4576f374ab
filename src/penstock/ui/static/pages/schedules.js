// Schedules: in words, last and next run; run now, pause, resume.
import { html } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { useResource } from "../lib/live.js";
import { url } from "../lib/router.js";
import { may } from "../lib/session.js";
import { Ago, Answer, Do, Empty, Panel, State } from "../parts/basics.js";
import { Table } from "../parts/table.js";
import { SavedViews } from "../parts/saved.js";
import { preview } from "../parts/json_viewer.js";
import { toast } from "../parts/toast.js";

export function Schedules() {
  const found = useResource((signal) => api.schedules(signal), "schedules");
  const act = (row, name, said) => async () => { await api.actOnSchedule(row.name, name); toast(said); found.refresh(); };
  return html`<div class="title"><h1>Schedules</h1><div class="actions"><${SavedViews} /></div></div>
    <${Panel}><${Answer} of=${found} empty=${html`<${Empty} title="No schedules" command=${'penstock schedule add report --cron "0 9 * * MON-FRI" reports \'{"daily": true}\''}>A schedule pushes a message at set times.</${Empty}>`}>${(rows) => html`<${Table} label="schedules" rows=${rows} rowKey=${(row) => row.name} sort="name" columns=${[
      { key: "name", label: "Schedule", class: "name", cell: (row) => html`<strong>${row.name}</strong>${row.error && html`<div class="bad">${row.error}</div>`}` },
      { key: "words", label: "When", cell: (row) => html`<span title="${row.spec} ${row.tz}">${row.words}</span>` },
      { key: "queue", label: "Pushes to", class: "name", cell: (row) => html`<a href=${url("/queue", { queue: row.queue })}>${row.queue}</a>` },
      { key: "value", label: "Value", class: "clip", value: preview, cell: (row) => html`<span class="mono" title=${preview(row, 2000)}>${preview(row, 60)}</span>` },
      { key: "state", label: "State", value: (row) => (row.paused ? "paused" : "active"), cell: (row) => html`<${State} value=${row.paused ? "paused" : "active"} />` },
      { key: "last_at", label: "Last run", num: true, value: (row) => (row.last_at ? Date.parse(row.last_at) : null), cell: (row) => (row.last_id ? html`<a href=${url("/message", { id: row.last_id })}><${Ago} at=${row.last_at} /></a>` : html`<${Ago} at=${row.last_at} none="never" />`) },
      { key: "next_at", label: "Next run", num: true, value: (row) => (row.next_at ? Date.parse(row.next_at) : null), cell: (row) => (row.paused ? html`<span class="muted">paused</span>` : html`<${Ago} at=${row.next_at} none="never" />`) },
      may("admin", null) && { key: "act", label: "", class: "actions", cell: (row) => html`<${Do} class="small" run=${act(row, "run", `${row.name} was pushed now.`)}>Run now</${Do}>
        <${Do} class="small" run=${row.paused ? act(row, "resume", `${row.name} goes on.`) : act(row, "pause", `${row.name} is paused.`)}>${row.paused ? "Resume" : "Pause"}</${Do}>` }]} />`}</${Answer}></${Panel}>`;
}
