package trackers_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
)

// soon is more than anything here takes on a busy machine.
const soon = 2 * time.Minute

func TestMain(m *testing.M) { testenv.Main(m) }

// ann asks, and sees everything.
var ann = trackers.Caller{Actor: "ann", Sight: trackers.All}

type bench struct {
	*testing.T
	pool     *pgxpool.Pool
	db       *database.DB
	sessions session.Store
	service  *trackers.Service
	commits  atomic.Int64 // transactions of acknowledgements
	ended    atomic.Int64
}

func setup(t *testing.T, conns *connections.Connections) *bench {
	t.Helper()
	pool := testenv.Pool(t)
	b := &bench{T: t, pool: pool, db: database.New(pool)}
	b.sessions = session.New(b.db)
	b.service = trackers.New(b.db, trackers.Config{Connections: conns, Ended: func() { b.ended.Add(1) }})
	b.service.CountCommits(&b.commits)
	t.Cleanup(b.service.Wait)
	return b
}

func (b *bench) open(set trackerclient.BatchSettings, items int64) uuid.UUID {
	b.Helper()
	if set.Owner == "" {
		set.Owner = "test"
	}
	opened, err := b.service.Open(b.Context(), set, ann)
	if err == nil && items > 0 {
		_, err = b.add(opened.ID, items, "")
	}
	testenv.NoError(b, err)
	return uuid.MustParse(opened.ID)
}

func (b *bench) add(batch string, n int64, key string) (trackerclient.GroupsAdded, error) {
	add := trackerclient.AddRequest{Batch: batch, GroupSettings: trackerclient.GroupSettings{Items: n, Key: key}}
	return b.service.Add(b.Context(), add, ann)
}

func (b *bench) seal(id uuid.UUID) trackerclient.BatchSealed {
	b.Helper()
	return testenv.Must(b.service.Seal(b.Context(), trackerclient.BatchRequest{Batch: id.String()}, ann))(b)
}

// ack acknowledges items of a batch or, with an empty one, of any.
func (b *bench) ack(batch string, asked trackerclient.Acknowledgement) (trackerclient.BatchesAcked, error) {
	return b.service.Ack(b.Context(), trackerclient.AckRequest{Batch: batch, Acknowledgement: asked}, ann)
}

func (b *bench) get(id uuid.UUID, missing int, sight trackers.Visibility) trackerclient.BatchView {
	b.Helper()
	return testenv.Must(b.service.Get(b.Context(), trackerclient.GetRequest{Batch: id.String(), Missing: missing},
		trackers.Caller{Sight: sight}))(b)
}

func (b *bench) exec(sql string, args ...any) {
	b.Helper()
	testenv.Must(b.pool.Exec(b.Context(), sql, args...))(b)
}

func (b *bench) count(sql string, args ...any) int {
	b.Helper()
	return testenv.Number(b, b.pool, sql, args...)
}

// lease makes the test the leader, until it ends: it is never prolonged.
func (b *bench) lease() workqueue.Lease {
	b.Helper()
	info := session.NodeInfo{Host: "test", PID: 1, Version: "test"}
	session := testenv.Must(b.sessions.StartSession(b.Context(), info, time.Hour))(b)
	return testenv.Must(b.sessions.Lead(b.Context(), session, time.Hour))(b)
}

func (b *bench) resign(lease workqueue.Lease) {
	b.Helper()
	testenv.NoError(b, b.sessions.Resign(context.WithoutCancel(b.Context()), lease))
}
