// Package collector keeps collectors: streams of records that are gathered per entity and flushed by rules.
package collector

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for collectors, their records and flushes. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
