// Package session keeps the sessions of nodes, the leader's lease, and the mark by which a database is seen to have
// gone back in time.
package session

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for nodes and their leader. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
