// Package gather holds plans: which steps a run has, what each step needs, and how each is cut, paced and retried.
//
// A plan is a small graph of named steps. [Parse] reads one from YAML, [Single] makes the one-step plan of a single
// endpoint, and [Plan.Validate] checks either. [Overrides] are what one run lays over its plan. The JSON form is what a
// run keeps in the database, so its field names are stable, and a field that this version does not know is refused.
//
// A step says how its work is done (an endpoint, a request, http, sql, local), which steps it needs, what of them it
// sees, and whether what needs it goes on without it. Steps stand in any order; [Plan.Ordered] is the one they run in.
//
// Guarantees: a plan that Parse returned is valid and complete, with no default left to fill in. Errors name the field,
// and for YAML the line, the column and the source line. Hostile YAML (deep nesting, aliases, huge input) is refused
// before it is parsed.
//
// Not its job: files, the database, running anything. It decides nothing about single items.
//
// Concurrency: plans are plain values; a plan that nobody changes can be shared.
package gather
