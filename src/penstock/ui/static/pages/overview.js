// The first page: how fast, how far behind, and what needs attention first.
import { html } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { figures, outlineError, snapshot } from "../lib/figures.js";
import { useResource } from "../lib/live.js";
import { url } from "../lib/router.js";
import { letters, number, plural } from "../lib/format.js";
import { Ago, Answer, Empty, Failure, Panel, Rate, Short, State, Tile, Unknown, Words } from "../parts/basics.js";
import { Chart, Sparkline } from "../parts/charts.js";
import { Table } from "../parts/table.js";
import { ratesOf } from "./rates.js";

export function Overview() {
  const now = figures.value;
  const rates = useResource((signal) => api.rates(signal), "rates", { every: 10000 });
  const charts = useResource((signal) => api.totals({ hours: 1 }, signal), "totals", { every: 30000 });
  if (!now) return outlineError.value ? html`<${Failure} error=${outlineError.value} />` : html`<div class="skeleton" role="status">Loading…</div>`;
  const total = rates.data && ratesOf(rates.data).total;
  return html`<div class="title"><h1>Overview</h1></div>
    ${now.queues === 0 ? html`<${Panel}><${Empty} title="No queues yet" command=${'penstock push orders \'{"id": 1}\''}>The first push makes one.</${Empty}></${Panel}>` : null}
    <div class="tiles">
      <${Tile} label="Pushed" value=${html`<${Rate} value=${total?.pushed} />`} note="last 5 minutes" />
      <${Tile} label="Delivered" value=${html`<${Rate} value=${total?.delivered} />`} note="last 5 minutes" />
      <${Tile} label="Failed" value=${html`<${Rate} value=${total?.failed} />`} kind=${total?.failed > 0 ? "bad" : ""} note="last 5 minutes" />
      <${Tile} label="Lag" value=${html`<${Short} value=${now.lag} />`} note=${plural(now.groups.length, "group")} to="/queues" />
      <${Tile} label="Oldest waiting" value=${now.oldest ? html`<${Ago} at=${now.oldest} bare />` : now.sampled ? "none" : html`<${Unknown} why="not sampled yet" />`} note="since pushed" />
      <${Tile} label="Cold" value=${html`<${Short} value=${now.cold} />`} kind=${now.cold > 0 ? "cold" : ""} note="not handed out" to="/queue-metrics" />
      <${Tile} label="Dead letters" value=${letters(now.deadLetters)} kind=${now.deadLetters > 0 ? "bad" : ""} to="/dead-letters" />
      <${Tile} label="Open breakers" value=${number(now.open)} kind=${now.open > 0 ? "bad" : ""} to="/consumers" />
    </div>
    <${Panel} title="Needs attention" id="attention">${snapshot.value ? html`<${Problems} problems=${snapshot.value.problems} />` : html`<div class="skeleton" role="status">Loading…</div>`}</${Panel}>
    <${Answer} of=${charts}>${(data) => html`<${Charts} data=${data} />`}</${Answer}>
    <${Panel} title="Groups by lag" id="busiest"><${Groups} groups=${now.groups} rates=${rates.data} /></${Panel}>`;
}

function Problems({ problems }) {
  if (problems.length === 0) return html`<${Empty} title="Nothing needs attention">All checks pass.</${Empty}>`;
  return html`<ul class="problems">${problems.map((each) => html`<li key=${each.check + each.subject}>
    <span class="dot ${["breaker_open", "flow_failing", "schedule_stuck", "dead_letters_waiting", "workers_missing"].includes(each.check) ? "bad" : "warn"}"></span>
    <div><strong>${each.subject}</strong> <span>${each.found}</span> <span class="muted">${each.since && html`· since <${Ago} at=${each.since} />`}</span>
      <div class="muted"><${Words} text=${each.advice} /></div></div>
    ${act(each)}</li>`)}</ul>`;
}

function act({ check, queue, group, subject }) {
  if (check === "breaker_open") return html`<a class="button" href="/consumers">Breakers</a>`;
  if (check === "dead_letters_waiting") return html`<a class="button" href=${url("/dead-letters", { queue, group })}>Dead letters</a>`;
  if (check === "schedule_stuck") return html`<a class="button" href="/schedules">Schedules</a>`;
  if (check === "flow_failing") return html`<a class="button" href="/flows">${subject}</a>`;
  return queue ? html`<a class="button" href=${url("/queue", { queue, tab: group ? "groups" : "", group })}>Open</a>` : html`<span></span>`;
}

function Charts({ data }) {
  const draw = (title, name, colour) => {
    const found = data[name];
    return html`<${Panel} title=${title}>
      ${found && found.times.length > 1
        ? html`<${Chart} label="${title} in the last hour" times=${found.times} unit=" /s" series=${[{ label: "now", values: found.values, colour },
            { label: "same hour yesterday", values: found.before, colour: "--muted", dashed: true }]} />`
        : html`<${Empty} title="Not measured yet">Clients report what they count every minute, or every five minutes where it is little.</${Empty}>`}</${Panel}>`;
  };
  return html`<div class="grid three">${draw("Pushed per second", "pushed", "--series-1")}${draw("Delivered per second", "delivered", "--series-2")}${draw("Failed per second", "failed", "--series-3")}</div>`;
}

function Groups({ groups, rates }) {
  const byGroup = rates && ratesOf(rates).groups;
  const rate = (group) => byGroup?.get(`${group.queue}\u0000${group.name}`)?.acked ?? null;
  return html`<${Table} id="groups" label="groups" rows=${groups} rowKey=${(group) => `${group.queue}\u0000${group.name}`} sort="-lag"
    empty=${html`<${Empty} title="No groups yet" command="penstock pop orders --group billing">A group reads a queue. The first pop makes one.</${Empty}>`}
    columns=${[
      { key: "name", label: "Group", class: "name", cell: (group) => html`<a href=${url("/queue", { queue: group.queue, tab: "groups", group: group.name })}>${group.name}</a>` },
      { key: "queue", label: "Queue", class: "name", cell: (group) => html`<a href=${url("/queue", { queue: group.queue })}>${group.queue}</a>` },
      { key: "state", label: "State", value: stateOf, cell: (group) => html`<${State} value=${stateOf(group)} />` },
      { key: "lag", label: "Lag", num: true, value: (group) => group.lag, cell: (group) => (group.lag === null ? html`<${Unknown} why="not sampled yet" />` : number(group.lag)) },
      { key: "trend", label: "Last hour", cell: (group) => html`<${Sparkline} values=${group.lags} label="lag" />` },
      { key: "rate", label: "Done", num: true, value: rate, cell: (group) => html`<${Rate} value=${rate(group)} />` },
      { key: "oldest_at", label: "Oldest", num: true, value: (group) => (group.oldest_at ? -Date.parse(group.oldest_at) : null), cell: (group) => html`<${Ago} at=${group.oldest_at} bare none="none" />` },
      { key: "dead_letters", label: "Dead letters", num: true, value: (group) => group.dead_letters, cell: (group) => (group.dead_letters ? html`<a class="bad" href=${url("/dead-letters", { queue: group.queue, group: group.name })}>${letters(group.dead_letters)}</a>` : "0") },
    ]} />`;
}

export function stateOf(group) {
  if (group.paused) return "paused";
  if (group.breaker && group.breaker !== "closed") return group.breaker;
  if (!group.sampled_at) return null;
  return group.enrolling ? "beginning" : group.claimed > 0 ? "running" : group.lag > 0 ? "waiting" : "idle";
}
