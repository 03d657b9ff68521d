package retention_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/erasure"
	"github.com/tranchehq/tranche/workqueue/retention"
)

// verified seals the log and returns its report, with all that was found in one text.
func (b *bench) verified(head string) (doctor.AuditReport, string) {
	b.Helper()
	testenv.NoError(b, retention.New(b.Store).SealAudit(b.Context()))
	report := testenv.Must(doctor.New(b.Store).VerifyAudit(b.Context(), head))(b)
	var all []string
	for _, f := range report.Findings {
		all = append(all, f.String())
	}
	return report, strings.Join(all, "\n")
}

const (
	// rechained makes the hashes again from a seal on, as the owner can.
	rechained = `DO $$ DECLARE r audit_log; h bytea; BEGIN
		h := coalesce((SELECT hash FROM audit_log WHERE seal < 3 ORDER BY seal DESC LIMIT 1), '');
		FOR r IN SELECT * FROM audit_log WHERE seal >= 3 ORDER BY seal LOOP
			h := audit_digest(h, r.seal::text, r.id::text, (extract(epoch FROM r.at) * 1000000)::bigint::text, r.actor,
				r.action, r.run_id::text, r.origin::text, encode(audit_digest(uuid_send(r.salt), r.subject, r.detail::text,
				r.before::text, r.after::text), 'hex'));
			UPDATE audit_log SET hash = h WHERE id = r.id;
			UPDATE audit_head SET seal = r.seal, hash = h;
		END LOOP; END $$`
	cutOff = `DELETE FROM audit_log WHERE seal > 8;
		UPDATE audit_head h SET seal = a.seal, hash = a.hash FROM audit_log a WHERE a.seal = 8`
)

// PROOF: who may do what, 21.
// What the owner does to the log after taking its triggers away is named, or found by a head that was kept elsewhere.
func TestTheChainNamesWhatWasDoneToTheLog(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql  string
		says string // empty: only the kept head finds it
	}{
		"nothing":   {`SELECT 1`, "-"},
		"a text":    {`UPDATE audit_log SET detail = '{"n": 99}' WHERE seal = 5`, "row 5 (seal 5): it was changed"},
		"an actor":  {`UPDATE audit_log SET actor = 'bob' WHERE seal = 1`, "row 1 (seal 1): it was changed"},
		"a time":    {`UPDATE audit_log SET at = at + interval '1 us' WHERE seal = 5`, "row 5 (seal 5): it was changed"},
		"an origin": {`UPDATE audit_log SET origin = '{}' WHERE seal = 5`, "row 5 (seal 5): it was changed"},
		"a text as erased": {`UPDATE audit_log SET erased = audit_digest(uuid_send(salt), subject, detail::text, NULL, NULL),
			detail = '{}' WHERE seal = 5`, "row 5 (seal 5): it was changed, and by no erasure"},
		"two that swap": {`UPDATE audit_log a SET detail = b.detail FROM audit_log b WHERE a.seal + b.seal = 11
			AND a.seal IN (5, 6)`, "row 6 (seal 6): it was changed"},
		"one that goes": {`DELETE FROM audit_log WHERE seal = 5`, "the row of seal 5, after row 4, was deleted"},
		"some that go": {`DELETE FROM audit_log WHERE seal IN (1, 2)`,
			"the rows of seals 1 to 2, after row 0, were deleted"},
		"the last":    {`DELETE FROM audit_log WHERE seal = 10`, "the row of seal 10, after row 9, was deleted"},
		"all of them": {`TRUNCATE audit_log`, "the rows of seals 1 to 10, after row 0, were deleted"},
		"as if by limits": {`INSERT INTO audit_gone (first, last, hash) SELECT 5, 5, hash FROM audit_log WHERE seal = 5;
			DELETE FROM audit_log WHERE seal = 5`, "audit_gone says"},
		"one that comes": {`INSERT INTO audit_log (at, actor, action) SELECT at + interval '1 second', 'ann', 'x'
			FROM audit_log WHERE seal = 5`, "row 11 (seal 11): it says"},
		"one in the chain": {`UPDATE audit_log SET seal = seal + 100 WHERE seal > 5; UPDATE audit_log SET seal = seal - 99
			WHERE seal > 5; INSERT INTO audit_log (actor, action, seal, hash, salt) SELECT actor, action, 6, hash, salt FROM
			audit_log WHERE seal = 5`, "row 11 (seal 6): it was changed"},
		"the head":  {`UPDATE audit_head SET seal = 9`, "audit_head says that the log ends at seal 9, and it ends at 10"},
		"no head":   {`DELETE FROM audit_head`, "audit_head has no row"},
		"the end":   {cutOff, ""},
		"all of it": {`UPDATE audit_log SET actor = 'bob' WHERE seal = 3; ` + rechained, ""},
		"renumbered": {`DELETE FROM audit_log WHERE seal = 3; UPDATE audit_log SET seal = seal - 1 WHERE seal > 3; ` +
			rechained, ""},
		"a new chain": {`TRUNCATE audit_log; UPDATE audit_head SET seal = 0, hash = ''`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.Exec(`INSERT INTO audit_log (actor, action, detail, at) SELECT 'ann', 'x', jsonb_build_object('n', i),
				tranche_now() - interval '1 day' + i * interval '2 hours' FROM generate_series(1, 10) i`)
			kept, found := b.verified("")
			if found != "" || kept.Rows != 10 || !strings.HasPrefix(kept.Head, "10:") {
				t.Fatalf("before: %+v", kept)
			}
			b.Exec(`ALTER TABLE audit_log DISABLE TRIGGER ALL`)
			b.Exec(`ALTER TABLE audit_log DROP CONSTRAINT audit_log_seal_key`)
			b.Exec(c.sql)
			report, found := b.verified("")
			if want := strings.Trim(c.says, "-"); !strings.Contains(found, want) || want == "" && found != "" {
				t.Errorf("found %q, want %q", found, want)
			}
			if _, found := b.verified(kept.Head); c.says == "" && found == "" || c.says == "-" && found != "" {
				t.Errorf("with the head that was kept: %q", found)
			}
			if c.says == "-" && report.Head != kept.Head {
				t.Errorf("the head is %s, and was %s", report.Head, kept.Head)
			}
		})
	}
}

