package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apitest"
	"github.com/tranchehq/tranche/internal/testenv"
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
			admin, err := pgx.ConnectConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = admin.Close(context.Background()) })
			become := func(sql string) {
				t.Helper()
				for _, sql := range []string{strings.ReplaceAll(sql, "{db}", pgx.Identifier{database}.Sanitize()),
					end + "'" + database + "'"} {
					if _, err := admin.Exec(t.Context(), sql); err != nil {
						t.Fatal(err)
					}
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
			if code, text := b.Ask(http.MethodGet, api.Prefix+"/health", nil); code != 200 {
				t.Fatalf("before: %d %s", code, text)
			}
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
				if code, text := b.Ask(http.MethodPost, api.Prefix+"/runs"+change, nil); code != http.StatusOK {
					t.Errorf("%s once it is well: %d %s", change, code, text)
				}
				become(c.heal)
			}
		})
	}
}
