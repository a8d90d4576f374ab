// Who the gateway takes us for, and what that lets us do. What a key may not do has no button.
import { signal } from "./dom.js";
import * as api from "./api.js";

// scopes: null while unknown. `readOnly`: the gateway refuses every change.
export const session = signal({ known: false, name: null, scopes: null, readOnly: false });

export async function load() {
  try {
    const answer = await api.session();
    session.value = { known: true, name: answer.name, scopes: answer.scopes.map(grant), readOnly: answer.read_only };
    api.signedOut.value = false;
  } catch (error) {
    if (error.status !== 401) throw error;
    session.value = { known: true, name: null, scopes: [], readOnly: false };
    api.signedOut.value = true;
  }
}

// Whether a key may do this with a queue; with `null`, with all queues; without a queue, with any of them.
export function may(scope, queue) {
  const { known, scopes, readOnly } = session.value;
  if (!known || !scopes || (readOnly && scope !== "read")) return false;
  return scopes.some((each) => (each.scope === scope || each.scope === "admin") && (queue === undefined || (queue === null ? each.pattern === "*" : each.fits.test(queue))));
}

// A scope and its pattern, taken apart.
export function grant(text) {
  const at = text.indexOf(":");
  const pattern = at < 0 ? "*" : text.slice(at + 1);
  return { scope: at < 0 ? text : text.slice(0, at), pattern, fits: expression(pattern) };
}

// A pattern of a shell: `*`, `?`, `[abc]` and `[!abc]`. The gateway decides; this only says which buttons there are.
function expression(pattern) {
  let made = "";
  const plain = (text) => text.replace(/[\\^$.*+?()[\]{}|/]/gu, "\\$&");
  const characters = [...pattern];
  for (let at = 0; at < characters.length; at++) {
    const each = characters[at];
    const end = each === "[" ? characters.indexOf("]", at + (characters[at + 1] === "!" ? 3 : 2)) : -1;
    if (each === "*") made += ".*";
    else if (each === "?") made += ".";
    else if (end > 0) {
      const not = characters[at + 1] === "!";
      const inner = characters.slice(at + (not ? 2 : 1), end).map(plain).join("");
      made += `[${not ? "^" : ""}${inner}]`;
      at = end;
    } else made += plain(each);
  }
  try { return new RegExp(`^${made}$`, "su"); } catch { return /^$/u; }
}
