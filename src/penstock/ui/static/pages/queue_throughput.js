// The past of a queue: pushed, delivered, done and failed, and its lag.
import { html } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { serverNow, useResource } from "../lib/live.js";
import { change, parameter } from "../lib/router.js";
import { Answer, Empty, Panel } from "../parts/basics.js";
import { Chart } from "../parts/charts.js";
import { rated, sampled } from "./series.js";

const SPANS = [["1", "hour"], ["6", "6 hours"], ["24", "day"], ["168", "week"]];

export function Throughput({ queue }) {
  const hours = Number(parameter("hours", "1")) || 1;
  const history = useResource((signal) => load(queue.name, hours, signal), `${queue.name}\u0000${hours}`, { every: 30000 });
  return html`<div class="row"><span class="muted">The last</span><div class="segmented">${SPANS.map(([value, label]) => html`<button aria-pressed=${String(hours) === value} onClick=${() => change({ hours: value === "1" ? null : value })}>${label}</button>`)}</div></div>
    <${Answer} of=${history}>${(data) => html`<div class="grid two">
      <${Panel} title="Pushed and done per second"><${Lines} data=${data.rates} unit=" /s" label="Pushed, done and failed" names=${[["pushed", "--series-1"], ["acked", "--series-2"], ["failed", "--series-3"]]} labels=${{ acked: "done" }} /></${Panel}>
      <${Panel} title="Lag"><${Lines} data=${data.lag} unit="" label="Lag" names=${[["lag", "--series-1"]]} labels=${{}} /></${Panel}></div>`}</${Answer}>`;
}

function Lines({ data, names, unit, label, labels }) {
  if (data.times.length < 2) return html`<${Empty} title="Not measured yet">Clients report what they count every minute, or every five minutes where it is little.</${Empty}>`;
  return html`<${Chart} label=${label} times=${data.times} unit=${unit} height=${220} series=${names.map(([name, colour]) => ({ label: labels[name] ?? name, values: data.values[name], colour }))} />`;
}

async function load(queue, hours, signal) {
  const end = new Date(serverNow());
  const begin = new Date(end.getTime() - hours * 3600000);
  const ask = (metric) => api.series(queue, metric, { begin: begin.toISOString(), end: end.toISOString(), points: 120 }, signal);
  const [pushed, acked, failed, lag] = await Promise.all(["pushed", "acked", "failed", "lag"].map(ask));
  return { rates: rated({ pushed, acked, failed }, begin, end), lag: sampled({ lag }, begin, end) };
}
