// The frame: navigation, where we are, the state of the connection, who we are.
import { html, signal } from "../lib/dom.js";
import { route } from "../lib/router.js";
import { answeredAt, lostAt, lostWhy, now, state } from "../lib/live.js";
import { age, clock, short } from "../lib/format.js";
import { PAGES, help } from "../lib/keys.js";
import { dark, toggleTheme } from "../lib/theme.js";
import { may, session } from "../lib/session.js";
import { signOut, signedOut } from "../lib/api.js";
import { Dialogs } from "./dialog.js";
import { figures } from "../lib/figures.js";

const menu = signal(false);
addEventListener("keydown", (event) => { if (event.key === "Escape") menu.value = false; });
const BELONGS = { "/queue": "/queues", "/message": "/messages" };

export function Shell({ crumbs, children }) {
  const path = BELONGS[route.value.path] ?? route.value.path;
  const badges = { "/dead-letters": [figures.value?.deadLetters, "bad"], "/queue-metrics": [figures.value?.cold, "cold"] };
  return html`<div class="shell ${menu.value ? "open" : ""}">
    <a class="skip" href="#main" data-plain>To the content</a>
    <aside class="side" id="menu">
      <a class="brand" href="/"><img src="/ui/icon.svg" alt="" />penstock</a>
      <nav aria-label="Pages" onClick=${() => { menu.value = false; }}>
        ${PAGES.filter((page) => page?.[0] !== "/server" || may("read", null)).map((page) => {
          if (!page) return html`<div class="rule"></div>`;
          const [count, kind] = badges[page[0]] ?? [];
          return html`<a href=${page[0]} aria-current=${path === page[0] ? "page" : undefined}>${page[1]}
            ${count > 0 && html`<span class="badge ${kind}">${short(count)}</span>`}</a>`;
        })}
      </nav>
      <div class="foot">
        ${session.value.readOnly && html`<span class="pill warn">read only</span>`}
        ${session.value.name && html`<span>Signed in as <strong>${session.value.name}</strong></span>
          <button class="small" onClick=${async () => { await signOut(); signedOut.value = true; }}>Sign out</button>`}
        <a href="/docs" data-plain target="_blank" rel="noopener">API</a>
      </div>
    </aside>
    <div class="main">
      <header class="bar">
        <button class="menu plain" aria-label="Menu" aria-expanded=${menu.value} aria-controls="menu" onClick=${() => { menu.value = !menu.value; }}>☰</button>
        <nav class="crumbs" aria-label="Where">${crumbs}</nav>
        <div class="end"><${Connection} />
          <button class="plain" onClick=${toggleTheme} title="Light or dark (t)" aria-label="Use the ${dark.value ? "light" : "dark"} theme">${dark.value ? "☀" : "☾"}</button>
          <button class="plain wide-only" onClick=${help} title="Keys (?)" aria-label="Show the keys">?</button></div>
      </header>
      ${state.value === "lost" && html`<div class="banner lost" role="alert"><strong>Connection lost</strong>
        <span>${lostWhy.value ?? "the gateway does not answer"}, since ${clock(lostAt.value)}. ${answeredAt.value ? `What you see is from ${clock(answeredAt.value)}; what is so now is unknown.` : "Nothing is known yet."} Trying again…</span></div>`}
      <main class="page" id="main" tabindex="-1">${children}</main>
    </div>
    <${Dialogs} />
  </div>`;
}

function Connection() {
  const value = state.value;
  const ago = answeredAt.value ? Math.max(0, Math.round((now.value - answeredAt.value) / 1000)) : null;
  const text = { live: ago < 2 ? "Updated just now" : `Updated ${age(ago)} ago`, lost: "Connection lost", paused: "Paused", connecting: "Connecting…" }[value];
  return html`<span class="connection ${value}" data-connection=${value} title=${answeredAt.value ? `Last updated ${clock(answeredAt.value)}` : ""}><span class="dot"></span>${text}</span>`;
}
