// Package gather holds plans: which steps a run has, what each step needs, and how each is cut, paced and retried.
//
// A plan is a small graph of named steps. [Parse] reads one from YAML, [Single] makes the one-step plan of a single
// endpoint, and [Plan.Validate] checks either. [Overrides] are what one run lays over its plan. The JSON form is what a
// run keeps in the database, so its field names are stable, and a field that this version does not know is refused.
//
// This version runs plans of one step; the graph is checked as a whole all the same.
//
// Guarantees: a plan that Parse returned is valid and complete, with no default left to fill in. Errors name the field,
// and for YAML the line, the column and the source line. Hostile YAML (deep nesting, aliases, huge input) is refused
// before it is parsed.
//
// Not its job: files, the database, running anything. It decides nothing about single items.
//
// Concurrency: plans are plain values; a plan that nobody changes can be shared.
package gather
