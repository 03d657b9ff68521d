// The paths of an item. Keys may be anything: in a path, browsers and proxies change those with slashes and dots.
import { BASE, query, segment } from "../api.js";

/** itemPath is the path of an item's page; ordinal distinguishes duplicates of a key. */
export const itemPath = (run, key, ordinal) => `/runs/${segment(run)}/item${query({ key, ordinal })}`;

/** itemApi is the API's path of an item, or of what is below it, like /result. */
export const itemApi = (run, key, below = "", params = {}) => (/[/\\]|^\.*$/.test(key)
  ? `/runs/${segment(run)}/items/~${below}?${new URLSearchParams({ key, ...params })}`
  : `/runs/${segment(run)}/items/${encodeURIComponent(key)}${below}${query(params)}`);

/** resultPath is the path of the bytes of a result. */
export const resultPath = (run, item, step) => BASE + itemApi(run, item.key, "/result", { step, ordinal: item.ordinal });
