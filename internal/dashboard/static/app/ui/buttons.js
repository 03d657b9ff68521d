import { html, useEffect, useRef, useState } from "../html.js";
import { Icon } from "./icons.js";
import { can } from "../session.js";
import { Link } from "../router.js";

// Button: kind is "" | "primary" | "danger" | "ghost". role is the role it requires; without it there is no button.
// onClick may be async: until it ends the button is busy and ignores clicks.
export function Button({
  kind = "", small = false, icon, role, disabled = false, title, onClick, busy = false, type = "button", test, label,
  children, ...rest
}) {
  const [working, setWorking] = useState(false);
  const alive = useRef(true);
  useEffect(() => () => { alive.current = false; }, []);
  if (role && !can(role)) return null;
  const click = async (e) => {
    if (disabled || working || busy) {
      e.preventDefault();
      return;
    }
    const result = onClick?.(e);
    if (!(result instanceof Promise)) return;
    setWorking(true);
    try {
      await result;
    } finally {
      if (alive.current) setWorking(false);
    }
  };
  const spinning = working || busy;
  return html`<button type=${type} class=${["btn", kind, small ? "small" : "", !children ? "bare" : ""].join(" ")}
      aria-disabled=${disabled ? "true" : undefined} aria-busy=${spinning ? "true" : undefined} title=${title}
      aria-label=${label} data-test=${test} onClick=${click} ...${rest}>
    ${spinning ? html`<span class="spinner" aria-hidden="true"></span>` : icon && html`<${Icon} name=${icon}/>`}
    ${children}</button>`;
}

export function ButtonLink({ to, kind = "", small = false, icon, children, test, title, label }) {
  return html`<${Link} to=${to} class=${["btn", kind, small ? "small" : "", !children ? "bare" : ""].join(" ")}
    data-test=${test} title=${title} aria-label=${label}>${icon && html`<${Icon} name=${icon}/>`}${children}<//>`;
}

// Copy copies a text to the clipboard and confirms it.
export function Copy({ text, label = "Copy", children, small = true, test }) {
  const [done, setDone] = useState("");
  const copy = async () => {
    setDone(await toClipboard(typeof text === "function" ? text() : text) ? "Copied" : "Press Ctrl-C");
    setTimeout(() => setDone(""), 1600);
  };
  return html`<button type="button" class=${"btn ghost copy " + (small ? "small" : "") + (children ? "" : " bare")}
      onClick=${copy} title=${label} aria-label=${label} data-test=${test}>
    <${Icon} name=${done === "Copied" ? "check" : "copy"}/>${children}
    <span class="sr" role="status">${done}</span></button>`;
}

async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { /* no secure context: use the old API */ }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "offscreen";
  (document.querySelector("dialog[open]") || document.body).append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

// Menu is a button that opens a list: items [{label, icon, onClick, to, role, disabled, title, danger} or null: a
// line]. Items that need another role than the caller's are left out, and the button if it would have none.
export function Menu({ label, icon = "more", items, kind = "", small = false, children, test }) {
  const [open, setOpen] = useState(false);
  const box = useRef(null);
  useEffect(() => {
    if (!open) return undefined;
    const away = (e) => { if (!box.current.contains(e.target)) setOpen(false); };
    document.addEventListener("pointerdown", away);
    box.current.querySelector("[role=menuitem]")?.focus();
    return () => document.removeEventListener("pointerdown", away);
  }, [open]);
  const shown = items.filter((i) => i !== false && !(i?.role && !can(i.role)));
  if (!shown.some(Boolean)) return null;
  const close = () => {
    setOpen(false);
    box.current.querySelector("button").focus();
  };
  const keys = (e) => {
    if (!open) return;
    const all = [...box.current.querySelectorAll("[role=menuitem]")];
    const at = all.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[e.key];
    if (to !== undefined) all[(to + all.length) % all.length].focus();
    else if (e.key === "Escape") close();
    else if (e.key === "Tab") return setOpen(false);
    else return undefined;
    e.preventDefault();
    return e.stopPropagation();
  };
  return html`<div class="menu" ref=${box} onKeyDown=${keys}>
    <button type="button" class=${["btn", kind, small ? "small" : "", children ? "" : "bare"].join(" ")}
      aria-haspopup="menu" aria-expanded=${String(open)} aria-label=${children ? undefined : label} title=${label}
      data-test=${test} onClick=${() => setOpen(!open)}>${children}<${Icon} name=${icon}/></button>
    ${open && html`<div class="menu-list" role="menu" aria-label=${label}>${shown.map((item) =>
      item === null ? html`<hr/>` : html`<${MenuItem} item=${item} close=${close}/>`)}</div>`}
  </div>`;
}

function MenuItem({ item, close }) {
  const inside = html`${item.icon ? html`<${Icon} name=${item.icon}/>` : html`<span class="no-icon"></span>`}${item.label}`;
  if (item.to && !item.disabled) {
    return html`<${Link} to=${item.to} role="menuitem" tabindex="-1" data-test=${item.test}>${inside}<//>`;
  }
  const click = () => {
    if (item.disabled) return;
    close();
    item.onClick?.();
  };
  return html`<button type="button" role="menuitem" tabindex="-1" class=${item.danger ? "danger" : ""}
    aria-disabled=${item.disabled ? "true" : undefined} title=${item.title} data-test=${item.test} onClick=${click}>
    ${inside}</button>`;
}

// Tabs: [{id, label, count}]. The caller provides the panel: role="tabpanel" and id = name + "-panel".
export function Tabs({ tabs, value, onChange, label, name = "tabs" }) {
  const keys = (e) => {
    const at = tabs.findIndex((t) => t.id === value);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[e.key];
    if (to === undefined) return;
    e.preventDefault();
    const next = tabs[(to + tabs.length) % tabs.length];
    onChange(next.id);
    e.currentTarget.querySelector(`[data-tab="${CSS.escape(next.id)}"]`).focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${keys}>${tabs.map((t) => html`
    <button type="button" role="tab" key=${t.id} data-tab=${t.id} data-test=${name + "-" + t.id}
      aria-selected=${String(t.id === value)} tabindex=${t.id === value ? 0 : -1} onClick=${() => onChange(t.id)}>
      ${t.label}${t.count !== undefined && t.count !== null && html`<span class="count">${t.count}</span>`}</button>`)}
  </div>`;
}
