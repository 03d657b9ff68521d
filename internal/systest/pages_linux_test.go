package systest

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// Nodes and services reach NATS and PostgreSQL by TLS, and check whom they speak to; with the authority of someone else
// a node says what is wrong, and what helps, and ends.
func TestTLSBetweenTheMachines(t *testing.T) {
	binary := testenv.Program(t, root)
	ca, strangers := newAuthority(t, "ours"), newAuthority(t, "someone else's")
	nats, servers := startNATS(t, ca)
	database := startPostgres(t, ca)
	verified := database + "?sslmode=verify-full&sslrootcert=" + ca.file

	n := up(t, binary, verified, nats, []string{"NATS_CA=" + ca.file}, "--metrics-listen", "127.0.0.1:0")
	t.Setenv("NATS_URL", nats)
	t.Setenv("NATS_CA", ca.file)
	connectedService(t)
	wantRun(t, binary, n, 0, "200")
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
	until(t, "metrics say when certificates end", func() bool {
		answer, err := http.Get("http://" + n.metrics + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		all, err := io.ReadAll(answer.Body)
		text := string(all)
		return err == nil && strings.Contains(text, `expiry_timestamp_seconds{of="nats"}`) &&
			strings.Contains(text, `expiry_timestamp_seconds{of="postgresql"}`)
	})
	n.end(t)

	for _, wrong := range []struct{ name, database, ca, says string }{
		{"NATS, by another authority", verified, strangers.file, "name the authority that signed it with NATS_CA=FILE"},
		{"PostgreSQL, by another authority", database + "?sslmode=verify-full&sslrootcert=" + strangers.file, ca.file,
			"name the authority that signed the server's certificate with sslrootcert=FILE"},
		{"PostgreSQL, without TLS", database + "?sslmode=disable", ca.file, "no encryption"},
	} {
		n := launch(t, binary, wrong.database, nats, []string{"NATS_CA=" + wrong.ca}, "--database-wait", "20s")
		if n.url != "" || n.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(n.said.String(), wrong.says) {
			t.Errorf("%s: serve ended with %v and says:\n%s", wrong.name, n.cmd.ProcessState, n.said.String())
		}
	}
}

// To go back is to start the former program; it leaves the newer schema alone and works on it. What the next version
// might have added is not in its way.
func TestASchemaNewerThanTheProgram(t *testing.T) {
	t.Parallel()
	binary := testenv.Program(t, root)
	database, ns := testenv.Database(t), testenv.NATS(t)
	conn := testenv.Connect(t, database)
	for _, sql := range []string{
		"ALTER TABLE work_result ADD COLUMN of_the_next_version text NOT NULL DEFAULT 'x'",
		"ALTER TABLE batchrun ADD COLUMN of_the_next_version integer",
		"CREATE TABLE of_the_next_version (id int)",
		"INSERT INTO tranche_migration (version_id, is_applied) VALUES (99999, true)",
	} {
		testenv.Must(conn.Exec(t.Context(), sql))(t)
	}
	n := up(t, binary, database, ns.URL(), nil)
	if said := n.said.String(); !strings.Contains(said, "the schema is newer than this program") {
		t.Errorf("it does not say that the schema is newer:\n%s", said)
	}
	if r, err := run(binary, "", "migrate", "--database", database); err != nil || r.code != 0 ||
		!strings.Contains(r.err, "the schema is newer than this program: it has migration 99999") {
		t.Errorf("migrate: %v, %+v", err, r)
	}
	serveAccounts(t, testenv.Conn(t, ns), "statement", "")
	wantRun(t, binary, n, 0, "200")
	if said := must(t, binary, "", "doctor", "--database", database); !strings.Contains(said, "the schema is newer") {
		t.Errorf("doctor does not say that the schema is newer:\n%s", said)
	}
	n.end(t)
	var kept bool
	err := conn.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM tranche_migration WHERE version_id = 99999)
		AND to_regclass('of_the_next_version') IS NOT NULL`).Scan(&kept)
	if err != nil || !kept {
		t.Errorf("the newer schema was not left alone: %v", err)
	}
}

// connectedService connects as the environment says, as a service of anybody does.
func connectedService(t *testing.T) {
	t.Helper()
	nc := testenv.Must(endpoints.Connect())(t)
	t.Cleanup(nc.Close)
	serveAccounts(t, nc, "statement", "")
}
