// Package retention removes what has been kept for long enough.
package retention

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for retention. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
