// The keyboard: keys common to all pages, and those that a page adds.
import { html, signal, useEffect } from "./html.js";
import { go } from "./router.js";
import { places } from "./places.js";
import { Dialog } from "./ui/overlays.js";

export const helpShown = signal(false);
export const searchShown = signal(false);

const own = signal([]); // of the page: [{keys, label, fn}]
let waitsFor = 0;       // until when a key after g counts

// useKeys adds keys while a component is mounted: [["p", "Pause", fn], …]. The help lists them.
export function useKeys(list, deps = []) {
  useEffect(() => {
    const mine = list.map(([key, label, fn]) => ({ key, label, fn }));
    own.value = [...own.value, ...mine];
    return () => { own.value = own.value.filter((k) => !mine.includes(k)); };
  }, deps);
}

export const actionsHere = () => own.value;

const typing = (el) => el?.closest?.("input:not([type=checkbox]):not([type=radio]),textarea,select,[contenteditable]");

export function listen() {
  addEventListener("keydown", (e) => {
    if (e.key === "k" && (e.ctrlKey || e.metaKey) && !e.altKey && !document.querySelector("dialog[open]")) {
      e.preventDefault();
      searchShown.value = true;
      return;
    }
    if (e.defaultPrevented || e.ctrlKey || e.metaKey || e.altKey || document.querySelector("dialog[open]")) return;
    if (typing(e.target)) {
      if (e.key === "Escape") e.target.blur();
      return;
    }
    if (press(e.key)) e.preventDefault();
  });
}

function press(key) {
  if (Date.now() < waitsFor) {
    waitsFor = 0;
    const place = places.find(([, , , k]) => k === key);
    if (place) {
      go(place[0]);
      return true;
    }
  }
  const mine = own.value.findLast((k) => k.key === key);
  if (mine) {
    mine.fn();
    return true;
  }
  switch (key) {
    case "g": waitsFor = Date.now() + 1500; return true;
    case "?": helpShown.value = true; return true;
    case "/": return focusSearch();
    case "j": return step(1);
    case "k": return step(-1);
    default: return false;
  }
}

function focusSearch() {
  const field = document.querySelector("[data-search]");
  field?.focus();
  field?.select();
  return Boolean(field);
}

// step moves the focus to the next or previous row of the page's tables and lists.
function step(by) {
  const rows = [...document.querySelectorAll("#main [data-rows] > [data-row]")];
  if (rows.length === 0) return false;
  const at = rows.indexOf(document.activeElement?.closest("[data-row]"));
  const next = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + by))];
  if (!next.hasAttribute("tabindex")) next.tabIndex = -1;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
  return true;
}

export function Help() {
  const line = (keys, label) => html`<li><span>${keys.map((k) => html`<kbd>${k}</kbd>`)}</span>${label}</li>`;
  return html`<${Dialog} title="Keys" test="help-dialog" onClose=${() => { helpShown.value = false; }}>
    <div class="keys">
      <div><h3>Everywhere</h3><ul>
        ${line(["Ctrl", "K"], "Search everything")}${line(["/"], "Search on this page")}${line(["j"], "Next row")}${line(["k"], "Previous row")}${line(["Enter"], "Open the row")}
        ${line(["Esc"], "Close, or leave a field")}${line(["?"], "This list")}</ul>
        ${own.value.length > 0 && html`<h3>On this page</h3><ul>${own.value.map((k) => line([k.key], k.label))}</ul>`}</div>
      <div><h3>Go to</h3><ul>${places.map(([, label, , key]) => line(["g", key], label))}</ul></div>
    </div><//>`;
}
