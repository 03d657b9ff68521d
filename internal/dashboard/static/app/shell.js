// The frame: navigation, user, connection state, and the page in the middle.
import { html, useEffect, useErrorBoundary, useRef, useState, signal } from "./html.js";
import { enter, route, go, namespace, Link } from "./router.js";
import { session, refresh, leave, roleHere, sees } from "./session.js";
import { api, toLogin } from "./api.js";
import { health, watch } from "./live.js";
import { connection } from "./stream.js";
import { theme, nextTheme } from "./theme.js";
import { Page, Button, Card, ErrorBox, Icon, Menu, Skeleton, Toast, Empty, Select, toast, useLoad } from "./ui.js";
import { Help, helpShown, searchShown } from "./keys.js";
import { Search } from "./search.js";
import { groups, places } from "./places.js";
import { localZone, setTimes, times } from "./zone.js";

const drawer = signal(false);
const shownTimes = signal(0); // one more with each change of how times are shown

// closeDrawer returns the focus to the button that opened it.
function closeDrawer() {
  drawer.value = false;
  document.querySelector("[data-test=menu]")?.focus();
}

export function Shell() {
  const { page, path } = route.value;
  const { loaded, authenticated } = session.value;
  useEffect(() => { drawer.value = false; }, [path]);
  useEffect(() => {
    if (loaded && !authenticated && page !== "login") toLogin();
  }, [loaded, authenticated, page]);
  if (page === "login") return html`<${Main} page="login"/><${Toast}/>`;
  if (loaded && !authenticated) return null;
  if (page === "wall") return html`<${Main} page=${page}/>`;
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the page</a>
    <div class=${"shell" + (drawer.value ? " drawer" : "")}>
      <${Side}/>
      <${Top}/>
      ${drawer.value && html`<div class="veil" onClick=${closeDrawer}></div>`}
      <${Main} key=${shownTimes.value + namespace()} page=${page}/>
    </div>
    ${helpShown.value && html`<${Help}/>`}
    ${searchShown.value && html`<${Search}/>`}
    <${Toast}/>`;
}

function skip(e) {
  e.preventDefault();
  document.getElementById("main").focus();
}

function Side() {
  const { page } = route.value;
  const box = useRef(null);
  useEffect(() => watch(page), [page, namespace()]);
  useEffect(() => { if (drawer.value) box.current.querySelector("nav a")?.focus(); }, [drawer.value]);
  const keys = (e) => {
    if (e.key !== "Escape" || !drawer.value) return;
    e.preventDefault();
    closeDrawer();
  };
  return html`<aside class="side" id="side" aria-label="Sidebar" ref=${box} onKeyDown=${keys}>
    <${Link} to="/runs" class="brand"><${Logo}/>Tranche<//>
    <${Namespaces}/>
    <nav aria-label="Main">${groups.map(([title, all], i) => html`
      <p class="nav-title" id=${"nav-" + i}>${title}</p>
      <ul aria-labelledby=${"nav-" + i}>${all.filter(sees).map(
        ([path, label, icon, key, own]) => html`<li><${Link} to=${path} title=${`${label} (g ${key})`}
          aria-current=${own.includes(page) ? "page" : undefined} data-test=${"nav-" + icon}>
          <${Icon} name=${icon}/><span>${label}</span>${path === "/health" && html`<${HealthAck}/>`}<//></li>`)}</ul>`)}</nav>
    <div class="side-foot">
      <${Connection}/>
      <${User}/>
      <${TimesMenu} now=${shownTimes.value}/>
      <div class="side-tools">
        <${Button} kind="ghost" small icon=${{ light: "sun", dark: "moon", auto: "auto" }[theme.value]} test="theme"
          label=${`Theme: ${theme.value}`} title=${`Theme: ${theme.value}`} onClick=${nextTheme}/>
        <${Button} kind="ghost" small icon="search" label="Search" title="Search everything (Ctrl K)" test="open-search"
          onClick=${() => { searchShown.value = true; }}/>
        <${Button} kind="ghost" small icon="help" label="Keys" title="Keys (?)" test="help"
          onClick=${() => { helpShown.value = true; }}/>
      </div>
    </div>
  </aside>`;
}

// Namespaces chooses one of those that the caller sees, if there are several.
function Namespaces() {
  const at = namespace();
  const names = useLoad("/namespaces").data?.namespaces.map((n) => n.name) ?? [];
  const place = places.find(([, , , , own]) => own.includes(route.value.page));
  return (names.length > 1 || at) && html`<${Select} label="Namespace" test="namespace" value=${at}
    options=${[["", "All namespaces"], ...new Set(at ? [...names, at] : names)]}
    onChange=${(name) => enter(place ? place[0] : "/runs", name)}/>`;
}

// TimesMenu says in which zone times are, and changes it.
function TimesMenu() {
  const item = (label, changes, test) => ({ label, test, icon: Object.entries(changes).every(([k, v]) => times[k] === v) ? "check" : undefined,
    onClick: () => { setTimes(changes); shownTimes.value++; } });
  return html`<${Menu} small kind="ghost" icon="clock" label="How times are shown" test="times-menu" items=${[
    item(`Local: ${localZone}`, { zone: "local" }, "zone-local"), item("UTC", { zone: "utc" }, "zone-utc"),
    item("The schedule's, on its page", { zone: "schedule" }, "zone-schedule"), null,
    item("Ages: 3 min ago", { absolute: false }, "ages"), item("Clock times", { absolute: true }, "clocks"),
  ]}>Times: ${times.zone === "utc" ? "UTC" : times.zone === "schedule" ? "the schedule's" : "local"}<//>`;
}

function Top() {
  const at = places.find(([, , , , own]) => own.includes(route.value.page));
  return html`<header class="top">
    <${Button} kind="ghost" icon="menu" label="Menu" test="menu" aria-expanded=${String(drawer.value)} aria-controls="side"
      onClick=${() => { drawer.value = !drawer.value; }}/>
    <${Link} to=${at ? at[0] : "/runs"} class="brand"><${Logo}/>${at ? at[1] : "Tranche"}<//>
    <${HealthAck} link/>
  </header>`;
}

export function Logo({ size = 22 }) {
  return html`<svg class="logo" width=${size} height=${size} viewBox="0 0 32 32" aria-hidden="true">
    <rect width="32" height="32" rx="7"/><path class="faint" d="M6 9.5h20M6 16h20M6 22.5h20"/>
    <path d="M6 9.5h20M6 16h13M6 22.5h6"/></svg>`;
}

function HealthAck({ link = false }) {
  const h = health.value;
  if (!h || h.status === "ok" || !h.status) return null;
  const critical = h.counts?.critical || 0, warning = h.counts?.warning || 0;
  const tone = h.status === "critical" ? "bad" : "warn";
  const says = `${critical} critical, ${warning} warnings`;
  const mark = html`<span class=${"mark tone-" + tone} title=${says} data-test="health-mark">
    <span aria-hidden="true">${critical || warning || "!"}</span><span class="sr"> (${says})</span></span>`;
  return link ? html`<${Link} to="/health" class="mark-link">${mark}<//>` : mark;
}

function Connection() {
  const words = { live: "Live", connecting: "Connecting", lost: "Connection lost", polling: "Every 5 s", waiting: "Not live", none: "" };
  const state = connection.value;
  return html`<div class=${"connection " + state} role="status" data-test="connection" data-state=${state}
      title=${state === "waiting" ? "Other windows have all the streams that a browser may have; click here" : undefined}>
    ${words[state] && html`<i aria-hidden="true"></i>${words[state]}`}</div>`;
}

function User() {
  const { auth, user, authenticated } = session.value;
  if (auth !== "on") return html`<div class="user" title="Anyone who reaches this address may do everything">
    <${Icon} name="user"/><span class="user-name">No login <small>loopback only</small></span></div>`;
  const out = async () => {
    try {
      await api.del("/session");
    } catch (err) {
      toast(err, { tone: "bad" });
      return;
    }
    leave();
    await refresh();
    go("/login");
  };
  return authenticated && html`<div class="user"><${Icon} name="user"/>
    <span class="user-name"><bdi>${user}</bdi><small data-test="role">${roleHere()}</small></span>
    <${Button} kind="ghost" small icon="out" label="Log out" title="Log out" test="logout" onClick=${out}/></div>`;
}

const modules = new Map(); // loaded modules, by page

// Main loads and shows the page's module. Errors of a page are shown in its place; the frame stays.
function Main({ page }) {
  const [state, setState] = useState({ page: "", Component: null, error: null });
  useEffect(() => {
    if (!page) return undefined;
    let ended = false;
    if (!modules.has(page)) {
      modules.set(page, import(`./pages/${page}.js`).catch((err) => {
        modules.delete(page);
        throw err;
      }));
    }
    modules.get(page).then(
      (m) => { if (!ended) setState({ page, Component: m.default, error: null }); },
      (error) => { if (!ended) setState({ page, Component: null, error }); });
    return () => { ended = true; };
  }, [page]);
  const { path, params, query } = route.value;
  let inside = html`<${Skeleton} lines=${4}/>`;
  if (!page) inside = html`<${Nowhere} path=${path}/>`;
  else if (state.page === page && state.error) inside = html`<${NotLoaded} error=${state.error}/>`;
  else if (state.page === page) {
    const about = [params, query.name, query.key, query.against, query.edit]; // when it changes, nothing shown stays
    inside = html`<${Guarded} key=${page + JSON.stringify(about)}><${state.Component} params=${params} query=${query}/><//>`;
  }
  return html`<main id="main" tabindex="-1" inert=${drawer.value || undefined} class=${"page-" + (page || "none")}>${inside}</main>`;
}

function Guarded({ children }) {
  const [error, reset] = useErrorBoundary((err) => console.error(err));
  if (!error) return children;
  return html`<${Page} title="Something broke"><${ErrorBox} title="This page broke" error=${error} retry=${reset}/><//>`;
}

// A module may be missing because the server was replaced by another version.
function NotLoaded({ error }) {
  return html`<${Page} title="Not loaded"><${ErrorBox} title="This page could not be loaded" error=${{
    detail: `The server is unavailable, or was replaced by another version: load the page again. (${error.message})`,
  }} retry=${() => location.reload()}/><//>`;
}

function Nowhere({ path }) {
  return html`<${Page} title="Nothing here"><${Card}><${Empty} icon="search" title="There is no such page">
    <p><bdi class="code">${path}</bdi></p><p><${Link} to="/runs">To the runs<//></p><//><//><//>`;
}
