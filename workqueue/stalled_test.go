package workqueue_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// A process that was stopped in the middle of a COPY holds its slice's lock, and no time-out of PostgreSQL's ends it.
// The leader does, and then issues the slice again.
func TestAClientThatStalledInACopy(t *testing.T) {
	t.Parallel()
	// A cluster of its own: while a client stands still in a COPY, PostgreSQL makes and drops no database.
	url := testenv.Postgres(t).URL()
	store := openStore(t, url, database.PoolConfig{})
	b := &bench{&storetest.Bench{T: t, Pool: testenv.Connect(t, url), Store: store}}
	b.Session = b.Open()
	run := b.Load(storetest.Request(), 20)
	claimed := b.Claim(run, 1)[0]

	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["application_name"] = "node-7" // as its URL may say
	config.RuntimeParams["idle_in_transaction_session_timeout"] = "9000"
	config.RuntimeParams["statement_timeout"] = "9000"
	copied := stopInCopy(t, config, `SELECT FROM work_slice WHERE id = '`+claimed.ID.String()+`' FOR UPDATE`, "work_error")
	others := stopInCopy(t, config, `CREATE TABLE letters (text text)`, "letters")
	b.Until("both wait for their clients", func() bool {
		return b.Number(`SELECT count(*) FROM pg_stat_progress_copy JOIN pg_stat_activity USING (pid)
			WHERE wait_event_type = 'Client'`) == 2
	})

	b.Expire(b.Session)
	b.Session = b.Open()
	lease := b.Lead()
	if n, err := settle.New(store).ReleaseDeadSessions(t.Context(), lease); err != nil || n != 0 {
		t.Fatalf("released %d, %v; want its lock in the way", n, err)
	}
	began := time.Now()
	var first time.Time // when it had been seen
	b.Until("its transaction is ended", func() bool {
		looked := time.Now()
		n, err := session.New(store).EndStalledClients(t.Context(), lease)
		if err != nil || n > 1 {
			t.Fatalf("ended %d, %v; want one", n, err)
		}
		if first.IsZero() {
			first = time.Now()
		}
		if patience := looked.Sub(first); n == 0 && patience > 20*time.Second {
			t.Errorf("it was let stand for %s", patience)
		}
		return n == 1
	})
	if waited := time.Since(began); waited < 9*time.Second {
		t.Errorf("it was ended after %s", waited)
	}
	if err := <-copied; err == nil {
		t.Error("the COPY came to an end")
	}
	b.Until("its slice is released", func() bool { // its client was told before PostgreSQL let go of the lock
		n, err := settle.New(store).ReleaseDeadSessions(t.Context(), lease)
		if err != nil || n > 1 {
			t.Fatalf("released %d, %v; want its slice", n, err)
		}
		return n == 1
	})
	select {
	case err := <-others:
		t.Errorf("a COPY that nobody waits for was ended: %v", err)
	default:
	}
}

// stopInCopy begins a transaction on a connection of its own and a COPY in it whose client says nothing any more. That
// is one message: between two, the client might be idle for too long. The channel gets how it ends.
func stopInCopy(t *testing.T, config *pgx.ConnConfig, before, table string) <-chan error {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	rest, feed := io.Pipe()
	copied := make(chan error, 1)
	var running sync.WaitGroup
	running.Go(func() {
		_, err := conn.PgConn().CopyFrom(context.Background(), rest, `BEGIN; `+before+`; COPY `+table+` FROM STDIN`)
		copied <- err
	})
	t.Cleanup(func() {
		_ = feed.Close()
		running.Wait()
		_ = conn.Close(context.Background())
	})
	return copied
}
