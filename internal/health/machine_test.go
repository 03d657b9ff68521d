package health_test

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/database"
	store "github.com/tranchehq/tranche/workqueue/health"
)

// Whatever is unavailable, there is a report, which says so; and since when, when it is there again.
func TestWithoutPostgreSQLAndNATS(t *testing.T) {
	t.Parallel()
	w := setup(t)
	url, toDatabase := testenv.Through(t, w.pool.Config().ConnString())
	db := database.New(testenv.Connect(t, url))
	nc, toNATS := testenv.DialThrough(t, w.ns)
	watch := w.look(health.Config{Store: db, NC: nc, DatabaseTimeout: soon})
	w.goesFrom(watch, store.Database, "here")

	toNATS.Cut()
	w.appearsTo(watch, store.NATS, "here", store.Critical, "cannot reach NATS")
	toDatabase.Cut()
	first := w.appearsTo(watch, store.Database, "here", store.Critical, "PostgreSQL does not answer")
	if again := w.appearsTo(watch, store.Database, "here", store.Critical); !again.Since.Equal(first.Since) {
		t.Errorf("away since %s, then since %s", first.Since, again.Since)
	}
	if r := w.report(watch); r.Status != "critical" || r.Counts.Critical != 2 {
		t.Errorf("%+v", r)
	}
	toDatabase.Heal()
	toNATS.Heal()
	w.goesFrom(watch, store.Database, "here")
	w.goesFrom(watch, store.NATS, "here")
}

// What only a server itself can see stands in the report of each: it can be muted through
// any of them.
func TestWhatAnotherServerSeesOfItself(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.leads()
	w.calms()
	var short atomic.Pointer[[]string]
	short.Store(&[]string{"the disk of the database is full"})
	there := w.look(health.Config{Host: "there", Short: func() []string { return *short.Load() }})
	own := w.appearsTo(there, store.ResourceExhausted, "there", store.Critical, "is full")
	other := w.appears(store.ResourceExhausted, "there", store.Critical, "is full")
	if !own.Since.Equal(other.Since) || own.Title != other.Title || own.Remedy != other.Remedy {
		t.Errorf("it says of itself\n%+v, and another one says\n%+v", own, other)
	}
	w.says(store.Muted, store.ResourceExhausted, "there", 0)
	w.stands(store.ResourceExhausted, "there", store.Muted)
	if r := w.report(there); len(r.Conditions) != 0 || len(r.Muted) != 1 {
		t.Errorf("it was muted at another one, and here there is %+v, muted %+v", r.Conditions, r.Muted)
	}
	// Of who says nothing for long it is not known whether it is so still, and what was said of it stays.
	w.exec(`UPDATE health_condition SET seen_at = seen_at - interval '3 minutes'`)
	if r := w.report(w.watch); len(r.Conditions)+len(r.Muted) != 0 {
		t.Errorf("3 minutes later there is %+v, muted %+v", r.Conditions, r.Muted)
	}
	w.report(there)
	w.stands(store.ResourceExhausted, "there", store.Muted)
	short.Store(&[]string{})
	if r := w.report(there); len(r.Conditions)+len(r.Muted) != 0 {
		t.Errorf("it is over, and there is %+v, muted %+v", r.Conditions, r.Muted)
	}
	if r := w.report(w.watch); len(r.Conditions)+len(r.Muted) != 0 {
		t.Errorf("it is over, and another one says %+v, muted %+v", r.Conditions, r.Muted)
	}
}

func TestAStreamIsNearlyFull(t *testing.T) {
	t.Parallel()
	w := setup(t)
	js := testenv.Must(jetstream.New(w.nc, jetstream.WithDefaultTimeout(soon)))(t)
	stream := testenv.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: wire.StreamWork,
		Subjects: []string{"tranche.work.>"}, MaxBytes: 1 << 20, MaxMsgs: 10_000}))(t)
	fill := func(n int) {
		t.Helper()
		for range n {
			testenv.Must(js.Publish(t.Context(), "tranche.work.bills", make([]byte, 50<<10)))(t)
		}
	}
	const subject = wire.StreamWork + " bytes"
	fill(17)
	w.appears(store.StreamLimit, subject, store.Warning, "of 1.0 MiB", "tranche streams set")
	fill(3)
	w.appears(store.StreamLimit, subject, store.Critical)
	if _, there := seen(w.report(w.watch), store.StreamLimit, wire.StreamWork+" messages"); there {
		t.Error("20 messages of 10000 are near the limit")
	}
	testenv.NoError(t, stream.Purge(t.Context()))
	w.goes(store.StreamLimit, subject)
}

