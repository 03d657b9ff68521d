// The places in the navigation, and their keys.

// groups of places: [title, [[path, label, icon, key after g, pages that belong to it], …]].
export const groups = [
  ["Work", [
    ["/runs", "Runs", "runs", "r", ["runs", "run", "errors", "item", "comparison", "start"]],
    ["/plans", "Plans", "plans", "p", ["plans"]],
    ["/schedules", "Schedules", "clock", "s", ["schedules"]],
    ["/collectors", "Collectors", "collectors", "c", ["collectors"]],
    ["/trackers", "Trackers", "trackers", "k", ["trackers"]],
  ]],
  ["Operations", [
    ["/health", "Health", "health", "h", ["health"]],
    ["/alerts", "Alerts", "bell", "l", ["alerts"]],
    ["/wall", "Wall screen", "wall", "w", ["wall"]],
    ["/endpoints", "Endpoints", "endpoints", "e", ["endpoints", "endpoint"]],
    ["/nodes", "Nodes", "nodes", "n", ["nodes"]],
    ["/dead-letters", "Dead letters", "letters", "d", ["letters"]],
  ]],
  ["Administration", [
    ["/audit", "Audit", "audit", "a", ["audit"]],
    ["/tokens", "Tokens", "tokens", "t", ["tokens"]],
    ["/api", "API", "api", "i", ["api"]],
  ]],
];

/** named is the path of what has a name, like an endpoint. */
export const named = (path, name) => `${path}?name=${encodeURIComponent(name)}`;

// shared pages change what belongs to no namespace, though some show what is about runs of one.
export const shared = new Set(["health", "endpoints", "endpoint", "nodes", "letters", "audit"]);

export const places = groups.flatMap(([, all]) => all);
