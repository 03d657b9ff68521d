package workqueue_test

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue/start"
)

// abandoned is a load that has written items and whose node is gone.
func (b *bench) abandoned(name string) {
	b.Helper()
	req := storetest.Request()
	req.Name, req.Session = name, b.Open()
	gate := make(chan error)
	l := b.goLoad(req, gated(heavy(20), 20, gate))
	b.Cleanup(func() { close(gate); _, _ = l.wait() })
	b.Until("two batches are written", func() bool { return b.rowsOf(name) >= 16 })
	b.Expire(req.Session)
}

// Payloads may be so large that what is deleted at once takes too long: it is rolled back, and would be for ever.
func TestClearingTakesFewerRowsWhenTheyTakeTooLong(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.abandoned("large")
	b.Exec(`CREATE FUNCTION takes_long() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF (SELECT count(*) FROM gone) > 3 THEN
			RAISE EXCEPTION 'canceling statement due to statement timeout' USING ERRCODE = '57014';
		END IF;
		RETURN NULL; END $$`)
	b.Exec(`CREATE TRIGGER takes_long AFTER DELETE ON work_queue REFERENCING OLD TABLE AS gone
		FOR EACH STATEMENT EXECUTE FUNCTION takes_long()`)
	if cleared, err := start.New(b.Store).ClearAbandonedLoads(t.Context(), b.Lead()); err != nil || len(cleared) != 1 {
		t.Errorf("cleared %v, %v; want one run", cleared, err)
	}
	b.WantNothing()
}

func TestALoadThatCannotBeClearedKeepsNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.abandoned("stuck")
	b.abandoned("free")
	b.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$`)
	b.Exec(`CREATE TRIGGER refuse BEFORE UPDATE ON batchrun FOR EACH ROW WHEN (OLD.name = 'stuck')
		EXECUTE FUNCTION refuse()`)
	cleared, err := start.New(b.Store).ClearAbandonedLoads(t.Context(), b.Lead())
	if err == nil || !strings.Contains(err.Error(), "not this one") || len(cleared) != 1 {
		t.Errorf("cleared %v, %v; want one run, and the other's error", cleared, err)
	}
	if n := b.rowsOf("free"); n != 0 {
		t.Errorf("%d items are left of the other", n)
	}
	b.Exec(`DROP TRIGGER refuse ON batchrun`)
	if cleared, err := start.New(b.Store).ClearAbandonedLoads(t.Context(), b.Lead()); err != nil || len(cleared) != 1 {
		t.Errorf("then cleared %v, %v; want one run", cleared, err)
	}
	b.WantNothing()
}
