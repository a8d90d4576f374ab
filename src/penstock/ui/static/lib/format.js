// Numbers with thousands separators and units, durations and times in words. What is not known is UNKNOWN, never 0.
export const UNKNOWN = "–";

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const known = (value) => value !== null && value !== undefined && !Number.isNaN(Number(value));

export function number(value) {
  if (!known(value)) return UNKNOWN;
  return typeof value === "string" && /^-?\d+$/.test(value) ? whole.format(BigInt(value)) : whole.format(value);
}

// 1,234,567 as 1.23 M: for tiles and axes, where the exact number is in the title.
export function short(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  for (const [unit, per] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= per * 10 || (size >= per && per > 1e3)) return `${digits(value / per)} ${unit}`;
  }
  return size >= 100 || Number.isInteger(Number(value)) ? whole.format(value) : digits(value);
}

function digits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

export function rate(value) {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0 /s";
  return value < 0.01 ? "< 0.01 /s" : `${short(value)} /s`;
}

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const size = Number(value);
  for (const [unit, per] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (Math.abs(size) >= per) return `${digits(size / per)} ${unit}`;
  }
  return `${whole.format(size)} B`;
}

export function percent(share) {
  return known(share) ? `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %` : UNKNOWN;
}

// Seconds in at most two units: 3 d 4 h, 12 min, 4.2 s, 12 ms.
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const s = Math.abs(Number(seconds));
  if (!Number.isFinite(s)) return "never";
  if (s < 0.001) return s === 0 ? "0 s" : "< 1 ms";
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, per]) => s >= per);
  const [unit, per] = units[first];
  const count = Math.floor(s / per);
  const next = units[first + 1];
  const rest = next ? Math.floor((s - count * per) / next[1]) : 0;
  return rest && count < 10 ? `${whole.format(count)} ${unit} ${rest} ${next[0]}` : `${whole.format(count)} ${unit}`;
}

// An age in whole seconds: it changes every second, and tenths would only flicker.
export function age(seconds) {
  return seconds < 60 ? `${Math.max(0, Math.round(seconds))} s` : duration(Math.round(seconds));
}

// A setting such as "PT30S", "00:05:00" or "1 day" is shown as it is; a moment in full with its zone.
const full = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  fractionalSecondDigits: 3, hour12: false, timeZoneName: "short",
});
const clockOnly = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

export function moment(at) {
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? String(at) : full.format(date);
}

export function clock(at) {
  const date = new Date(at);
  return Number.isNaN(date.getTime()) ? String(at) : clockOnly.format(date);
}

// Dead letters of a group are counted up to so many.
const COUNTED = 10000;

export function letters(count) {
  return known(count) && count >= COUNTED ? `${number(count)}+` : number(count);
}

// A name as a shell takes it.
export function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) && !text.startsWith("-") ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${Number(count) === 1 ? one : many}`;
}