func TestTheAccountIsNearlyFull(t *testing.T) {
	t.Parallel()
	w := setup(t)
	guarded := testenv.NATSByConfig(t, `
		jetstream {}
		accounts { A { jetstream { max_streams: 2 }, users: [{user: a, password: a}] } }`)
	nc := testenv.Dial(t, guarded.URL(), nats.UserInfo("a", "a"))
	js := testenv.Must(jetstream.New(nc, jetstream.WithDefaultTimeout(soon)))(t)
	for _, name := range []string{"ONE", "TWO"} {
		testenv.Must(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}}))(t)
	}
	watch := w.look(health.Config{NC: nc})
	w.appearsTo(watch, store.StreamLimit, "the account streams", store.Critical, "2 streams of 2", "NATS server")
	testenv.NoError(t, js.DeleteStream(t.Context(), "ONE"))
	w.goesFrom(watch, store.StreamLimit, "the account streams")
}

func TestADiskWithLittleRoom(t *testing.T) {
	t.Parallel()
	w := setup(t)
	full := w.look(health.Config{DataDir: t.TempDir(), DiskFree: math.MaxUint64})
	w.appearsTo(full, store.Disk, "here", store.Critical, "is free on the disk of here", "The database uses")
	// Another server tells it too, and does not take it back; the one that said so does.
	w.appearsTo(w.look(health.Config{DataDir: t.TempDir(), DiskFree: 1, Host: "elsewhere"}), store.Disk, "here",
		store.Critical, "is free on the disk of here")
	kept := func() (n int) {
		t.Helper()
		err := w.pool.QueryRow(t.Context(), `SELECT count(*) FROM health_condition WHERE kind = 'disk'`).Scan(&n)
		testenv.NoError(t, err)
		return n
	}
	testenv.Same(t, kept(), 1, "a server forgot what another one said")
	w.goesFrom(w.look(health.Config{DataDir: t.TempDir(), DiskFree: 1}), store.Disk, "here")
	testenv.Same(t, kept(), 0, "what is over is kept")
}

func TestConnectionsAreNearlyUsedUp(t *testing.T) {
	t.Parallel()
	w := setup(t)
	cluster := testenv.Postgres(t) // of 100 connections, 3 for superusers
	db := database.New(testenv.Connect(t, cluster.URL()))
	watch := w.look(health.Config{Store: db, DatabaseTimeout: soon})
	w.goesFrom(watch, store.Connections, "PostgreSQL")
	free := occupy(t, cluster.URL(), 90)
	w.appearsTo(watch, store.Connections, "PostgreSQL", store.Warning, "of 97 connections", "max_connections")
	free()
	w.goesFrom(watch, store.Connections, "PostgreSQL")
}

// occupy opens connections, and returns what closes them.
func occupy(t *testing.T, url string, n int) (free func()) {
	t.Helper()
	var conns []*pgx.Conn
	for range n {
		conn := testenv.Must(pgx.Connect(t.Context(), url))(t)
		conns = append(conns, conn)
	}
	var once sync.Once
	free = func() {
		once.Do(func() {
			for _, conn := range conns {
				_ = conn.Close(context.Background())
			}
		})
	}
	t.Cleanup(free)
	return free
}

// Many who ask cause one look.
func TestOneLookForAll(t *testing.T) {
	t.Parallel()
	w := setup(t)
	watch := testenv.Must(health.New(health.Config{Store: w.store, NC: w.nc, Every: time.Hour}))(t)
	t.Cleanup(watch.Wait)
	const callers = 100
	reports := make(chan *health.Report, callers)
	for range callers {
		go func() {
			r, err := watch.Report(t.Context())
			testenv.Same(t, err, nil, "the report")
			reports <- r
		}()
	}
	first := <-reports
	for range callers - 1 {
		testenv.MustSame(t, <-reports, first, "another look")
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	end := make(chan struct{})
	endless := w.look(health.Config{Short: func() []string { <-end; return nil }})
	_, err := endless.Report(gone)
	testenv.Fails(t, err, "someone who is gone was answered")
	close(end)
}
