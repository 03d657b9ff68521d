package systest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// PROOF: who may do what, 15.
// One role owns the schema, another one serves: it can do all that people do, and neither change the schema nor what
// the audit log says.
func TestServeAsARoleThatOwnsNothing(t *testing.T) {
	binary, ns := testenv.Program(t, root), testenv.NATS(t)
	database := testenv.EmptyDatabase(t)
	admin := testenv.Connect(t, database)
	owner, asOwner := testenv.Role(t, database, "")
	app, asApp := testenv.Role(t, database, "")
	change(t, admin, "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	change(t, admin, "ALTER SCHEMA public OWNER TO "+owner)

	n := launch(t, binary, asApp, ns.URL(), nil)
	if says := "tranche migrate --database URL --grant " + app; n.url != "" || !strings.Contains(n.said.String(), says) {
		t.Fatalf("without a schema serve ended with %v: %s", n.err, n.said.String())
	}
	must(t, binary, "", "migrate", "--database", asOwner)
	for range 2 {
		must(t, binary, "", "migrate", "--database", asOwner, "--grant", app)
	}
	files := t.TempDir()
	testenv.NoError(t, os.WriteFile(filepath.Join(files, "items.csv"), []byte(testenv.Accounts(3)), 0o600))
	testenv.NoError(t, os.Chtimes(filepath.Join(files, "items.csv"), time.Time{}, time.Now().Add(-time.Minute)))
	n = up(t, binary, asApp, ns.URL(), nil, "--schedule-files", files)
	serveAccounts(t, testenv.Conn(t, ns), "C7")
	work(t, binary, n)
	outlast(t, binary, n, admin)
	expire(t, binary, n, admin)
	refuse(t, asApp, asOwner)
	testenv.Has(t, must(t, binary, "", "doctor", "--database", asApp), "hold", "doctor")
	next, asNext := testenv.Role(t, database, "") // takes its place: docs/operate/upgrade.md
	must(t, binary, "", "migrate", "--database", asOwner, "--grant", next)
	after := up(t, binary, asNext, ns.URL(), nil)
	if n.end(t); strings.Contains(n.said.String(), "permission denied") {
		t.Errorf("it lacked a right: %s", n.said.String())
	}
	change(t, admin, "DROP OWNED BY "+app+"; ALTER ROLE "+app+" NOLOGIN")
	wantRun(t, binary, after, 3, "199")
}

func change(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	testenv.Must(pool.Exec(t.Context(), sql))(t)
}

// work does once what people do.
func work(t *testing.T, binary string, n *server) {
	t.Helper()
	wantRun(t, binary, n, 3, "199")
	for _, c := range []struct {
		code        int
		stdin, args string
	}{
		{3, "", "run rerun last --failed --wait"},
		{3, "", "run reset last --all --wait"},
		{0, "", "run report last"},
		{0, "", "run export last --format csv"},
		{0, "endpoint: statement\nmax_age: 10ms\nname: notify\n", "collector apply -"},
		{0, "", `collector add notify --key k --payload {"id":"C1"}`},
		{0, "", "tracker open --owner me --key k"},
		{0, "name: nightly\ncron: 0 3 29 2 *\nendpoint: statement\nitems:\n  file: items.csv\n", "schedule apply -"},
		{0, "", "schedule pause nightly"},
		{0, "", "schedule resume nightly"},
		{0, "", "schedule run-now nightly"},
		{0, "", "token create --name bea --role viewer"},
		{0, "", "retention set events --age 30d"},
		{0, "", "retention run"},
		{0, "", "audit"},
		{0, "", "health"},
		{0, "", "nodes"},
	} {
		args := append([]string{"--url", n.url}, strings.Fields(c.args)...)
		until(t, "tranche "+c.args+" ends as it should", func() bool {
			r, err := run(binary, c.stdin, args...)
			if err != nil || r.code != c.code && c.args != "health" {
				t.Fatalf("tranche %s: exit code %d, want %d, %v\n%s%s", c.args, r.code, c.code, err, r.out, r.err)
			}
			return r.code == c.code // a look of health may be some seconds old: of before the node led
		})
	}
}

// expire has old rows of the audit log deleted, which leaves a row that says so.
func expire(t *testing.T, binary string, n *server, admin *pgxpool.Pool) {
	t.Helper()
	testenv.Rewrite(t, admin, `UPDATE audit_log SET at = at - interval '400 days' WHERE action = 'start'`)
	must(t, binary, "", "--url", n.url, "retention", "set", "audit", "--age", "366d")
	untilSQL(t, admin, "old rows expire", `SELECT count(*) FILTER (WHERE action = 'start') = 0 AND
		count(*) FILTER (WHERE action = 'audit_expire' AND detail->>'rows' = '3') = 1 FROM audit_log`)
}

// outlast waits for what work began to end, and has what ended deleted.
func outlast(t *testing.T, binary string, n *server, admin *pgxpool.Pool) {
	t.Helper()
	command := func(stdin string, args ...string) string {
		return must(t, binary, stdin, append([]string{"--json", "--url", n.url}, args...)...)
	}
	untilSQL(t, admin, "the operation is done", `SELECT NOT EXISTS (SELECT FROM collector_op)`)
	untilSQL(t, admin, "the schedule's run is done",
		`SELECT count(*) = 1 FROM batchrun WHERE name = 'nightly' AND state = 'completed' AND done = 3`)
	var opened struct{ ID string }
	testenv.NoError(t, json.Unmarshal([]byte(command("", "tracker", "open", "--owner", "me", "--key", "k2")), &opened))
	command("", "tracker", "add", opened.ID, "5")
	command("", "tracker", "ack", opened.ID+":all")
	command("", "tracker", "seal", opened.ID)
	untilSQL(t, admin, "the batch is complete",
		`SELECT count(*) = 1 FROM tracker_batch WHERE state = 'completed' AND items = 5`)
	command(testenv.Accounts(3), "run", "start", "--endpoint", "nobody", "--items", "-")
	command("", "run", "cancel", "last")
	untilSQL(t, admin, "the events are published", `SELECT count(*) = 0 FROM run_event WHERE published_at IS NULL`)
	change(t, admin, `UPDATE batchrun SET finished_at = finished_at - interval '2 hours'`)
	command("", "retention", "set", "runs", "--age", "1h")
	untilSQL(t, admin, "the runs are deleted", `SELECT count(*) = 3 AND bool_and(purged_at IS NOT NULL) AND
		NOT EXISTS (SELECT FROM batchrun) AND NOT EXISTS (SELECT FROM work_result) FROM deleted_run`)
}

// refuse tries what neither role may do, and what only the owner may.
func refuse(t *testing.T, asApp, asOwner string) {
	t.Helper()
	app, owner := testenv.Connect(t, asApp), testenv.Connect(t, asOwner)
	log := []string{
		`UPDATE audit_log SET actor = 'no one'`, `DELETE FROM audit_log`, `TRUNCATE audit_log`,
		`UPDATE audit_log SET at = at WHERE false`,
	}
	for _, sql := range append(log,
		`INSERT INTO audit_log (actor, action, at) VALUES ('a', 'b', tranche_now() - interval '1 year')`,
		`DELETE FROM audit_expiry`, `DELETE FROM tranche_migration`,
		`ALTER TABLE audit_log DISABLE TRIGGER ALL`, `DROP TRIGGER audit_guard ON audit_log`, `DROP TABLE audit_log`,
		`SET session_replication_role = replica`, `CREATE TABLE mine ()`, `CREATE INDEX ON batchrun (name)`,
		`ALTER TABLE batchrun ADD COLUMN mine text`, `TRUNCATE work_slice`, `DROP TABLE work_slice`,
		`CREATE OR REPLACE FUNCTION audit_guard() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`,
	) {
		wantDenied(t, app, sql)
	}
	for _, sql := range log {
		wantDenied(t, owner, sql)
		wantDenied(t, owner, `SET LOCAL tranche.audit_expire = on; UPDATE audit_log SET actor = 'no one'`)
	}
}

func wantDenied(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	testenv.Same(t, testenv.As[*pgconn.PgError](t, err, "%s", sql).Code, "42501", "%s is denied by", sql)
}

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
	nc := testenv.Must(endpoints.Connect())(t)
	t.Cleanup(nc.Close)
	serveAccounts(t, nc, "")
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
		_, text := testenv.Get(t, "http://"+n.metrics+"/metrics")
		return strings.Contains(text, `expiry_timestamp_seconds{of="nats"}`) &&
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
		if r, err := run(binary, "", "doctor", "--database", wrong.database); wrong.database != verified &&
			(err != nil || !strings.Contains(r.err, wrong.says) || strings.Contains(r.err, "--ca")) {
			t.Errorf("%s: doctor: %v, %s", wrong.name, err, r.err)
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
	testenv.Has(t, n.said.String(), "the schema is newer than this program", "it does not say that the schema is newer")
	if r, err := run(binary, "", "migrate", "--database", database); err != nil || r.code != 0 ||
		!strings.Contains(r.err, "the schema is newer than this program: it has migration 99999") {
		t.Errorf("migrate: %v, %+v", err, r)
	}
	serveAccounts(t, testenv.Conn(t, ns), "")
	wantRun(t, binary, n, 0, "200")
	testenv.Has(t, must(t, binary, "", "doctor", "--database", database), "the schema is newer",
		"doctor does not say that the schema is newer")
	n.end(t)
	testenv.Same(t, testenv.Number(t, conn, `SELECT count(*) FROM tranche_migration WHERE version_id = 99999
		AND to_regclass('of_the_next_version') IS NOT NULL`), 1, "the newer schema was left alone")
}
