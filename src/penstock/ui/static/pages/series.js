// Series of the server as charts want them: one list of times, and for each name a list of values.

const seconds = (at) => Date.parse(at) / 1000;

function steps(all, begin, end) {
  const step = all.find((each) => each.step)?.step ?? 60;
  const first = Math.floor(begin.getTime() / 1000 / step) * step;
  const times = [];
  for (let at = first; at <= end.getTime() / 1000; at += step) times.push(at);
  return times;
}

// A step without a value had nothing to count: its rate is 0, but not before the first and after the last value, where
// nothing is known.
export function rated(series, begin, end) {
  const times = steps(Object.values(series), begin, end);
  const known = Object.values(series).flatMap((each) => each.points).map((point) => seconds(point.time));
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const values = {};
  for (const [name, { points }] of Object.entries(series)) {
    const at = new Map(points.map((point) => [seconds(point.time), point.rate]));
    values[name] = times.map((time) => at.get(time) ?? (time >= low && time <= high ? 0 : null));
  }
  return known.length ? { times, values } : { times: [], values };
}

// A sampled value holds until the next one.
export function sampled(series, begin, end) {
  const times = steps(Object.values(series), begin, end);
  const values = {};
  let any = false;
  for (const [name, { points }] of Object.entries(series)) {
    const at = new Map(points.map((point) => [seconds(point.time), point.value]));
    let last = null;
    values[name] = times.map((time) => { if (at.has(time)) last = at.get(time); return last; });
    any ||= points.length > 0;
  }
  return any ? { times, values } : { times: [], values };
}
