// Package health reads what may want somebody's attention. It judges nothing.
package health

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for who watches over the whole. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
