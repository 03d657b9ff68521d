// Package request keeps what was answered to requests with an idempotency key.
package request

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for requests that may come twice. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
