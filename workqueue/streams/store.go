// Package streams keeps what nodes agree on about JetStream's streams: their settings, incarnations and troubles.
package streams

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for streams. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
