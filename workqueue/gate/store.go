// Package gate shows gates: steps of runs that begin when somebody has looked and approved. What it shows is read in
// one snapshot. Approving is control's. It is safe for concurrent use.
package gate

import "github.com/tranchehq/tranche/workqueue/database"

// Store shows the gates of one database.
type Store struct{ db *database.DB }

// New returns the store of a database.
func New(db *database.DB) Store { return Store{db} }
