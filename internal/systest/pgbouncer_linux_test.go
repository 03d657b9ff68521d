package systest

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// pgbouncer runs the real one before a database until the test ends, and returns the database's URL through it. The
// settings are lines of its [pgbouncer] section.
func pgbouncer(t *testing.T, database, settings string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			t.Fatalf("%v: run scripts/deps.sh pgbouncer, which says what to install where it cannot", err)
		}
	}
	to := testenv.Must(pgconn.ParseConfig(database))(t)
	dir, err := os.MkdirTemp("", "pgb-") //nolint:usetesting // its path is too long for a socket
	testenv.NoError(t, err)
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
	if err != nil {
		t.Fatalf("the test's PostgreSQL does not listen on a socket: %v", err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	testenv.NoError(t, os.Chown(dir, int(owner.Uid), int(owner.Gid)))
	return &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
}

func tail(text string) string { return text[max(len(text)-8000, 0):] }
