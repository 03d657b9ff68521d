package workqueue

import (
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Store is PostgreSQL as Tranche sees it. It is safe for concurrent use.
type Store struct {
	pool     *connections
	sessions *pgxpool.Pool // for heartbeats and leases, so that they need not queue for a connection
	parts    sync.Pool     // *copyRows: buffers of past recordings, some megabytes each
	graphs   graphCache    // of the runs that it had to do with lately
	mute     muteWatch
	settings string      // a statement that follows each BEGIN, empty: none; see transactionSettings
	errors   errorsCache // of the runs whose errors were looked at lately
	paced    sync.Map    // endpoints whose pace is known to be there
}

// New returns a store on a pool whose database has been migrated. The store does not close the pool. See also [Open].
func New(pool *pgxpool.Pool) *Store {
	return &Store{pool: &connections{ordinary: pool, credentials: pool, duties: pool}, sessions: pool}
}
