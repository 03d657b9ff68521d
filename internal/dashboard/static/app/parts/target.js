// The target of a step: an endpoint, host, source or function.

import { html } from "../html.js";
import { Text } from "../ui.js";
import { Link } from "../router.js";
import { named } from "../places.js";

const kinds = { http: "HTTP service", sql: "source", local: "local function" };

export const endpointPath = (name) => named("/endpoint", name);

export function targetText({ endpoint, kind }) {
  const [prefix, ...rest] = endpoint.split(":");
  const word = rest.length > 0 ? kinds[prefix] : undefined;
  const shown = word ? rest.join(":") : endpoint;
  return html`${word ?? "endpoint"} <${Link} to=${endpointPath(endpoint)}><${Text} max=${60}>${shown}<//><//>${kind === "direct" ? ", by plain requests" : ""}`;
}
