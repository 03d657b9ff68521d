package systest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

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
			testenv.MustSame(t, handsOn(t, through), (mode == "transaction"), "a free connection is given to others, as by %s",
				mode)
			serveAccounts(t, testenv.Conn(t, ns), "C7")
			for round := range starts {
				all := startAll(t, binary, through, ns.URL())
				if round%2 == 0 {
					wantRun(t, binary, all[round%nodes], 3, "199")
				}
				for _, n := range all {
					n.end(t)
				}
			}
			testenv.Has(t, must(t, binary, "", "doctor", "--database", through), "hold", "doctor")
			must(t, binary, "", "token", "create", "--name", "ann", "--role", "viewer", "--database", through)
			testenv.Has(t, must(t, binary, "", "migrate", "--database", through), "up to date", "migrate")
			wantNoLock(t, direct)
		})
	}
}

// startAll starts the nodes concurrently; the first ones race for the migrations.
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
		conn := testenv.Must(pgx.Connect(t.Context(), database))(t)
		t.Cleanup(func() { _ = conn.Close(context.Background()) }) // after both were asked
		err := conn.QueryRow(t.Context(), `SELECT pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&pids[i])
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

// What a client abandons continues for no longer behind a pooler whose connections are all taken, and does not keep the
// next from them.
func TestWhatIsGivenUpEndsBehindAPooler(t *testing.T) {
	direct := testenv.Database(t)
	through := pgbouncer(t, direct, "pool_mode = transaction\ndefault_pool_size = 2")
	store, release, err := database.Open(t.Context(), through, database.PoolConfig{})
	testenv.NoError(t, err)
	t.Cleanup(release)
	const sleep = `SELECT pg_sleep(3600)`
	for range 2 {
		testenv.Fails(t, store.InTxWithin(t.Context(), 500*time.Millisecond, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sleep)
			return err
		}), "it slept for an hour")
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, err := store.Pool.Exec(ctx, sleep)
		testenv.Fails(t, err, "it slept for an hour")
		cancel()
	}
	untilSQL(t, testenv.Connect(t, direct), "no one sleeps", `SELECT count(*) = 0 FROM pg_stat_activity
		WHERE datname = current_database() AND state = 'active' AND query LIKE '%pg_sleep(3600)' AND pid <> pg_backend_pid()`)
}

// pgbouncer runs the real one before a database until the test ends, and returns the database's URL through it. The
// settings are lines of its [pgbouncer] section.
func pgbouncer(t *testing.T, database, settings string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/pgbouncer")
		testenv.MustSame(t, err, nil, "run scripts/deps.sh pgbouncer, which says what to install where it cannot")
	}
	to := testenv.Must(pgconn.ParseConfig(database))(t)
	dir := testenv.Must(os.MkdirTemp("", "pgb-"))(t) //nolint:usetesting // its path is too long for a socket
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	testenv.NoError(t, os.Chmod(dir, 0o755))
	config := filepath.Join(dir, "pgbouncer.ini")
	password := ""
	if to.Password != "" {
		password = "password=" + to.Password
	}
	text := fmt.Sprintf("[databases]\n%s = host=%s port=%d user=%s %s\n[pgbouncer]\nunix_socket_dir = %s\n"+
		"listen_port = %d\nauth_type = any\nmax_client_conn = 400\ndefault_pool_size = 20\n%s\n",
		to.Database, to.Host, to.Port, to.User, password, dir, poolerPort, settings)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil { // another user reads it
		t.Fatal(err)
	}
	var said bytes.Buffer
	cmd := exec.Command(program, config)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Credential: likeServer(t, dir, to.Host)}
	testenv.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
		if t.Failed() {
			t.Logf("PgBouncer said:\n%s", tail(said.String()))
		}
	})
	through := url.URL{Scheme: "postgres", User: url.User(to.User), Path: "/" + to.Database,
		RawQuery: url.Values{"host": {dir}, "port": {strconv.Itoa(poolerPort)}, "sslmode": {"disable"}}.Encode()}
	for tick := time.Tick(20 * time.Millisecond); ; <-tick {
		conn, err := pgx.Connect(t.Context(), through.String())
		if err == nil {
			_ = conn.Close(t.Context())
			return through.String()
		}
		if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("PgBouncer: %v", err)
		}
		select {
		case <-ended:
			t.Fatalf("PgBouncer ended: %s", said.String())
		default:
		}
	}
}

// poolerPort names the socket. PgBouncer does not listen on it.
const poolerPort = 6432

// likeServer is the user of the test's PostgreSQL, whose socket is for no one else, and who owns dir then. It is not
// root, which PgBouncer refuses to be.
func likeServer(t *testing.T, dir, socket string) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(socket)
	testenv.MustSame(t, err, nil, "the test's PostgreSQL does not listen on a socket")
	owner := info.Sys().(*syscall.Stat_t)
	testenv.NoError(t, os.Chown(dir, int(owner.Uid), int(owner.Gid)))
	return &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
}

func tail(text string) string { return text[max(len(text)-8000, 0):] }
