// Package outbox hands events of runs to whoever publishes them, in their order.
package outbox

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for who publishes events. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
