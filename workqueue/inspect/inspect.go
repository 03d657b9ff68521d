// Package inspect reads runs, steps, items, slices, endpoints, nodes, the audit log and unpublished events for whoever
// asks, and counts the items of a run by what a field of their payloads says.
package inspect

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for who looks at runs. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
