// Who is logged in, and what the role may do. No secret is kept here: the cookie is out of the page's reach.
import { signal } from "./html.js";

// session is the document of GET /session; loaded is false until the first answer.
export const session = signal({ loaded: false, authenticated: false, auth: "off", oidc: false, user: "", role: "" });

let byProvider = false; // the last session that we knew of was begun by the provider

// say takes what the server says of the session.
export function say(doc) {
  if (doc.authenticated) byProvider = Boolean(doc.by_provider);
  session.value = { loaded: true, ...doc };
}

// wasByProvider reports whether someone is to go to the provider to log in again. A session that is over does not say.
export const wasByProvider = () => byProvider;

// leave is for who has logged out, or is to see the login page.
export function leave() { byProvider = false; }

const rank = { viewer: 1, operator: 2, admin: 3 };

// can reports whether the session's role is at least the one that is asked for.
export function can(role) {
  return (rank[session.value.role] || 0) >= rank[role];
}

// mayNot says why a button is off, or nothing when it is not.
export function mayNot(role) {
  if (can(role)) return "";
  return `Needs the role ${role}; you are ${session.value.role || "not logged in"}`;
}

// refresh asks the server who we are.
export async function refresh() {
  try {
    const answer = await fetch("/api/v1/session", { credentials: "same-origin", cache: "no-store" });
    if (answer.ok) say(await answer.json());
  } catch { /* the server is unavailable: what we know stays, and the bar says so */ }
  return session.value;
}
