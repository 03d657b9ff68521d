// The session and what its role permits. No secret is kept here: scripts cannot read the cookie.
import { ROOT, signal } from "./html.js";

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

const rank = { viewer: 1, operator: 2, admin: 3 };

export function can(role) {
  return (rank[session.value.role] || 0) >= rank[role];
}

// mayNot says why a button is disabled, or "".
export function mayNot(role) {
  if (can(role)) return "";
  return `Needs the role ${role}; you are ${session.value.role || "not logged in"}`;
}

export async function refresh() {
  try {
    const answer = await fetch(ROOT + "/api/v1/session", { credentials: "same-origin", cache: "no-store" });
    if (answer.ok) say(await answer.json());
  } catch { /* the server is unavailable: what we know stays, and the bar says so */ }
  return session.value;
}
