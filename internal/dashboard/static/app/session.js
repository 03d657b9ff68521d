// The session and what its role permits. No secret is kept here: scripts cannot read the cookie.
import { ROOT, signal } from "./html.js";
import { shared } from "./places.js";
import { namespace, route } from "./router.js";

// session is the document of GET /session; loaded is false until the first answer.
export const session = signal({ loaded: false, authenticated: false, auth: "off", oidc: false, user: "", role: "" });

let byProvider = false; // the last known session began at the provider

// say stores the server's description of the session.
export function say(doc) {
  if (doc.authenticated) byProvider = Boolean(doc.by_provider);
  session.value = { loaded: true, ...doc };
}

// wasByProvider reports whether to log in again at the provider. An expired session does not tell.
export const wasByProvider = () => byProvider;

// leave is called after logout, or to show the login page.
export function leave() { byProvider = false; }

const rank = { watcher: 1, viewer: 2, operator: 3, admin: 4 };

// held is the caller's rank on a page: in the selected namespace, or without one in all, or in any, of theirs.
function held(page, any) {
  const { role, grants = {} } = session.value;
  const own = Object.keys(grants);
  const sole = any || (role === "none" && own.length === 1);
  const at = shared.has(page) ? [] : namespace() ? [namespace()] : sole ? own : [];
  return Math.max(...[role, ...at.map((name) => grants[name])].map((one) => rank[one] || 0));
}

// roleHere is the caller's role on the open page.
export const roleHere = () => Object.keys(rank)[held(route.value.page) - 1] ?? "by namespace";

export const can = (role, page = route.value.page) => held(page) >= rank[role];

// sees reports whether the caller may open a place. These three have what is about their runs.
export const sees = ([, , , , [page]]) => held(["health", "letters", "audit"].includes(page) ? "runs" : page, true) >= rank[{ tokens: "admin", runs: "watcher", api: "watcher" }[page] || "viewer"];

export async function refresh() {
  try {
    const answer = await fetch(ROOT + "/api/v1/session", { credentials: "same-origin", cache: "no-store" });
    if (answer.ok) say(await answer.json());
  } catch { /* the server is unavailable: keep what is known; the bar shows it */ }
  return session.value;
}
