package workqueue_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// openStore opens a store, as often as it takes: a machine that is stalled may need longer for a connection than is
// allowed.
func openStore(t *testing.T, url string, cfg database.PoolConfig) (store *database.DB) {
	t.Helper()
	testenv.Until(t, time.Minute, "there is a connection", func() bool {
		opened, release, err := database.Open(t.Context(), url, cfg)
		if err == nil {
			store = opened
			t.Cleanup(release)
		} else if _, coming := database.Coming(err); !coming {
			t.Fatal(err)
		}
		return err == nil
	})
	return store
}

// Without prepared statements everything works that works with them.
func TestStoreThroughAPooler(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	store := openStore(t, url, database.PoolConfig{TransactionPooler: true})
	b := &bench{&storetest.Bench{T: t, Pool: testenv.Connect(t, url), Store: store}}
	b.Session = b.Open()
	lease := b.Lead()
	req := storetest.Request()
	req.IdempotencyKey, req.Params = "k", map[string]string{"year": "2026"}
	run := b.Load(req, 20)
	if again, err := b.TryLoad(req, few(20)); err != nil || !again.Existing || again.Run != run {
		t.Errorf("the same key again: %+v, %v; want run %s", again, err, run)
	}
	claimed := b.Claim(run, 2)
	b.Send(claimed...)
	b.Pass(claimed[0].ID)
	testenv.Same(t, testenv.Must(settle.New(store).Expire(t.Context(), lease, []workqueue.SliceID{claimed[0].ID}))(t), 1,
		"expired")
	refused := workqueue.SlotError{Code: "refused", Message: "no"}
	b.Record(storetest.Faulty(claimed[1], refused))
	b.Finish(run)
	b.WantState(run, "completed", 1)
	again := testenv.Must(redo.New(store).Rerun(t.Context(), redo.RerunRequest{Run: run,
		Select: redo.Selection{Failed: true}, Actor: "test"}))(t)
	testenv.Same(t, again.Items, 4, "rerun")
	b.Finish(run)
	b.WantState(run, "completed", 2)
	b.Check()
}

