// Every request that the page makes, by name. Answers are JSON; errors are problem+json with a code and a hint.
import { answered, lost } from "./live.js";
import { signal } from "./dom.js";
import { parse, plain } from "./json.js";

const API = "/api/v2";
// Set when the gateway wants to know who asks.
export const signedOut = signal(false);

export class Problem extends Error {
  constructor(message, { status = 0, code = "", hint = "", isLost = false, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, code, hint, lost: isLost, retryAfter });
  }
}

// A gateway that hangs, or a network that drops everything, is lost as well. The database has less time than this.
const PATIENCE = 20000;

async function send(method, path, { body, signal: abort, raw, headers = {}, patience = method === "GET" ? PATIENCE : null } = {}) {
  const limits = [abort, patience && AbortSignal.timeout(patience)].filter(Boolean);
  let response;
  let text;
  try {
    response = await fetch(path, {
      method, signal: limits.length ? AbortSignal.any(limits) : undefined, credentials: "same-origin", cache: "no-store",
      headers: { Accept: "application/json", ...(body === undefined ? {} : { "Content-Type": "application/json" }), ...headers },
      body: body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body),
    });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    lost("the gateway does not answer");
    // A change may have been made although its answer was lost.
    throw new Problem("The gateway does not answer.", { isLost: true, hint: method === "GET" ? "" : "Whether it was done is not known: look before you do it again." });
  }
  if (response.ok) {
    answered(response.headers.get("date"));
    return raw ? text : text ? JSON.parse(text) : null;
  }
  let problem = {};
  try { problem = JSON.parse(text); } catch { /* a proxy's own page */ }
  const away = response.status === 502 || response.status === 503 || response.status === 504;
  if (away && problem.code !== "read_only_server") lost(problem.detail ?? `the gateway answers ${response.status}`);
  else answered(response.headers.get("date"));
  if (response.status === 401) signedOut.value = true;
  throw new Problem(problem.detail ?? `The gateway answers ${response.status}.`, {
    status: response.status, code: problem.code, hint: problem.hint, isLost: away, retryAfter: problem.retry_after,
  });
}

export const get = (path, query, options) => send("GET", API + path + text(query), options);
const post = (path, body = {}, query, options) => send("POST", API + path + text(query), { body, ...options });
const patch = (path, body) => send("PATCH", API + path, { body });
const del = (path, query) => send("DELETE", API + path + text(query));
// Answers with values of messages: numbers keep their digits.
const exact = async (path, query, options) => plain(parse(await send("GET", API + path + text(query), { ...options, raw: true })), ["value"]);

function text(query) {
  if (!query) return "";
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value !== undefined && value !== null && value !== "") parameters.set(name, value);
  const made = parameters.toString();
  return made ? `?${made}` : "";
}

// A name as a part of a path; `.` and `..` alone would be taken for folders, encoded or not.
export const name = (text) => (text === "." || text === ".." ? `~${text}` : encodeURIComponent(text));
const queueAt = (queue) => `/queues/${name(queue)}`;
const groupAt = (queue, group) => `${queueAt(queue)}/groups/${name(group)}`;

// Who asks
export const session = (s) => get("/session", null, { signal: s });
export const signIn = (key) => post("/session", { key });
export const signOut = () => del("/session");

// Looking
export const outline = (s) => get("/browse/outline", null, { signal: s });
export const partitions = (queue, query, s) => get(`/browse/queues/${name(queue)}/partitions`, query, { signal: s });
export const lagMap = (queue, query, s) => get(`/browse/queues/${name(queue)}/lag-map`, query, { signal: s });
export const browse = (queue, query, s) => exact(`/browse/queues/${name(queue)}/messages`, query, { signal: s });
export const children = (id, s) => exact(`/browse/messages/${name(id)}/children`, null, { signal: s });
export const message = (id, s) => exact(`/messages/${name(id)}`, null, { signal: s });
export const messageState = (id, s) => get(`/messages/${name(id)}/state`, null, { signal: s });
export const history = (queue, group, partition, s) => get(`${groupAt(queue, group)}/partitions/${name(partition)}/history`, { limit: 100 }, { signal: s });

