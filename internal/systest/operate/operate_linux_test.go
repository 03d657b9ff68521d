package operate

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// The program is built once for all of it, since that is what takes long.
func TestAsThePagesSay(t *testing.T) {
	binary := testenv.Program(t, filepath.Join("..", "..", ".."))
	t.Run("TLS between the machines", func(t *testing.T) { encrypted(t, binary) })
	t.Run("a schema newer than the program", func(t *testing.T) { older(t, binary) })
}

// encrypted: nodes and services reach NATS and PostgreSQL by TLS, and check whom they speak to; with the authority of
// somebody else a node says what is wrong, and what helps, and ends.
func encrypted(t *testing.T, binary string) {
	t.Helper()
	ca, strangers := newAuthority(t, "ours"), newAuthority(t, "somebody else's")
	nats, servers := startNATS(t, ca)
	database := startPostgres(t, ca)
	verified := database + "?sslmode=verify-full&sslrootcert=" + ca.file

	n := serve(t, binary, verified, nats, "NATS_CA="+ca.file)
	if n.url == "" {
		t.Fatalf("serve does not start: %s", n.log.String())
	}
	t.Setenv("NATS_URL", nats)
	t.Setenv("NATS_CA", ca.file)
	service(t)
	wantRun(t, binary, n)
	conn := testenv.Connect(t, verified)
	var plain, secret int
	err := conn.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE NOT ssl), count(*) FILTER (WHERE ssl) FROM pg_stat_ssl
		JOIN pg_stat_activity USING (pid) WHERE usename = 'app'`).Scan(&plain, &secret)
	if err != nil || plain != 0 || secret < 2 {
		t.Errorf("%d connections to PostgreSQL are encrypted and %d not; %v", secret, plain, err)
	}
	for _, s := range servers {
		if o, err := s.Routez(nil); err != nil || o.NumRoutes == 0 {
			t.Errorf("a server has no routes: %v", err)
		}
	}
	n.end(t)

	for _, wrong := range []struct{ name, database, ca, says string }{
		{"NATS, by another authority", verified, strangers.file, "name the authority that signed it with NATS_CA=FILE"},
		{"PostgreSQL, by another authority", database + "?sslmode=verify-full&sslrootcert=" + strangers.file, ca.file,
			"name the authority that signed the server's certificate with sslrootcert=FILE"},
		{"PostgreSQL, without TLS", database + "?sslmode=disable", ca.file, "no encryption"},
	} {
		n := serve(t, binary, wrong.database, nats, "NATS_CA="+wrong.ca)
		if n.url != "" || n.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(n.log.String(), wrong.says) {
			t.Errorf("%s: serve ended with %v and says:\n%s", wrong.name, n.cmd.ProcessState, n.log.String())
		}
	}
}

// older: to go back is to start the former program; it leaves the newer schema alone and works on it. What the next
// version might have added is not in its way.
func older(t *testing.T, binary string) {
	t.Helper()
	database, ns := testenv.Database(t), testenv.NATS(t)
	conn := testenv.Connect(t, database)
	for _, sql := range []string{
		"ALTER TABLE work_part ADD COLUMN of_the_next_version text NOT NULL DEFAULT 'x'",
		"ALTER TABLE batchrun ADD COLUMN of_the_next_version integer",
		"CREATE TABLE of_the_next_version (id int)",
		"INSERT INTO tranche_migration (version_id, is_applied) VALUES (99999, true)",
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	n := serve(t, binary, database, ns.URL())
	if n.url == "" {
		t.Fatalf("serve does not start: %s", n.log.String())
	}
	t.Setenv("NATS_URL", ns.URL())
	service(t)
	wantRun(t, binary, n)
	if out, err := n.command(binary, "", "doctor", "--database", database).CombinedOutput(); err != nil {
		t.Errorf("doctor: %v\n%s", err, out)
	}
	n.end(t)
	var kept bool
	err := conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM tranche_migration WHERE version_id = 99999)
		AND to_regclass('of_the_next_version') IS NOT NULL`).Scan(&kept)
	if err != nil || !kept {
		t.Errorf("the newer schema was not left alone: %v", err)
	}
}

// node is a tranche serve.
type node struct {
	cmd *exec.Cmd
	url string // empty: it has ended
	log testenv.Log
}

// serve starts a node and waits until it is ready, or has ended.
func serve(t *testing.T, binary, database, nats string, env ...string) *node {
	t.Helper()
	n := &node{cmd: exec.Command(binary, "--json", "serve", "--database", database, "--nats", nats,
		"--listen", "127.0.0.1:0", "--data-dir", t.TempDir(), "--log-level", "warn", "--database-wait", "20s")}
	n.cmd.Env, n.cmd.Stderr = append(testenv.PlainEnv(), env...), &n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.cmd.Process.Kill() }) // it has ended, unless the test failed
	watch := time.AfterFunc(soon, func() { _ = n.cmd.Process.Kill() })
	defer watch.Stop()
	where := map[string]string{}
	if json.NewDecoder(out).Decode(&where) != nil {
		_ = n.cmd.Wait() // how it ended is for the caller to look at
		return n
	}
	n.url = where["api"]
	return n
}

func (n *node) end(t *testing.T) {
	t.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Wait(); err != nil {
		t.Errorf("serve ended with %v: %s", err, n.log.String())
	}
}

func (n *node) command(binary, stdin string, args ...string) *exec.Cmd {
	cmd := exec.Command(binary, append([]string{"--url", n.url}, args...)...)
	cmd.Stdin, cmd.Env = strings.NewReader(stdin), testenv.PlainEnv()
	return cmd
}

// service connects as the environment says, as a service of anybody does, and answers until the test ends.
func service(t *testing.T) {
	t.Helper()
	nc, err := endpoints.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	svc, err := endpoints.New(nc, endpoints.Config{Name: "statement", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	type account struct {
		ID string `json:"id"`
	}
	err = endpoints.HandleEach(svc, "statement", func(_ context.Context, in account) (account, error) { return in, nil })
	if err != nil {
		t.Fatal(err)
	}
	testenv.Keep(t, t.Errorf, "the service", svc.Run)
}

// wantRun has a node run items to the end.
func wantRun(t *testing.T, binary string, n *node) {
	t.Helper()
	out, err := n.command(binary, testenv.Accounts(200), "run", "start", "--endpoint", "statement", "--items", "-",
		"--wait", "--max-wait", soon.String()).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "200") {
		t.Fatalf("the run: %v\n%s", err, out)
	}
}
