// Light and dark: the browser's preference, or what the user chose here.
import { signal } from "./dom.js";

const root = document.documentElement;
const prefers = matchMedia("(prefers-color-scheme: dark)");
export const dark = signal(isDark());

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : prefers.matches;
}

function changed() {
  dark.value = isDark();
  dispatchEvent(new Event("penstock:theme"));
}

export function toggleTheme() {
  root.dataset.theme = dark.value ? "light" : "dark";
  try { localStorage.setItem("penstock.theme", root.dataset.theme); } catch { /* storage may be forbidden */ }
  changed();
}

prefers.addEventListener("change", changed);
