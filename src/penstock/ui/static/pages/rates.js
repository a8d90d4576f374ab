// What clients have counted lately, as rates per second: in all, and by queue and group.
export function ratesOf({ period, counts }) {
  const total = {};
  const groups = new Map();
  const queues = new Map();
  for (const { queue, group, metric, total: count } of counts) {
    const rate = count / period;
    total[metric] = (total[metric] ?? 0) + rate;
    const at = queues.get(queue) ?? {};
    at[metric] = (at[metric] ?? 0) + rate;
    queues.set(queue, at);
    if (group !== null) {
      const name = `${queue}\u0000${group}`;
      const known = groups.get(name) ?? {};
      known[metric] = (known[metric] ?? 0) + rate;
      groups.set(name, known);
    }
  }
  // Who reports deliveries reports failures with them. Of all else nothing is known until somebody reports it.
  if (total.delivered !== undefined) total.failed ??= 0;
  return { total, groups, queues };
}
