// Who is logged in, and what the role may do. No secret is kept here: the cookie is out of the page's reach.
import { signal } from "./html.js";

// session is the document of GET /session; loaded is false until the first answer.
export const session = signal({ loaded: false, authenticated: false, auth: "off", oidc: false, user: "", role: "" });

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
    if (answer.ok) session.value = { loaded: true, ...await answer.json() };
  } catch { /* the server is away: what we know stays, and the bar says so */ }
  return session.value;
}
