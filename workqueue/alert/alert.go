// Package alert keeps rules of who is told of what, what they have seen and told, and the messages to their receivers.
//
// A condition is told once: it stands in a row of its rule's until it is over, and is marked in the transaction that
// makes the message about it. Of a group at most one message waits; what changes meanwhile is told by the next. An
// attempt at a message is counted, under the leader's lease, before it is made, and what came of it is noted for that
// count only.
package alert

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for alerts. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
