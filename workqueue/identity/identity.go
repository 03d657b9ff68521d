// Package identity keeps tokens, the sessions of web users, and failed logins.
package identity

import "github.com/tranchehq/tranche/workqueue/database"

// Store is the database for who asks who somebody is. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }
