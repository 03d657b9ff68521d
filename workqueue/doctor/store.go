// Package doctor recounts what a database holds, and says what does not agree.
package doctor

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for the doctor. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
