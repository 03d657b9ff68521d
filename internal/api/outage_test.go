package api_test

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/startup"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// What each place says while PostgreSQL is not as it should be. None may say that all is well, or name another cause.
func TestWhatIsSaidWhilePostgreSQLIsAmiss(t *testing.T) {
	t.Parallel()
	type says struct {
		code int
		text string
	}
	const end = `SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = `
	for name, c := range map[string]struct {
		make, heal                           string
		ready, health, explain, nodes, pause says
	}{
		"read-only": {
			`ALTER DATABASE {db} SET default_transaction_read_only = on`,
			`ALTER DATABASE {db} RESET default_transaction_read_only`,
			says{503, "PostgreSQL takes no writes"}, says{200, `"status":"critical"`}, says{200, `"database_read_only"`},
			says{200, `"database_read_only":true`}, says{503, "PostgreSQL takes no writes"},
		},
		"gone": {
			`ALTER DATABASE {db} ALLOW_CONNECTIONS false`, `ALTER DATABASE {db} ALLOW_CONNECTIONS true`,
			says{503, "PostgreSQL does not answer"}, says{200, "PostgreSQL does not answer"},
			says{503, "PostgreSQL does not answer"}, says{503, "PostgreSQL does not answer"},
			says{503, "PostgreSQL does not answer"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := apitest.Setup(t)
			run := b.Start("name=r")
			config := b.Pool.Config().ConnConfig
			database := config.Database
			config.Database = "postgres"
			admin := testenv.Must(pgx.ConnectConfig(t.Context(), config))(t)
			t.Cleanup(func() { _ = admin.Close(context.Background()) })
			become := func(sql string) {
				t.Helper()
				for _, sql := range []string{strings.ReplaceAll(sql, "{db}", pgx.Identifier{database}.Sanitize()),
					end + "'" + database + "'"} {
					testenv.Must(admin.Exec(t.Context(), sql))(t)
				}
			}
			at := api.Prefix + "/runs/" + run.Run.String()
			asks := []struct {
				method, path string
				says         says
			}{
				{http.MethodGet, "/readyz", c.ready}, {http.MethodGet, api.Prefix + "/health", c.health},
				{http.MethodGet, at + "/explain", c.explain}, {http.MethodGet, api.Prefix + "/nodes", c.nodes},
				{http.MethodPost, at + "/pause", c.pause},
			}
			b.Read("/health", nil)
			become(c.make)
			for _, a := range asks {
				testenv.Until(t, time.Minute, a.path+" says "+a.says.text, func() bool { // health is kept for seconds
					code, text := b.Ask(a.method, a.path, nil)
					met := code == a.says.code && strings.Contains(string(text), a.says.text)
					if code == http.StatusInternalServerError {
						t.Fatalf("%s: %d %s", a.path, code, text)
					}
					return met
				})
			}
			become(c.heal)
			for _, change := range []string{"/r/pause", "/last/resume"} { // which read at first, on connections that were closed
				b.Post("/runs"+change, "", nil)
				become(c.heal)
			}
		})
	}
}

// natsConfig is a server whose user has a password, may use so much of its disk, and may not publish to some subjects.
func natsConfig(password, room, denied string) string {
	return fmt.Sprintf(`jetstream { max_file_store: %s }
authorization { users = [ { user: u, password: %s, permissions: { publish: { deny: [ %s ] } } } ] }`,
		room, password, denied)
}