// Figures
export const detailed = (s) => get("/metrics/queues/detailed", null, { signal: s });
export const plugins = (s) => get("/metrics/queues/action-plugins", null, { signal: s });
export const running = (s) => get("/metrics/queues/running", null, { signal: s });
export const windows = (s) => get("/windows", null, { signal: s });
export const work = (s) => get("/work", null, { signal: s });
export const tasks = (s) => get("/tasks", null, { signal: s });
export const series = (queue, metric, query, s) => get(`${queueAt(queue)}/series/${name(metric)}`, query, { signal: s });
export const rates = (s) => get("/metrics/rates", null, { signal: s });
export const totals = (query, s) => get("/metrics/totals", query, { signal: s });
export const server = (s) => get("/server", null, { signal: s });
export const doctor = () => get("/server", { checks: true }, { patience: null });
export const events = () => new EventSource(`${API}/events`);
export const verify = () => get("/verify", null, { patience: null });

// Queues and groups
export const describeQueue = (queue, s) => get(queueAt(queue), null, { signal: s });
export const configureQueue = (queue, settings, description) => patch(queueAt(queue), { settings, ...(description === undefined ? {} : { description }) });
const create = (path, body) => send("PUT", API + path, { body, headers: { "If-None-Match": "*" } });
export const createQueue = (queue, description) => create(queueAt(queue), { settings: {}, description });
export const deleteQueue = (queue) => del(queueAt(queue));
export const purge = (queue, partition) => post(partition ? `${queueAt(queue)}/partitions/${name(partition)}/purge` : `${queueAt(queue)}/purge`);
export const pauseQueue = (queue, paused) => post(`${queueAt(queue)}/${paused ? "pause" : "resume"}`);
export const configureGroup = (queue, group, settings) => patch(groupAt(queue, group), { settings });
export const createGroup = (queue, group, mode, subscription) => create(groupAt(queue, group), { mode, subscription, settings: {} });
export const deleteGroup = (queue, group) => del(groupAt(queue, group));
export const pauseGroup = (queue, group, paused) => post(`${groupAt(queue, group)}/${paused ? "pause" : "resume"}`);
export const seek = (queue, group, body) => post(`${groupAt(queue, group)}/seek`, body);
// `value` is the text of a JSON value, sent as it is: its numbers keep their digits.
export function push(queue, { value, text, key, headers, partition }) {
  const rest = JSON.stringify({ ...(key ? { key } : {}), ...(headers ? { headers } : {}), ...(partition ? { partition } : {}) });
  const given = value === undefined ? `"value_text":${JSON.stringify(text)}` : `"value":${value}`;
  const envelope = `{${given}${rest === "{}" ? "" : `,${rest.slice(1, -1)}`}}`;
  return send("POST", `${API}${queueAt(queue)}/messages`, { body: `{"messages":[${envelope}]}` });
}
export const cancelMessages = (ids, group) => post("/messages/cancel", group ? { ids, group } : { ids });

// Dead letters
export const reasons = (queue, query, s) => get(`${queueAt(queue)}/dead-letters/reasons`, query, { signal: s });
export const deadLetters = (queue, query, s) => exact(`${queueAt(queue)}/dead-letters`, query, { signal: s });
export const settleLetters = (queue, act, body) => post(`${queueAt(queue)}/dead-letters/${act}`, body);
export const startJob = (queue, kind, filter) => post("/jobs", { kind, queue, ...filter });
export const jobs = (s) => get("/jobs", { limit: 10 }, { signal: s });
export const stopJob = (id) => del(`/jobs/${name(id)}`);

// Consumers, claims, schedules, flows
export const consumers = (s) => get("/consumers", null, { signal: s });
export const resetConsumer = (id) => post(`/consumers/${name(id)}/reset`);
export const breakers = (s) => get("/breakers", null, { signal: s });
export const resetBreaker = (queue, group) => post(`${groupAt(queue, group)}/breaker/reset`);
export const claims = (query, s) => get("/claims", query, { signal: s });
export const releaseClaim = (lease) => del(`/claims/${name(lease)}`);
export const schedules = (s) => exact("/schedules", null, { signal: s });
export const actOnSchedule = (schedule, act) => post(`/schedules/${name(schedule)}/${act}`);
export const flows = (s) => get("/flows", null, { signal: s });
export const actions = (s) => get("/actions", null, { signal: s });
export const pauseFlow = (flow, paused) => post(`/flows/${name(flow)}/${paused ? "pause" : "resume"}`);
