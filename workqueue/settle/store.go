// Package settle records what became of slices: outcomes, releases, and the end of runs. Each is one transaction, from
// the fence to the completion.
package settle

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for outcomes. It is safe for concurrent use.
type Store struct {
	db    *database.DB
	count func([]Settled) // nil: nobody counts
}

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
