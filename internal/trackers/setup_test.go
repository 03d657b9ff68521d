package trackers_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/endpoints/fanout"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
	trackerstore "github.com/tranchehq/tranche/workqueue/tracker"
)

// soon is more than anything here takes on a busy machine.
const soon = 2 * time.Minute

// counted counts the transactions of acknowledgements.
type counted struct {
	trackerstore.Store

	commits atomic.Int64
}

func (c *counted) AckTrackers(ctx context.Context, acks []service.BatchAck) ([]service.Acked, error) {
	c.commits.Add(1)
	return c.Store.AckTrackers(ctx, acks)
}

type bench struct {
	*testing.T
	pool     *pgxpool.Pool
	store    *counted
	sessions session.Store
	service  *trackers.Service
	ended    atomic.Int64
}

func setup(t *testing.T, conns *connections.Connections) *bench {
	t.Helper()
	pool := testenv.Pool(t)
	db := database.New(pool)
	b := &bench{T: t, pool: pool, sessions: session.New(db), store: &counted{Store: trackerstore.New(db)}}
	var err error
	b.service, err = trackers.New(b.store, trackers.Config{Connections: conns, Ended: func() { b.ended.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.service.Wait)
	return b
}

// open opens a batch with so many items.
func (b *bench) open(set fanout.BatchSettings, items int64) uuid.UUID {
	b.Helper()
	if set.Owner == "" {
		set.Owner = "test"
	}
	opened, err := b.service.Open(b.Context(), set, "ann")
	if err != nil {
		b.Fatal(err)
	}
	id := uuid.MustParse(opened.ID)
	if items > 0 {
		if _, err := b.service.Add(b.Context(), id, fanout.GroupSettings{Items: items}); err != nil {
			b.Fatal(err)
		}
	}
	return id
}

func (b *bench) count(sql string, args ...any) int {
	b.Helper()
	return testenv.Number(b, b.pool, sql, args...)
}

// lease makes the test the leader, until it ends: it is never prolonged.
func (b *bench) lease() workqueue.Lease {
	b.Helper()
	info := session.NodeInfo{Host: "test", PID: 1, Version: "test"}
	session, err := b.sessions.StartSession(b.Context(), info, time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	lease, err := b.sessions.Lead(b.Context(), session, time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	return lease
}
