// Package explain says for every item that is missing what it waits for, and until when. It only reads.
package explain

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for who explains runs. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
