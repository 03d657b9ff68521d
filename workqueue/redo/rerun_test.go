package redo_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// again asks for a re-run that must succeed.
func (b *bench) again(req redo.RerunRequest) redo.Rerun {
	b.Helper()
	req.Actor = "ann"
	out, err := redo.New(b.Store).Rerun(b.Context(), req)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// A dry run says what the re-run after it does, and leaves no trace.
func TestDryRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run, even, odd := b.Damaged(20_000)
	before := b.Number(`SELECT count(*) FROM audit_log`) + b.Number(`SELECT count(*) FROM run_event`)
	req := redo.RerunRequest{Run: run, Select: redo.Selection{Failed: true}, Settings: storetest.Chunking(100, 0),
		Canary: 50,
		DryRun: true}
	dry := b.again(req)
	b.WantState(run, "completed", 1)
	b.WantTally(run, storetest.Tally{Done: 20_000 - even - odd, Failed: even + odd})
	if n := b.Number(`SELECT count(*) FROM audit_log`) + b.Number(`SELECT count(*) FROM run_event`); n != before {
		t.Errorf("a dry run left %d rows behind", n-before)
	}
	if n := b.Number(`SELECT chunk FROM run_step WHERE run_id = $1`, run); n != 500 {
		t.Errorf("a dry run set the chunk to %d", n)
	}
	b.Check()
	req.DryRun = false
	if wet := b.again(req); !reflect.DeepEqual(wet, dry) {
		t.Errorf("the dry run said %+v, and the re-run did %+v", dry, wet)
	}
	req = redo.RerunRequest{Run: run, Select: redo.Selection{Codes: []string{"none"}}, DryRun: true}
	var nothing *redo.NothingToRerunError
	if _, err := redo.New(b.Store).Rerun(t.Context(), req); !errors.As(err, &nothing) {
		t.Errorf("a dry run of nothing: %v", err)
	}
	b.Check()
}
