package workqueue_test

import (
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// A process that was stopped in the middle of a COPY holds its slice's lock, and no time-out of PostgreSQL's ends it.
// The leader does, and then issues the slice again.
func TestAClientThatWentMuteInACopy(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	store, release, err := workqueue.Open(t.Context(), url,
		workqueue.PoolConfig{IdleInTransaction: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	b := &bench{T: t, pool: testenv.Connect(t, url), store: store}
	b.session = b.open()
	run := b.load(request(), 20)
	claimed := b.claim(run, 1)[0]

	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["application_name"] = "tranche"
	config.RuntimeParams["idle_in_transaction_session_timeout"] = "100"
	config.RuntimeParams["statement_timeout"] = "500"
	stopped, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	rest, feed := io.Pipe()
	copied := make(chan error, 1)
	lock := `BEGIN; SELECT FROM work_slice WHERE id = '` + claimed.ID.String() + `' FOR UPDATE`
	if _, err := stopped.Exec(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := stopped.PgConn().CopyFrom(t.Context(), rest, `COPY work_error FROM STDIN`)
		copied <- err
	}()
	t.Cleanup(func() {
		_ = feed.Close()
		_ = stopped.Close(t.Context())
	})

	b.expire(b.session)
	b.session = b.open()
	lease := b.lead()
	if n, err := store.ReleaseDeadSessions(t.Context(), lease); err != nil || n != 0 {
		t.Fatalf("released %d, %v; want its lock in the way", n, err)
	}
	began := time.Now()
	b.until("its transaction is ended", func() bool {
		n, err := store.EndMuteClients(t.Context(), lease)
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	})
	if waited := time.Since(began); waited < 9*time.Second {
		t.Errorf("it was ended after %s", waited)
	}
	if err := <-copied; err == nil {
		t.Error("the COPY came to an end")
	}
	if n, err := store.ReleaseDeadSessions(t.Context(), lease); err != nil || n != 1 {
		t.Errorf("released %d, %v; want its slice", n, err)
	}
}
