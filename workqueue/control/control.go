// Package control is what operators and thresholds do to a run under way: hold it, let it go on, approve a canary,
// cancel, and change the settings of its steps; and what they look at before they let a gated step begin, read in one
// snapshot.
package control

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for who controls runs. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
