// What a step asks, in words: an endpoint, or a host, a source or a function by its kind.

import { html } from "../html.js";
import { Text } from "../ui.js";
import { Link } from "../router.js";
import { query } from "../api.js";

const kinds = { http: "HTTP service", sql: "source", local: "local function" };

/** endpointPath is the page of an endpoint, or of what else steps ask. */
export const endpointPath = (name) => `/endpoint${query({ name })}`;

/** targetText is what a step asks, with a link to it. */
export function targetText({ endpoint, kind }) {
  const [prefix, ...rest] = endpoint.split(":");
  const word = rest.length > 0 ? kinds[prefix] : undefined;
  const shown = word ? rest.join(":") : endpoint;
  return html`${word ?? "endpoint"} <${Link} to=${endpointPath(endpoint)}><${Text} max=${60}>${shown}<//><//>${kind === "direct" ? ", by plain requests" : ""}`;
}