// A server of someone's own compiles statements, which would cost seconds at each look for work, and has transactions
// read what was there when they began: sessions of ours do neither, also where a pooler keeps what they were begun with
// from the server, in a transaction and outside.
func TestStoreGoesByItsOwnSettings(t *testing.T) {
	t.Parallel()
	const settings = `SELECT current_setting('jit') || ', ' || current_setting('transaction_isolation')`
	for _, pooler := range []bool{false, true} {
		t.Run(fmt.Sprintf("pooler %t", pooler), func(t *testing.T) {
			t.Parallel()
			url := testenv.Database(t)
			b := &bench{&storetest.Bench{T: t, Pool: testenv.Connect(t, url)}}
			b.Exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET jit = on', current_database());
				EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable',
				current_database()); END $$`)
			b.Store = openStore(t, url, database.PoolConfig{TransactionPooler: pooler})
			b.Session = b.Open()
			var within, outside, later, usual string
			err := session.New(b.Store).AsLeader(t.Context(), b.Lead(), func(ctx context.Context, tx pgx.Tx) error {
				return tx.QueryRow(ctx, settings).Scan(&within)
			})
			testenv.NoError(t, err)
			testenv.NoError(t, b.Store.Pool.QueryRow(t.Context(), settings).Scan(&outside))
			batch := &pgx.Batch{}
			batch.Queue(settings).QueryRow(func(row pgx.Row) error { return row.Scan(&later) })
			testenv.NoError(t, b.Store.Pool.SendBatch(t.Context(), batch).Close())
			if want := "off, read committed"; within != want || outside != want || later != want {
				t.Errorf("in a transaction %s, outside %s, in a batch %s; want %s", within, outside, later, want)
			}
			testenv.NoError(t, testenv.Connect(t, url).QueryRow(t.Context(), settings).Scan(&usual))
			testenv.Same(t, usual, "on, serializable", "the database has; the test shows nothing")
			b.Finish(b.Load(storetest.Request(), 20))
		})
	}
}

// addressOf returns where a server listens: host:port, or the path of a socket.
func addressOf(config *pgx.ConnConfig) string {
	number := strconv.Itoa(int(config.Port))
	if config.Host[0] == '/' {
		return filepath.Join(config.Host, ".s.PGSQL."+number)
	}
	return net.JoinHostPort(config.Host, number)
}

// The host of PostgreSQL is gone without a word, and a standby is there. A read that has no time of its own must find
// out by itself that its idle connection leads nowhere.
func TestAnIdleConnectionThatHasGoneSilentIsGivenUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := b.Pool.Config().ConnConfig
	first, standby := testenv.NewProxy(t, addressOf(config)), testenv.NewProxy(t, addressOf(config))
	at := url.URL{Scheme: "postgres", User: url.UserPassword(config.User, config.Password),
		Host: first.Addr() + "," + standby.Addr(), Path: config.Database, RawQuery: "sslmode=disable"}
	standby.Cut()
	store := openStore(t, at.String(), database.PoolConfig{})
	used := time.Now()
	first.Stall()
	standby.Heal()
	if first.Connections() == 0 || standby.Connections() != 0 {
		t.Fatalf("%d connections lead to the first, %d to the standby", first.Connections(), standby.Connections())
	}
	b.Until("the pool takes its connection for idle", func() bool { return time.Since(used) > 2*time.Second })
	ctx, cancel := context.WithCancel(t.Context()) // without a deadline, which would end the question, too
	given := time.AfterFunc(time.Minute, cancel)
	defer given.Stop()
	var err error
	b.Until("it is asked elsewhere", func() bool { // again, when the standby was slow: what was idle is gone by then
		_, err = inspect.New(store).UnpublishedEvents(ctx, inspect.EventPlace{}, nil, 1)
		_, slow := errors.AsType[*pgconn.ConnectError](err)
		return !slow
	})
	testenv.Same(t, err, nil, "it was not given up")
	if standby.Connections() == 0 {
		t.Error("no connection leads to the standby")
	}
	first.Heal()
}

func TestComing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, unreadable := pgconn.ParseConfig("postgres://localhost/x?sslmode=verify-full&sslrootcert=" + dir + "/none.pem")
	_, noSocket := pgconn.Connect(t.Context(), "host="+dir+" user=u dbname=x")
	_, readOnly := pgconn.Connect(t.Context(), testenv.Database(t)+
		"&target_session_attrs=read-write&default_transaction_read_only=on")
	_, noName := pgconn.Connect(t.Context(), "postgres://u@db.invalid/x?sslmode=disable")
	for name, c := range map[string]struct {
		err  error
		says string // empty: it does not pass
	}{
		"no error":                {nil, ""},
		"of our own":              {errors.New("its schema lacks 00007"), ""},
		"a file of the URL":       {unreadable, ""},
		"no socket yet":           {noSocket, "does not answer"},
		"no address yet":          {noName, "db.invalid"},
		"silent":                  {fmt.Errorf("ping: %w", context.DeadlineExceeded), "does not answer"},
		"lost in a migration":     {fmt.Errorf("apply 00001: %w", syscall.ECONNRESET), "does not answer"},
		"no right to a socket":    {&os.SyscallError{Syscall: "connect", Err: syscall.EACCES}, ""},
		"an error of a migration": {&pgconn.PgError{Code: "42P07"}, ""},
		"stopped in a migration":  {fmt.Errorf("apply 00001: %w", &pgconn.PgError{Code: "57P01"}), "shutting down"},
		"no server promoted":      {readOnly, "takes no writes yet"},
		"a server that recovers":  {fmt.Errorf("ValidateConnect: %w", pgconn.ErrStandbyConnection), "takes no writes yet"},
		"pooler, server down": {pooler("server login has been failing, (server_login_retry)"),
			"does not answer, says its pooler"},
		"pooler, older":       {pooler("pgbouncer cannot connect to server"), "does not answer"},
		"pooler, login":       {pooler("client_login_timeout (server down)"), "does not answer"},
		"pooler, queue":       {pooler("query_wait_timeout"), "does not answer its pooler"},
		"pooler, full":        {pooler("no more connections allowed (max_client_conn)"), "no connection left"},
		"pooler, stopping":    {pooler("pooler is shutting down"), "shutting down"},
		"pooler, no database": {pooler("no such database: x"), ""},
		"pooler, password":    {pooler("password authentication failed"), ""},
		"pooler, parameter":   {pooler("unsupported startup parameter: jit"), ""},
	} {
		why, coming := database.Coming(c.err)
		if coming != (c.says != "") || !strings.Contains(why, c.says) {
			t.Errorf("%s: %q, %t; of %v", name, why, coming, c.err)
		}
	}
}

// pooler is how PgBouncer reports its own failures.
func pooler(says string) error {
	return fmt.Errorf("connect: %w", &pgconn.PgError{Severity: "FATAL", Code: "08P01", Message: says})
}

// A process that was stopped in the middle of a COPY holds its slice's lock, and no timeout of PostgreSQL's ends it.
// The leader does, and then issues the slice again.
func TestAClientThatStalledInACopy(t *testing.T) {
	t.Parallel()
	// A cluster of its own: while a client is stalled in a COPY, PostgreSQL makes and drops no database.
	url := testenv.Postgres(t).URL()
	store := openStore(t, url, database.PoolConfig{})
	b := &bench{&storetest.Bench{T: t, Pool: testenv.Connect(t, url), Store: store}}
	b.Session = b.Open()
	run := b.Load(storetest.Request(), 20)
	claimed := b.Claim(run, 1)[0]

	config := testenv.Must(pgx.ParseConfig(url))(t)
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
	testenv.MustSame(t, testenv.Must(settle.New(store).ReleaseDeadSessions(t.Context(), lease))(t), 0, "released")
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
	testenv.Fails(t, <-copied, "the COPY came to an end")
	b.Until("its slice is released", func() bool { // its client was told before PostgreSQL let go of the lock
		n, err := settle.New(store).ReleaseDeadSessions(t.Context(), lease)
		if err != nil || n > 1 {
			t.Fatalf("released %d, %v; want its slice", n, err)
		}
		return n == 1
	})
	select {
	case err := <-others:
		t.Errorf("a COPY that no one waits for was ended: %v", err)
	default:
	}
}

// stopInCopy begins a transaction on a connection of its own and a COPY in it whose client says nothing any more. That
// is one message: between two, the client might be idle for too long. The channel gets how it ends.
func stopInCopy(t *testing.T, config *pgx.ConnConfig, before, table string) <-chan error {
	t.Helper()
	conn := testenv.Must(pgx.ConnectConfig(t.Context(), config))(t)
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
