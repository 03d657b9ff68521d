package database

import (
	"reflect"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// DB is PostgreSQL as Tranche sees it. It is safe for concurrent use.
type DB struct {
	Pool     *connections
	Sessions *pgxpool.Pool // for heartbeats and leases, so that they need not queue for a connection
	settings string        // a statement that follows each BEGIN, empty: none; see transactionSettings
	kept     sync.Map      // by their types, what the rooms keep for it
}

// New returns a database on a pool that has been migrated. It does not close the pool. See also [Open].
func New(pool *pgxpool.Pool) *DB {
	return &DB{Pool: &connections{ordinary: pool, credentials: pool, duties: pool}, Sessions: pool}
}

// Kept returns the T that is kept for a database, such as a cache: a zero one at first. It must be safe for concurrent
// use.
func Kept[T any](db *DB) *T {
	key := reflect.TypeFor[T]()
	kept, ok := db.kept.Load(key)
	if !ok {
		kept, _ = db.kept.LoadOrStore(key, new(T))
	}
	return kept.(*T) //nolint:forcetypeassert // by its type
}
