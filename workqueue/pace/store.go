// Package pace keeps what an endpoint can take: its limits, what was learned of it, and its circuit breaker.
package pace

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for endpoints and what they can take. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
