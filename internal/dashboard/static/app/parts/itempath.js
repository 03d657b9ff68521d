// Where an item of a run has its page. Keys may be anything, so they stand in the query.

import { query, segment } from "../api.js";

/** itemPath is the page of an item; ordinal tells the items of one key apart. */
export const itemPath = (run, key, ordinal) => `/runs/${segment(run)}/item${query({ key, ordinal })}`;
