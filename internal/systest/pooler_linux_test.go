package systest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/database"
)

const (
	nodes  = 3
	starts = 4 // of each
)

// Nodes start, migrate, work and end behind a pooler, of which no one has told them. It knows none of the parameters
// that a connection of ours would like to have.
func TestNodesBehindAPooler(t *testing.T) {
	binary := testenv.Program(t, root)
	for _, mode := range []string{"transaction", "session"} {
		t.Run(mode, func(t *testing.T) {
			direct, ns := testenv.EmptyDatabase(t), testenv.NATS(t)
			through := pgbouncer(t, direct, "pool_mode = "+mode+"\ndefault_pool_size = 60")
			if got := handsOn(t, through); got != (mode == "transaction") {
				t.Fatalf("a connection that is free is given to others: %t; the pooler is not one by %s", got, mode)
			}
			serveAccounts(t, testenv.Conn(t, ns), "statement", "C7")
			for round := range starts {
				all := startAll(t, binary, through, ns.URL())
				if round%2 == 0 {
					wantRun(t, binary, all[round%nodes], 3, "199")
				}
				for _, n := range all {
					n.end(t)
				}
			}
			if out := must(t, binary, "", "doctor", "--database", through); !strings.Contains(out, "hold") {
				t.Errorf("doctor: %s", out)
			}
			must(t, binary, "", "token", "create", "--name", "ann", "--role", "viewer", "--database", through)
			if out := must(t, binary, "", "migrate", "--database", through); !strings.Contains(out, "up to date") {
				t.Errorf("migrate: %s", out)
			}
			wantNoLock(t, direct)
		})
	}
}

// startAll starts the nodes at once; the first ones race for the migrations.
func startAll(t *testing.T, binary, database, nats string) []*server {
	t.Helper()
	all := make([]*server, nodes)
	var starting sync.WaitGroup
	for i := range all {
		starting.Go(func() { all[i] = launch(t, binary, database, nats, nil) })
	}
	starting.Wait()
	for _, n := range all {
		if n == nil || n.url == "" {
			t.Fatalf("a node did not start: %s", n.said.String())
		}
	}
	return all
}

// handsOn reports whether two clients get the same connection of the server one at a time.
func handsOn(t *testing.T, database string) bool {
	t.Helper()
	var pids [2]int
	for i := range pids {
		conn, err := pgx.Connect(t.Context(), database)
		testenv.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close(context.Background()) }) // after both were asked
		err = conn.QueryRow(t.Context(), `SELECT pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&pids[i])
		testenv.NoError(t, err)
	}
	return pids[0] == pids[1]
}

// wantNoLock fails the test when a connection of the server keeps what a session of a client has locked or prepared. A
// pooler may still be busy with one that has just ended.
func wantNoLock(t *testing.T, database string) {
	t.Helper()
	untilSQL(t, testenv.Connect(t, database), "no advisory lock is left", `SELECT count(*) = 0 FROM pg_locks l
		JOIN pg_database d ON d.oid = l.database WHERE l.locktype = 'advisory' AND d.datname = current_database()`)
}

// A pooler that cannot carry what we need, or refuses what the URL asks for, ends the start, with the remedy.
func TestAPoolerThatIsNotSetUpForUs(t *testing.T) {
	binary := testenv.Program(t, root)
	direct, ns, told := testenv.Database(t), testenv.NATS(t), []string{"--transaction-pooler"}
	for name, c := range map[string]struct {
		settings, parameters, says string
		flags                      []string
	}{
		"by statement":          {"pool_mode = statement", "", "set pool_mode to transaction or session", nil},
		"by statement, as told": {"pool_mode = statement", "", "set pool_mode to transaction or session", told},
		"a parameter": {"pool_mode = transaction", "&work_mem=64MB",
			"ignore_startup_parameters = lock_timeout,idle_in_transaction_session_timeout", nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := launch(t, binary, pgbouncer(t, direct, c.settings)+c.parameters, ns.URL(), nil, c.flags...)
			if n.url != "" || n.err == nil || !strings.Contains(n.said.String(), c.says) {
				t.Errorf("it ended with %v: %s", n.err, n.said.String())
			}
		})
	}
}

// What a client gives up goes on for no longer behind a pooler whose connections are all taken, and does not keep the
// next from them.
func TestWhatIsGivenUpEndsBehindAPooler(t *testing.T) {
	direct := testenv.Database(t)
	through := pgbouncer(t, direct, "pool_mode = transaction\ndefault_pool_size = 2")
	store, release, err := database.Open(t.Context(), through, database.PoolConfig{})
	testenv.NoError(t, err)
	t.Cleanup(release)
	const sleep = `SELECT pg_sleep(3600)`
	for range 2 {
		err := store.InTxWithin(t.Context(), 500*time.Millisecond, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sleep)
			return err
		})
		if err == nil {
			t.Fatal("it slept for an hour")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		if _, err := store.Pool.Exec(ctx, sleep); err == nil {
			t.Fatal("it slept for an hour")
		}
		cancel()
	}
	untilSQL(t, testenv.Connect(t, direct), "no one sleeps", `SELECT count(*) = 0 FROM pg_stat_activity
		WHERE datname = current_database() AND state = 'active' AND query LIKE '%pg_sleep(3600)' AND pid <> pg_backend_pid()`)
}
