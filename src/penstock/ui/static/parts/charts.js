// Sparklines as plain SVG, charts by uPlot, which is loaded when the first chart is shown.
import { html, useEffect, useRef } from "../lib/dom.js";
import { short, clock, number } from "../lib/format.js";
import { vendor } from "../lib/late.js";

export function Sparkline({ values, label = "recent values" }) {
  const known = (values ?? []).filter((value) => value !== null && value !== undefined);
  if (known.length < 2) return html`<span class="unknown" title="not enough samples yet">–</span>`;
  const top = Math.max(...known, 1);
  const points = known.map((value, index) => `${((index / (known.length - 1)) * 92).toFixed(1)},${(21 - (value / top) * 19).toFixed(1)}`);
  return html`<svg class="spark" viewBox="0 0 92 22" preserveAspectRatio="none" role="img"
    aria-label="${label}: from ${number(known[0])} to ${number(known[known.length - 1])}, at most ${number(Math.max(...known))}">
    <title>${label}: ${number(known[0])} → ${number(known[known.length - 1])}, highest ${number(Math.max(...known))}</title>
    <polygon points="0,22 ${points.join(" ")} 92,22" /><polyline points=${points.join(" ")} /></svg>`;
}

function colour(element, name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  element.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// series: [{label, values, colour: "--series-1", dashed}], times in seconds.
export function Chart({ times, series, unit = "", height = 150, label }) {
  const box = useRef(null);
  const plot = useRef(null);
  const kept = useRef(null);
  kept.current = [times, ...series.map((each) => each.values)];
  const shape = series.map((each) => each.label).join("|");
  useEffect(() => {
    let ended = false;
    let observer = null;
    const draw = async () => {
      const { default: UPlot } = await vendor("uplot");
      if (ended || !box.current) return;
      const make = () => {
        plot.current?.destroy();
        if (!box.current) return;
        const muted = colour(box.current, "--muted");
        const line = colour(box.current, "--line");
        const axis = { stroke: muted, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
        plot.current = new UPlot({
          width: Math.max(200, box.current.clientWidth), height, padding: [10, 20, 0, 0], legend: { show: false },
          cursor: { y: false, points: { size: 6 } }, scales: { y: { range: (_, low, high) => [Math.min(0, low), Math.max(high * 1.1, 1)] } },
          axes: [{ ...axis, size: 26, space: 60, values: (_, marks) => marks.map((mark) => clock(mark * 1000).slice(0, 5)) },
            { ...axis, size: 50, space: 30, values: (_, marks) => marks.map((mark) => short(mark)) }],
          series: [{}, ...series.map((each) => ({
            label: each.label, stroke: colour(box.current, each.colour), width: each.dashed ? 1 : 1.6, dash: each.dashed ? [4, 4] : undefined,
            points: { show: false }, spanGaps: false,
          }))],
          hooks: { setCursor: [(made) => tell(made)] },
        }, kept.current, box.current);
        plot.current.colours = document.documentElement.dataset.theme;
      };
      const tell = (made) => {
        const index = made.cursor.idx;
        if (!box.current) return;
        box.current.title = index === null || index === undefined ? "" : [clock(made.data[0][index] * 1000),
          ...series.map((each, i) => `${each.label} ${made.data[i + 1][index] === null ? "unknown" : short(made.data[i + 1][index])}${unit}`)].join(" · ");
      };
      make();
      observer = new ResizeObserver(() => { if (box.current) plot.current?.setSize({ width: Math.max(200, box.current.clientWidth), height }); });
      observer.observe(box.current);
      addEventListener("penstock:theme", make);
      cleanup = () => removeEventListener("penstock:theme", make);
    };
    let cleanup = () => {};
    draw();
    return () => { ended = true; cleanup(); observer?.disconnect(); plot.current?.destroy(); plot.current = null; };
  }, [shape, height]);
  useEffect(() => { plot.current?.setData(kept.current); }, [times, shape]);
  return html`<div><div class="chart" ref=${box} role="img" aria-label=${label}></div>
    <div class="legend">${series.map((each) => html`<span><i class="${each.dashed ? "dashed s0" : `s${each.colour.slice(-1)}`}"></i>${each.label}</span>`)}</div></div>`;
}
