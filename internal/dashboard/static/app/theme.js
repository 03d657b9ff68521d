// Light, dark, or the system's theme. The choice is stored in this browser.
import { signal, effect } from "./html.js";

const stored = () => {
  try {
    return localStorage.getItem("tranche-theme");
  } catch {
    return null;
  }
};

const dark = matchMedia("(prefers-color-scheme: dark)");

// theme is "light", "dark" or "auto"; shownTheme is the one in effect, which canvases depend on.
export const theme = signal(["light", "dark"].includes(stored()) ? stored() : "auto");
export const shownTheme = signal("light");

const show = () => {
  const root = document.documentElement;
  if (theme.value === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme.value;
  shownTheme.value = theme.value === "auto" ? (dark.matches ? "dark" : "light") : theme.value;
};

effect(show);
dark.addEventListener("change", show);

export function nextTheme() {
  theme.value = { auto: "light", light: "dark", dark: "auto" }[theme.value];
  try {
    if (theme.value === "auto") localStorage.removeItem("tranche-theme");
    else localStorage.setItem("tranche-theme", theme.value);
  } catch { /* then it lasts until the page is left */ }
}
