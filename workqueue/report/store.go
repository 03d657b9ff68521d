// Package report says what a run did, and compares runs. It only reads.
package report

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for reports. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
