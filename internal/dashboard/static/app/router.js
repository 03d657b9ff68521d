// The dashboard's paths, by the History API.
import { ROOT, html, rooted, signal } from "./html.js";

// pages are the modules by path; {name} is a parameter.
export const pages = [
  ["/", "runs"], ["/runs", "runs"], ["/runs/{run}", "run"], ["/runs/{run}/errors", "errors"],
  ["/runs/{run}/item", "item"], ["/runs/{run}/comparison", "comparison"], ["/start", "start"], ["/plans", "plans"], ["/schedules", "schedules"], ["/collectors", "collectors"],
  ["/trackers", "trackers"], ["/alerts", "alerts"], ["/endpoints", "endpoints"],
  ["/endpoint", "endpoint"], ["/nodes", "nodes"], ["/dead-letters", "letters"], ["/audit", "audit"],
  ["/health", "health"], ["/wall", "wall"], ["/tokens", "tokens"], ["/login", "login"], ["/api", "api"],
];

function match(path) {
  for (const [pattern, page] of pages) {
    const want = pattern.split("/");
    const have = path.split("/");
    if (want.length !== have.length) continue;
    const params = {};
    const fits = want.every((part, i) => {
      if (!part.startsWith("{")) return part === have[i];
      if (have[i] === "") return false;
      try {
        params[part.slice(1, -1)] = decodeURIComponent(have[i]);
      } catch {
        return false;
      }
      return true;
    });
    if (fits) return { page, params };
  }
  return { page: "", params: {} };
}

function read() {
  const path = location.pathname.slice(ROOT.length);
  return { path, ...match(path), query: Object.fromEntries(new URLSearchParams(location.search)) };
}

// route is the current place: {path, page, params, query}.
export const route = signal(read());

// namespace is the selected one, from the address; "" for all that the caller sees.
export const namespace = () => route.value.query.namespace || "";

const choosing = (name) => "namespace=" + encodeURIComponent(name);

// within adds the selected namespace to a path that names none.
export const within = (path) => (!namespace() || /[?&]namespace=/.test(path) ? path
  : path + (path.includes("?") ? "&" : "?") + choosing(namespace()));

// enter selects a namespace, or all of them.
export const enter = (path, name) => show(name ? path + "?" + choosing(name) : path);

// go shows a path of the dashboard, in the selected namespace.
export const go = (path, options) => show(within(path), options);

// keep keeps the scroll position, for a change of the query.
function show(path, { replace = false, keep = false } = {}) {
  const before = location.pathname;
  path = rooted(path);
  if (path !== location.pathname + location.search) {
    history[replace ? "replaceState" : "pushState"](null, "", path);
  }
  route.value = read();
  if (!keep && before !== location.pathname) scrollTo(0, 0);
}

// setQuery changes query parameters in place; empty values are removed.
export function setQuery(changes, { replace = true } = {}) {
  const q = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === undefined || value === null || value === "") q.delete(name);
    else q.set(name, value);
  }
  const text = q.toString();
  show(location.pathname + (text ? "?" + text : ""), { replace, keep: true });
}

addEventListener("popstate", () => { route.value = read(); });

// Link navigates without reloading the page; with a modifier key the browser handles it.
export function Link({ to, children, ...rest }) {
  const click = (e) => {
    if (e.defaultPrevented || e.button !== 0 || e.metaKey || e.ctrlKey || e.shiftKey || e.altKey) return;
    e.preventDefault();
    go(to);
  };
  return html`<a href=${within(to)} onClick=${click} ...${rest}>${children}</a>`;
}
