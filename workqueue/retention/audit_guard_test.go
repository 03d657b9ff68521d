package retention_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/retention"
)

// aged is a bench with so many rows in the audit log, each an hour older than the next; the newest is as old as that.
func aged(t *testing.T, n int) *bench {
	t.Helper()
	b := setup(t)
	b.Exec(`UPDATE audit_expiry SET min_age = '0'`)
	b.Exec(`INSERT INTO audit_log (at, actor, action) SELECT tranche_now() - i * interval '1 hour 1 second', 'ann', 'x'
		FROM generate_series(1, $1) i`, n)
	return b
}

// What may be deleted of the audit log is up to the limits, whatever the caller asks for; and it is noted.
func TestTheAuditLogIsDeletedByItsLimitsOnly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		limits string
		gone   int // of 20 rows; one more is younger than an hour, and counts in
	}{
		"by age":                            {`age = interval '12 hours'`, 9},
		"by count":                          {`max_count = 5`, 16},
		"by a count that is not reached":    {`max_count = 50`, 0},
		"by size":                           {`max_bytes = 800`, 16},
		"by whichever takes more":           {`age = interval '18 hours', max_count = 12`, 9},
		"never of the last hour":            {`max_count = 1`, 20},
		"never younger than the owner says": {`max_count = 1`, 6},
		"not at all":                        {`age = NULL`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := aged(t, 20)
			b.Exec(`INSERT INTO audit_log (actor, action) VALUES ('ann', 'new')`)
			if name == "by size" || name == "by count" {
				b.Exec(`UPDATE retention SET age = NULL`)
			}
			b.Exec(`UPDATE retention SET ` + c.limits + ` WHERE kind = 'audit'`)
			if name == "never younger than the owner says" {
				b.Exec(`UPDATE audit_expiry SET min_age = '15 hours'`)
			}
			deleted := 0
			for { // in pieces, as of a round
				n, err := retention.New(b.Store).DeleteOld(t.Context(), b.Lead(), retention.RetainAudit, time.Now().Add(time.Hour),
					4)
				if name == "not at all" {
					testenv.Same(t, testenv.As[*pgconn.PgError](t, err, "a deletion").Code, "42501", "it is denied by")
					break
				}
				testenv.NoError(t, err)
				if deleted += int(n); n < 4 {
					break
				}
			}
			left := b.Number(`SELECT count(*) FROM audit_log WHERE action = 'x'`)
			noted := b.Number(`SELECT coalesce(sum((detail->>'rows')::integer), 0) FROM audit_log
				WHERE action = 'audit_expire' AND detail->>'role' = 'tranche_serving'`)
			if deleted != c.gone || left != 20-c.gone || noted != c.gone {
				t.Errorf("%d deleted, %d left, %d noted; want %d deleted", deleted, left, noted, c.gone)
			}
			testenv.Same(t, b.Number(`SELECT count(*) FROM audit_log WHERE action = 'new'`), 1,
				"what is younger than an hour is gone")
		})
	}
}

// What is shown beforehand is what goes.
func TestTheAuditLogGoesAsItIsForetold(t *testing.T) {
	t.Parallel()
	b := aged(t, 20)
	for _, limits := range []string{`age = interval '12 hours'`, `age = NULL, max_count = 6`,
		`max_count = NULL, max_bytes = 500`} {
		b.Exec(`UPDATE retention SET ` + limits + ` WHERE kind = 'audit'`)
		all := testenv.Must(retention.New(b.Store).RetentionDue(t.Context()))(t)
		for _, due := range all {
			if due.Kind != retention.RetainAudit {
				continue
			}
			if due.Before == nil || due.Count == 0 {
				t.Fatalf("%s: nothing is due: %+v", limits, due)
			}
			n := testenv.Must(retention.New(b.Store).DeleteOld(t.Context(), b.Lead(), retention.RetainAudit, *due.Before,
				1000))(t)
			testenv.Same(t, n, due.Count, "%s: deleted", limits)
		}
	}
}

// PROOF: who may do what, 18.
// No one changes what is written, nor makes up when; the owner's trigger binds a superuser, too.
func TestTheAuditLogStaysAsItWasWritten(t *testing.T) {
	t.Parallel()
	b := aged(t, 3)
	b.Exec(`UPDATE audit_expiry SET min_age = '365 days'`)
	hour := time.Hour
	_, err := retention.New(b.Store).SetRetention(t.Context(), retention.RetainAudit, retention.Limits{Age: &hour}, "ann")
	testenv.Says(t, err, "at least 365d", "an administrator shortens what the owner wants kept")
	serving := testenv.Connect(t, testenv.Serving(t, b.Pool.Config().ConnString()))
	for _, sql := range []string{
		`UPDATE audit_log SET actor = 'x'`, `DELETE FROM audit_log`, `TRUNCATE audit_log`,
		`SELECT set_config('tranche.audit', 'DELETE', false); UPDATE audit_log SET actor = 'x'`,
	} {
		_, err := b.Pool.Exec(t.Context(), sql)
		testenv.Fails(t, err, "%s: the owner may", sql)
		_, err = serving.Exec(t.Context(), sql)
		testenv.Fails(t, err, "%s: the role that serves may", sql)
	}
	// With a right that it should not have, and the word that the function says.
	b.Exec(`GRANT DELETE ON audit_log TO PUBLIC`)
	_, err = serving.Exec(t.Context(), `SELECT set_config('tranche.audit', 'DELETE', false); DELETE FROM audit_log`)
	if err == nil || b.Number(`SELECT count(*) FROM audit_log WHERE action = 'x'`) != 3 {
		t.Errorf("the trigger lets it: %v", err)
	}
	_, err = serving.Exec(t.Context(), `UPDATE audit_expiry SET min_age = '0'`)
	testenv.Fails(t, err, "the role that serves says how long the log is kept")
	_, err = serving.Exec(t.Context(), `INSERT INTO audit_log (at, actor, action)
		VALUES (tranche_now() - interval '1 day', 'a', 'b')`)
	testenv.Fails(t, err, "it makes up a time")
}
