package demo

import (
	"strings"
	"testing"
)

func TestBankKeepsItsInvariant(t *testing.T) {
	t.Parallel()
	b := emptyBank(t)
	must(t, b.create(t.Context(), 1))
	must(t, b.years(t.Context(), 200, 400))
	must(t, b.prepare(t.Context()))
	if n := b.number(t, `SELECT count(*) FROM pgbench_accounts`); n != AccountsPerScale {
		t.Errorf("%d accounts, want %d", n, AccountsPerScale)
	}
	if n := b.number(t, `SELECT count(*) FROM pgbench_history`); n != 400 {
		t.Errorf("%d movements this year, want 400: those of the year before must be gone", n)
	}
	if n := b.number(t, `SELECT count(*) FROM last_year WHERE closing <> 0`); n == 0 {
		t.Error("the year before left no balances")
	}
	const drift = `SELECT (SELECT sum(abalance) FROM pgbench_accounts) - (SELECT sum(closing) FROM last_year)
		- (SELECT sum(delta) FROM pgbench_history)`
	if n := b.number(t, drift); n != 0 {
		t.Errorf("balances and movements differ by %d", n)
	}
}

// fingerprint changes with any value that the damage touches.
const fingerprint = `SELECT (SELECT sum(hashtextextended(a::text, 1) % 1000003) FROM pgbench_accounts a)
	+ (SELECT sum(hashtextextended(h::text, 2) % 1000003) FROM pgbench_history h)`

func TestRepairUndoesDamage(t *testing.T) {
	t.Parallel()
	b := smallBank(t)
	before := b.number(t, fingerprint)

	d, err := b.hurt(t.Context())
	must(t, err)
	if b.number(t, fingerprint) == before {
		t.Error("the damage changed nothing")
	}
	const gaps = `SELECT count(*) FROM pgbench_accounts a LEFT JOIN pgbench_branches b USING (bid)
		WHERE abalance IS NULL OR b.bid IS NULL OR aid IN (SELECT aid FROM pgbench_history WHERE delta IS NULL)`
	if n := b.number(t, gaps); n != 3 {
		t.Errorf("%d accounts are damaged, want 3", n)
	}
	for _, w := range d.wounds() {
		if b.number(t, `SELECT count(*) FROM pgbench_history WHERE aid = $1`, w.account) == 0 {
			t.Errorf("account %d (%s) has no movements: the proof would not miss it", w.account, w.code)
		}
	}

	must(t, b.repair(t.Context(), d))
	if b.number(t, fingerprint) != before {
		t.Error("the repair left something different")
	}
	if err := b.repair(t.Context(), d); err == nil {
		t.Error("a second repair had something to do")
	}
}

func TestDamageNeedsMovements(t *testing.T) {
	t.Parallel()
	b := smallBank(t)
	_, err := b.pool.Exec(t.Context(), `DELETE FROM pgbench_history`)
	must(t, err)
	if _, err := b.hurt(t.Context()); err == nil || !strings.Contains(err.Error(), "--transactions") {
		t.Errorf("got %v, want an error that names --transactions", err)
	}
}

func TestMissingProgramIsNamed(t *testing.T) {
	t.Parallel()
	err := emptyBank(t).run(t.Context(), "pgbench-of-nowhere")
	if err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Errorf("got %v, want an error that says what is missing", err)
	}
}
