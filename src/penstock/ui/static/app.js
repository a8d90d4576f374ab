// Begins: who we are, where we are, what is shown.
import { Component, effect, html, render } from "./lib/dom.js";
import * as figures from "./lib/figures.js";
import * as keys from "./lib/keys.js";
import * as live from "./lib/live.js";
import * as router from "./lib/router.js";
import * as session from "./lib/session.js";
import { signedOut } from "./lib/api.js";
import { Empty, Failure, Panel } from "./parts/basics.js";
import { Shell } from "./parts/shell.js";
import { Overview } from "./pages/overview.js";
import { QueueMetrics } from "./pages/queue_metrics.js";
import { Queues } from "./pages/queues.js";
import { Queue } from "./pages/queue.js";
import { Messages } from "./pages/messages.js";
import { Message } from "./pages/message.js";
import { DeadLetters } from "./pages/dead_letters.js";
import { Consumers } from "./pages/consumers.js";
import { Schedules } from "./pages/schedules.js";
import { Flows } from "./pages/flows.js";
import { Server } from "./pages/server.js";
import { SignIn } from "./pages/sign_in.js";

const { parameter, route } = router;
const PAGES = {
  "/": [Overview, "Overview"], "/queue-metrics": [QueueMetrics, "Queue metrics"], "/queues": [Queues, "Queues"], "/queue": [Queue, "Queue", ["/queues", "Queues"]],
  "/messages": [Messages, "Messages"], "/message": [Message, "Message", ["/messages", "Messages"]], "/dead-letters": [DeadLetters, "Dead letters"],
  "/consumers": [Consumers, "Consumers"], "/schedules": [Schedules, "Schedules"], "/flows": [Flows, "Flows"], "/server": [Server, "Server"],
};

// A page that fails is shown as failed; the others go on.
class Guard extends Component {
  constructor() { super(); this.state = { error: null }; }
  componentDidCatch(error) { console.error(error); this.setState({ error }); }
  render() {
    if (this.state.error) return html`<${Failure} error=${{ title: "This page failed", message: String(this.state.error), hint: "Load it again; if it fails again, tell us what it says." }} retry=${() => this.setState({ error: null })} />`;
    return this.props.children;
  }
}

function App() {
  if (signedOut.value) return html`<${SignIn} />`;
  const { path } = route.value;
  const [Page, label, parent] = PAGES[path] ?? [() => html`<${Panel}><${Empty} title="There is no such page"><a href="/">Overview</a></${Empty}></${Panel}>`, "Not found"];
  const name = path === "/queue" ? parameter("queue") : label;
  document.title = path === "/" ? "penstock" : `${name} · penstock`;
  const crumbs = parent && html`<a href=${parent[0]}>${parent[1]}</a><span aria-hidden="true">/</span><span aria-current="page">${name}</span>`;
  return html`<${Shell} crumbs=${crumbs}><${Guard} key=${path + parameter("queue") + parameter("id")}><${Page} /></${Guard}></${Shell}>`;
}

async function begin() {
  live.begin();
  router.listen();
  keys.listen(() => { figures.refresh(); dispatchEvent(new Event("penstock:refresh")); });
  render(html`<${App} />`, document.getElementById("app"));
  for (;;) {
    try { await session.load(); break; } catch { await new Promise((resolve) => { setTimeout(resolve, 2000); }); }
  }
  figures.begin();
  askAgainWhoWeAre();
}

// A gateway that comes back may be another: read-only, or with other keys.
function askAgainWhoWeAre() {
  let away = false;
  effect(() => {
    if (live.state.value === "lost") away = true;
    else if (away && live.state.value === "live") {
      away = false;
      session.load().catch(() => { away = true; });
    }
  });
}

begin();
