// The client of the API under /api/v1. Errors are ApiError; an ended session leads to the login page.
import { ROOT } from "./html.js";
import { session, refresh, wasByProvider, leave } from "./session.js";
import { go, namespace, route } from "./router.js";

export const BASE = ROOT + "/api/v1";

// ApiError is a problem document; status 0 means that the server could not be reached.
export class ApiError extends Error {
  constructor(status, { title, detail, errors } = {}, retryAfter = 0) {
    super(detail || title || "HTTP " + status);
    this.name = "ApiError";
    this.status = status;
    this.title = title || "";
    this.detail = detail || "";
    this.errors = errors || [];
    this.retryAfter = retryAfter; // seconds
  }
}

// conflict describes the refusal of a change (if_was) because the setting was changed meanwhile: {has, message}.
// Undefined for other errors.
export function conflict(err, wanted) {
  const place = err.errors?.find((e) => e.location?.startsWith("body.if_was."));
  return place && { has: place.value ?? "", message: `It is now ${place.value || "none"}. Press Enter to set ${wanted} anyway.` };
}

// Paths are relative to /api/v1.
export const api = {
  async get(path, { signal, etag } = {}) {
    const answer = await call("GET", path, { signal, headers: etag ? { "If-None-Match": etag } : {} });
    if (answer.status === 304) return undefined;
    return parse(answer);
  },
  // post sends JSON, or a Blob, FormData or string unchanged. All retries after a lost connection use one
  // Idempotency-Key, so nothing is done twice.
  async post(path, body, { key = newKey(), signal, type, headers = {} } = {}) {
    const raw = body instanceof Blob || body instanceof FormData || typeof body === "string";
    const all = { ...headers, ...(key ? { "Idempotency-Key": key } : {}) };
    if (type) all["Content-Type"] = type;
    else if (!raw) all["Content-Type"] = "application/json";
    return parse(await persist("POST", path, {
      body: raw ? body : JSON.stringify(body ?? {}), headers: all, signal,
    }, key));
  },
  async del(path, { key = newKey(), signal } = {}) {
    return parse(await persist("DELETE", path, { signal, headers: key ? { "Idempotency-Key": key } : {} }, key));
  },
  // raw returns the response itself. It throws for error statuses, but not for 304.
  raw(path, { signal, headers } = {}) {
    return call("GET", path, { signal, headers });
  },
};

// newKey is for one user action. randomUUID needs a secure context, unlike plain http on a LAN.
export function newKey() {
  if (crypto.randomUUID) return crypto.randomUUID();
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
}

// query encodes parameters: lists are repeated, empty values dropped.
export function query(params) {
  const q = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") q.append(name, one);
    }
  }
  const text = q.toString();
  return text ? "?" + text : "";
}

export const segment = (name) => encodeURIComponent(name).replace(/^\.{1,2}$/, (dots) => dots.replaceAll(".", "%2E"));

// scope limits lists and changes to the selected namespace. What a page is about is found in any; letters are requeued
// in all.
export const scope = (method, path) => (namespace() && !/^\/(namespaces|dead-letters|audit)/.test(path) && !(method === "GET" && /^\/\w+\/./.test(path))
  ? { "Tranche-Namespace": encodeURIComponent(namespace()) } : {});

async function call(method, path, { body, headers = {}, signal } = {}) {
  let answer;
  try {
    answer = await fetch(BASE + path, { method, body, headers: { ...scope(method, path), ...headers }, signal, credentials: "same-origin", cache: "no-store" });
  } catch (err) {
    if (err.name === "AbortError") throw err;
    throw new ApiError(0, { title: "Not reached", detail: "The server does not answer. Is it running?" });
  }
  if (answer.headers.get("Tranche-Act")) {
    throw new ApiError(answer.status, { title: "Asked for", detail: `Nothing was done yet: another admin must confirm it within a day, on
      the page Tokens or by: tranche act confirm ${answer.headers.get("Tranche-Act")}` });
  }
  if (answer.ok || answer.status === 304) return answer;
  const error = await problem(answer);
  if (error.status === 401) toLogin(path);
  throw error;
}

const retries = [400, 1500]; // ms; the delays of retries after a lost connection

async function persist(method, path, options, key) {
  for (let i = 0; ; i++) {
    try {
      return await call(method, path, options);
    } catch (err) {
      if (!(err instanceof ApiError) || err.status !== 0 || !key || i >= retries.length) throw err;
      await new Promise((done) => setTimeout(done, retries[i]));
    }
  }
}

const digits = (number) => number.replace(/e.*/i, "").replace(/[-.]/g, "").replace(/^0+|0+$/g, "");

/** exactly parses JSON; numbers of items with more digits than a JavaScript number has are kept as written. */
export function exactly(text) {
  if (!JSON.rawJSON || !/[\d.]{16}/.test(text)) return JSON.parse(text);
  return JSON.parse(text, (name, value, { source }) =>
    typeof value === "number" && digits(source) !== digits(String(value)) ? JSON.rawJSON(source) : value);
}

async function parse(answer) {
  if (answer.status === 204) return null;
  const text = await answer.text();
  if (text === "") return null;
  try {
    return exactly(text);
  } catch {
    throw new ApiError(answer.status, { title: "Not understood", detail: "The answer is not JSON." });
  }
}

export async function problem(answer) {
  const retryAfter = Number(answer.headers.get("Retry-After")) || 0;
  let body = {};
  try {
    body = JSON.parse(await answer.text());
  } catch { /* not an answer of the API: use the status */ }
  return new ApiError(answer.status, { title: answer.statusText, ...body }, retryAfter);
}

const RELOGIN = "tranche.relogin";

// relogin reports whether to go to the provider automatically: it redirects logged-in users straight back. Not twice
// in a row, which would loop.
function relogin() {
  const last = Number(sessionStorage.getItem(RELOGIN)) || 0;
  sessionStorage.setItem(RELOGIN, String(Date.now()));
  return Date.now() - last > 60_000;
}

let leaving = false; // to the provider; later session errors need no action

// toLogin goes to the login page and remembers the current one. A wrong token is reported on the login page itself.
export function toLogin(path = "") {
  if (leaving || path.startsWith("/session") || route.value.path === "/login") return;
  const next = encodeURIComponent(location.pathname + location.search);
  const again = wasByProvider() && relogin();
  leave();
  session.value = { ...session.value, authenticated: false, by_provider: false };
  if (again) {
    leaving = true;
    location.replace(ROOT + "/auth/oidc/login?next=" + next);
    return;
  }
  refresh();
  go("/login?next=" + next, { replace: true });
}
