// Package alerts tells people, and programs, what they must see to: rules say of what, and whom.
//
// A [Duty] of the leader's looks every few seconds at the health report and at runs, compares that with what each rule
// has told, and makes messages of the difference; another sends them. What was told, and what waits to be, stands in
// PostgreSQL ([github.com/tranchehq/tranche/workqueue/alert]).
//
// Guarantees: a condition is told once, in the message of its group, and once more when it gets worse or is over. A
// message has one id for all its attempts; it is sent again only when nobody knows what came of an attempt, or it
// failed. Texts are bounded, whatever there is to tell. A receiver that hangs, fails or answers slowly keeps nobody
// else waiting, and secrets stand in no text, answer, log or error.
//
// Not its job: what a condition is, and what helps against it (internal/health); how a webhook is signed
// (internal/webhook).
//
// Concurrency: all types are safe for concurrent use once made.
package alerts
