// Package ledger writes what stands beside a change in its transaction: the audit log, events for others, and the check
// that the leader leads still.
package ledger
