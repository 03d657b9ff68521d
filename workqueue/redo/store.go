// Package redo has parts of runs done again: a reset or a re-run of any items at any steps. What failed and is not to
// be done again is accepted here, too: it is chosen in the same ways.
package redo

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for who redoes. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
