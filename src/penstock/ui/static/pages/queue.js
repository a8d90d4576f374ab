// One queue: its partitions, groups, settings, and its throughput.
import { html } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { outline, outlineError, refresh } from "../lib/figures.js";
import { useResource } from "../lib/live.js";
import { go, parameter, url } from "../lib/router.js";
import { may } from "../lib/session.js";
import { letters, number, plural, short } from "../lib/format.js";
import { Ago, Do, Empty, Failure, Panel, Rate, State, Tile, Unknown } from "../parts/basics.js";
import { confirm } from "../parts/dialog.js";
import { toast } from "../parts/toast.js";
import { ratesOf } from "./rates.js";
import { Partitions } from "./queue_partitions.js";
import { Groups } from "./queue_groups.js";
import { Settings } from "./queue_settings.js";
import { Throughput } from "./queue_throughput.js";
import { pushDialog } from "./push_message.js";

const TABS = [["", "Partitions"], ["groups", "Groups"], ["throughput", "Throughput"], ["settings", "Settings"]];

export function Queue() {
  const name = parameter("queue");
  const tab = TABS.some(([key]) => key === parameter("tab")) ? parameter("tab") : "";
  const rates = useResource((signal) => api.rates(signal), "rates", { every: 10000 });
  if (!outline.value) return outlineError.value ? html`<${Failure} error=${outlineError.value} />` : html`<div class="skeleton" role="status">Loading…</div>`;
  const queue = outline.value.find((each) => each.name === name);
  if (!queue) return html`<${Panel}><${Empty} title="There is no queue ${name}"><a href="/queues">All queues</a></${Empty}></${Panel}>`;
  const rate = rates.data && ratesOf(rates.data).queues.get(name);
  const lag = queue.groups.reduce((total, group) => total + (group.lag ?? 0), 0);
  const paused = !!queue.settings.push_paused;
  const dead = queue.groups.reduce((total, group) => total + group.dead_letters, 0);
  return html`<div class="title"><h1>${name}</h1>${paused && html`<${State} value="paused" title="Pushes are refused" />`}
      ${queue.description && html`<span class="sub">${queue.description}</span>`}
      <div class="actions"><a class="button" href=${url("/messages", { queue: name })}>Messages</a>
        ${may("push", name) && html`<button onClick=${() => pushDialog(name)}>Push…</button>`}
        ${may("admin", name) && html`<${Do} run=${() => pause(name, !paused)}>${paused ? "Take pushes" : "Refuse pushes"}</${Do}>
          <${Do} class="danger" run=${() => purge(name)}>Purge…</${Do}><${Do} class="danger" run=${() => remove(name)}>Delete…</${Do}>`}</div></div>
    <div class="tiles">
      <${Tile} label="Lag" value=${queue.groups.some((group) => group.lag !== null) ? short(lag) : html`<${Unknown} why="not sampled yet" />`} note="all groups" />
      <${Tile} label="Pushed" value=${html`<${Rate} value=${rate?.pushed} />`} note="last 5 minutes" />
      <${Tile} label="Done" value=${html`<${Rate} value=${rate?.acked} />`} note="last 5 minutes" />
      <${Tile} label="Groups" value=${number(queue.groups.length)} />
      <${Tile} label="Dead letters" value=${letters(dead)} kind=${dead ? "bad" : ""} to=${url("/dead-letters", { queue: name })} />
      <${Tile} label="Created" value=${html`<${Ago} at=${queue.created_at} bare />`} note="ago" />
    </div>
    <nav class="tabs" aria-label="Parts of the queue">${TABS.map(([key, label]) => html`<a href=${url("/queue", { queue: name, tab: key })} aria-current=${tab === key ? "page" : undefined}>${label}</a>`)}</nav>
    ${tab === "groups" ? html`<${Groups} queue=${queue} rates=${rates.data} />` : tab === "settings" ? html`<${Settings} queue=${queue} />`
      : tab === "throughput" ? html`<${Throughput} queue=${queue} />` : html`<${Partitions} queue=${queue} />`}`;
}

async function pause(queue, paused) {
  await api.pauseQueue(queue, paused);
  toast(paused ? `Pushes to ${queue} are refused.` : `${queue} takes pushes again.`);
  refresh();
}

async function purge(queue) {
  const known = await api.describeQueue(queue);
  const agreed = await confirm({
    title: "Purge this queue?", text: "All messages are dropped, those that wait included. Offsets go on where they are. This cannot be undone.",
    count: known.messages, hits: [["queue", queue], ["partitions", number(known.partitions)]], button: "Purge",
  });
  if (!agreed) return;
  const done = await api.purge(queue);
  toast(`${plural(done.messages, "message")} of ${queue} ${done.messages === 1 ? "was" : "were"} dropped.`);
  refresh();
}

async function remove(queue) {
  const known = await api.describeQueue(queue);
  const groups = outline.value.find((each) => each.name === queue)?.groups ?? [];
  const agreed = await confirm({
    title: "Delete this queue?", text: "The queue goes, with its messages, partitions, groups, dead letters and metrics. This cannot be undone.",
    count: known.messages, hits: [["queue", queue], ["partitions", number(known.partitions)], ["groups", groups.map((each) => each.name).join(", ") || "none"]], button: "Delete",
  });
  if (!agreed) return;
  await api.deleteQueue(queue);
  toast(`${queue} was deleted.`);
  refresh();
  go("/queues");
}