// PROOF: who may do what, 21.
// The role that serves neither chooses seals nor says what only the functions of the log say.
func TestTheServingRoleDoesNotSeal(t *testing.T) {
	t.Parallel()
	b := aged(t, 3)
	serving := testenv.Connect(t, testenv.Serving(t, b.Pool.Config().ConnString()))
	for _, sql := range []string{
		`INSERT INTO audit_log (actor, action, seal, hash, salt) VALUES ('a', 'b', 9, '', gen_random_uuid())`,
		`INSERT INTO audit_log (actor, action) VALUES ('tranche', 'audit_expire')`,
		`INSERT INTO audit_log (actor, action, detail) VALUES ('tranche', 'audit_erase', '{"now": {"1": ""}}')`,
		`UPDATE audit_head SET seal = 0`, `DELETE FROM audit_gone`,
		`SELECT set_config('tranche.audit', 'UPDATE', false); UPDATE audit_log SET seal = NULL`,
	} {
		_, err := serving.Exec(t.Context(), sql)
		testenv.Fails(t, err, "%s: it may", sql)
	}
}

// PROOF: who may do what, 21.
// Rows that retention deletes, in the middle, too, and keys that are erased, leave the chain as it was; a head that was
// kept before is still found.
func TestTheChainHoldsOverRetentionAndErasure(t *testing.T) {
	t.Parallel()
	b := aged(t, 20)
	run := b.Ended(30, 0)
	b.Exec(`INSERT INTO audit_log (actor, action, run_id, detail)
		VALUES ('ann', 'note', $1, '{"keys": ["person-7", "other-9"]}')`, run)
	b.Exec(`UPDATE retention SET age = interval '12 hours' WHERE kind = 'audit'`)
	kept, _ := b.verified("")
	for _, key := range []string{"person-7", "other-9"} {
		testenv.Must(erasure.New(b.Store).Erase(t.Context(), erasure.Request{Key: key, Actor: "ann"}))(t)
	}
	for {
		n := testenv.Must(retention.New(b.Store).DeleteOld(t.Context(), b.Lead(), retention.RetainAudit, time.Now(), 2))(t)
		if n == 0 {
			break
		}
	}
	report, found := b.verified(kept.Head)
	if strings.Contains(found, "inserted later") { // as aged makes them
		found = ""
	}
	if found != "" || report.Deleted != 9 || report.Erased != 1 {
		t.Errorf("%+v: %s", report, found)
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM audit_gone`), 1, "ranges")
	testenv.Same(t, b.Number(`SELECT count(*) FROM audit_log WHERE action = 'note' AND (detail::text LIKE '%person%'
		OR detail::text LIKE '%other%' OR erased IS NULL)`), 0, "rows have the keys")
	b.Exec(`ALTER TABLE audit_log DISABLE TRIGGER ALL`)
	b.Exec(`UPDATE audit_log SET detail = '{}' WHERE action = 'note'`)
	if _, found := b.verified(""); !strings.Contains(found, "by no erasure") {
		t.Errorf("a change after an erasure: %q", found)
	}
}

// Rows of transactions that commit late, in any order, are chained once each.
func TestRowsThatCommitLateAreChained(t *testing.T) {
	t.Parallel()
	b := setup(t)
	late := testenv.Must(b.Pool.Begin(t.Context()))(t)
	testenv.Must(late.Exec(t.Context(), `INSERT INTO audit_log (actor, action) VALUES ('ann', 'late')`))(t)
	done := make(chan error)
	for range 4 {
		go func() {
			for range 20 {
				_, err := b.Pool.Exec(t.Context(), `INSERT INTO audit_log (actor, action) VALUES ('ann', 'x')`)
				if err == nil {
					err = retention.New(b.Store).SealAudit(t.Context())
				}
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 4 {
		testenv.NoError(t, <-done)
	}
	testenv.NoError(t, late.Commit(t.Context()))
	if report, found := b.verified(""); found != "" || report.Rows != 81 || report.Unsealed != 0 {
		t.Errorf("%+v: %s", report, found)
	}
}

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
