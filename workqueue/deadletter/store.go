// Package deadletter keeps dead letters: messages that were given up, and what becomes of them; and messages in
// quarantine.
package deadletter

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for dead letters. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
