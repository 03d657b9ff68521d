// Package inspect reads runs, steps, items, slices, endpoints, nodes and the audit log for whoever asks.
package inspect

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for who looks at runs. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
