package api_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	wqdatabase "github.com/tranchehq/tranche/workqueue/database"
)

// PROOF: who may do what, 15 and 18.
// Logins that fail are in the audit log, by the role that serves, which cannot take them out
// again; who has a token that is good is let in anyway, from the same address.
func TestFailedLoginsAreAudited(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	b := apitest.Setup(t)
	b.Pool = testenv.Connect(t, database)
	serving := testenv.Connect(t, testenv.Serving(t, database))
	b.Store = wqdatabase.New(serving)
	good := b.Token("ann", access.Viewer, 0).Secret
	gone := b.Token("gone", access.Viewer, -1).Secret
	b.LockedWith(api.Config{}, access.Config{UnknownBurst: 20, UnknownEvery: time.Hour})
	with := func(secret string) []string { return []string{"Authorization", "Bearer " + secret} }
	ask := func(secret string) *apitest.Head {
		return b.Send(http.MethodGet, api.Prefix+"/tokens", "", with(secret)...)
	}
	if a := ask(good); a.StatusCode != http.StatusForbidden {
		t.Errorf("a viewer gets %d; want 403", a.StatusCode)
	}
	refused := map[int]int{}
	for range 200 {
		refused[ask(access.NewSecret()).StatusCode]++
	}
	if refused[http.StatusUnauthorized] < 20 || refused[http.StatusTooManyRequests] < 150 {
		t.Errorf("200 tokens that are made up got %v", refused)
	}
	if a := ask(access.NewSecret()); a.Header.Get("Retry-After") == "" {
		t.Errorf("one more got %d, %v", a.StatusCode, a.Header)
	}
	if a := ask(good); a.StatusCode != http.StatusForbidden {
		t.Errorf("after that a viewer gets %d; want 403", a.StatusCode)
	}
	_ = ask(gone) // refused as well
	b.Until("the audit log tells of it", `SELECT count(*) BETWEEN 1 AND 3 AND bool_and(actor = 'anonymous' AND
		subject = '127.0.0.1' AND detail->>'by' = 'token') FROM audit_log WHERE action = 'login_failed'`)
	for _, statement := range []string{
		`DELETE FROM audit_log`, `UPDATE audit_log SET actor = 'x'`, `TRUNCATE audit_log`, `DROP TABLE audit_log`,
	} {
		_, err := serving.Exec(t.Context(), statement)
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "42501" {
			t.Errorf("%s as the role that serves: %v", statement, err)
		}
	}
}
