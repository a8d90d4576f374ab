// The URL holds the view. Names are parameters and not parts of the path, because a browser rewrites `.` and `..` there.
import { signal } from "./dom.js";

export const route = signal(read());

function read() {
  return { path: location.pathname, query: new URLSearchParams(location.search) };
}

export function go(url, { replace = false } = {}) {
  if (url === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", url);
  const before = route.value.path;
  route.value = read();
  if (route.value.path !== before) window.scrollTo(0, 0);
}

// The address of a page with parameters; empty ones are left out.
export function url(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "" && value !== false) query.set(name, value);
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

// Change parameters of the view that is open; null removes one.
export function change(parameters, { replace = true } = {}) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(parameters)) {
    if (value === null || value === undefined || value === "" || value === false) query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  go(text ? `${location.pathname}?${text}` : location.pathname, { replace });
}

export function parameter(name, fallback = "") {
  return route.value.query.get(name) ?? fallback;
}

// Links within the page do not load it again; a new tab, a download or another origin remain the browser's.
export function listen() {
  addEventListener("popstate", () => { route.value = read(); });
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const link = event.target.closest?.("a[href]");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    if (link.pathname.startsWith("/api/") || link.hasAttribute("data-plain")) return;
    if (link.hash && link.pathname === location.pathname && link.search === location.search) return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
}
