// Sign in with an API key. The key goes to the gateway, which keeps it in a cookie that scripts cannot read.
import { html, useEffect, useState } from "../lib/dom.js";
import * as api from "../lib/api.js";
import { load } from "../lib/session.js";
import { refresh } from "../lib/figures.js";
import { close } from "../parts/dialog.js";

export function SignIn() {
  const [error, setError] = useState(null);
  // What one key had begun is not for the next.
  useEffect(() => close(undefined), []);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await api.signIn(new FormData(event.target).get("key").trim());
      await load();
      refresh();
    } catch (problem) { setError(problem); }
  };
  return html`<main class="signin" id="main"><a class="brand" href="/"><img src="/ui/icon.svg" alt="" />penstock</a><h1>Sign in</h1>
    <form class="stack" onSubmit=${submit}><label class="field">API key<input type="password" name="key" autocomplete="current-password" required autofocus /></label>
      ${error && html`<div class="notice bad" role="alert"><strong>${error.message}</strong><span>${error.hint}</span></div>`}<button class="primary" type="submit">Sign in</button></form>
    <p class="muted">Make a key that may look at everything:</p><p><code>penstock keys create me --scope read</code></p></main>`;
}
