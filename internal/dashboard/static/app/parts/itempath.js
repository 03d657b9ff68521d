// The path of an item's page. Keys may be anything, so they are in the query.

import { query, segment } from "../api.js";

/** itemPath is the path of an item's page; ordinal distinguishes duplicates of a key. */
export const itemPath = (run, key, ordinal) => `/runs/${segment(run)}/item${query({ key, ordinal })}`;