// Also while NATS is not: from the start of a node, and of one that was well. The rows are those of
// docs/failures.md.
func TestWhatIsSaidWhileNATSIsAmiss(t *testing.T) {
	t.Parallel()
	page := testenv.Must(os.ReadFile("../../docs/failures.md"))(t)
	const refused, denied = "NATS refuses its user (nats: Authorization Violation)", "NATS denies its user to publish to "
	type says struct{ explain, health, ready, nodes, start string }
	for name, c := range map[string]struct {
		begin  string // the configuration that the node starts with; empty: one with which all is well
		become func(t *testing.T, ns *testenv.GuardedNATS)
		says   says
	}{
		"NATS gone": {
			become: func(_ *testing.T, ns *testenv.GuardedNATS) { ns.Stop() },
			says: says{`"nats_unreachable"`, "This server cannot reach NATS", "NATS is not connected", "it cannot reach NATS",
				"NATS does not answer"},
		},
		"… refusing the password": {
			become: func(t *testing.T, ns *testenv.GuardedNATS) { t.Helper(); ns.Reload(t, natsConfig("q", "64G", "")) },
			says:   says{`"nats_refused"`, refused, refused, refused, "NATS does not answer"},
		},
		"… the same at a start": {
			begin: natsConfig("q", "64G", ""),
			says:  says{`"nats_refused"`, refused, refused, refused, refused},
		},
		"… denying to publish to a stream": {
			become: func(t *testing.T, ns *testenv.GuardedNATS) {
				t.Helper()
				ns.Reload(t, natsConfig("p", "64G", `"tranche.work.>"`))
			},
			says: says{`"nats_refused"`, denied + "tranche.work", denied + "tranche.work", denied + "tranche.work", ""},
		},
		"… denying to make one": {
			begin: natsConfig("p", "64G", `"$JS.API.STREAM.CREATE.>"`),
			says: says{`"nats_refused"`, denied + "$JS.API.STREAM.CREATE", denied + "$JS.API.STREAM.CREATE",
				denied + "$JS.API.STREAM.CREATE", denied + "$JS.API.STREAM.CREATE"},
		},
		"… its store full": {
			begin: natsConfig("p", "1M", ""),
			says: says{`"resource_exhausted"`, "JetStream has no room for the streams",
				"JetStream has no room for the streams", "", "JetStream has no room for the streams"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testenv.Has(t, string(page), "\n| "+name+" |", "docs/failures.md has no row %q", name)
			ns := testenv.NATSByConfig(t, cmp.Or(c.begin, natsConfig("p", "64G", "")))
			nc := testenv.Dial(t, ns.URL(), append(endpoints.Options(), nats.UserInfo("u", "p"))...)
			trouble := &startup.Troubles{}
			e := apitest.SetupEngineOn(t, nc, api.Config{Trouble: trouble.Last}, trouble.Watch())
			b := e.Bench
			if c.become != nil {
				e.Ready()
				c.become(t, ns)
			}
			testenv.Until(t, time.Minute, "the node has a session", func() bool {
				return e.Node.Session() != workqueue.SessionID{}
			})
			run := e.Load("count", 100, nil).String()
			for _, a := range []struct {
				method, path, body, text string
				code                     int
			}{
				{http.MethodGet, api.Prefix + "/runs/" + run + "/explain", "", c.says.explain, 200},
				{http.MethodGet, api.Prefix + "/health", "", c.says.health, 200},
				{http.MethodGet, "/readyz", "", c.says.ready, 503},
				{http.MethodGet, api.Prefix + "/nodes", "", c.says.nodes, 200},
				{http.MethodPost, api.Prefix + "/runs?endpoint=echo", apitest.Three, c.says.start, 503},
			} {
				switch {
				case a.method == http.MethodPost && c.become != nil: // what is well enough to keep it takes it
					a.code = http.StatusCreated
				case a.text == "":
					a.code = http.StatusOK
				}
				var code int
				var text []byte
				t.Cleanup(func() {
					if t.Failed() {
						t.Logf("%s: %d %s", a.path, code, text)
					}
				})
				testenv.Until(t, time.Minute, a.path+" says "+a.text, func() bool {
					code, text = b.Ask(a.method, a.path, strings.NewReader(a.body))
					return code == a.code && strings.Contains(string(text), a.text)
				})
			}
		})
	}
}
