// Package tracker keeps trackers: counts of what others have acknowledged.
package tracker

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for trackers. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
