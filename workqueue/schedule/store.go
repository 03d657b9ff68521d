// Package schedule keeps schedules and their fires.
package schedule

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for schedules. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
