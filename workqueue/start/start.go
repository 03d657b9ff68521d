// Package start loads the items of a run and sets it going, and keeps the texts of plans and their versions.
package start

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for the start of runs. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
