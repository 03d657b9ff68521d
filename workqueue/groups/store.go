// Package groups counts the items of a run by what a field of their payloads says, and tells which item has which
// value.
//
// Payloads are read once for each run and field, page by page, and which item has which value is kept in memory, for
// the fields that were looked at last; what is corrected is read again. Where items are is read anew at each look. It
// writes nothing, and any number may use it at once.
package groups

import "github.com/tranchehq/tranche/workqueue/database"

// Store groups the items of the runs of a database.
type Store struct{ db *database.DB }

// New returns the store on a database.
func New(db *database.DB) Store { return Store{db} }
