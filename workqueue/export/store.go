// Package export reads all items of a run with their outcomes, page by page, in constant memory. It only reads. What
// becomes of them, as lines, tables or files, is internal/api/exports' to say.
package export

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for who exports runs. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
