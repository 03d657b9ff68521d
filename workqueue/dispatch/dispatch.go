// Package dispatch is how nodes find work and claim it, under the locks of its step and its endpoint.
package dispatch

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for who claims work. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
