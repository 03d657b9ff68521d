package inspect_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// narrow returns a store on the test's database with so many connections.
func (b *bench) narrow(conns int32) (*database.DB, *pgxpool.Pool) {
	b.Helper()
	config := b.Pool.Config()
	config.MaxConns = conns
	pool := testenv.Must(pgxpool.NewWithConfig(b.Context(), config))(b)
	b.Cleanup(pool.Close)
	return database.New(pool), pool
}

// What a page holds is bounded by bytes too, and the items stay whole and in order over the cuts.
func TestExportOfLargeResultsComesInPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const n, size = 40, 1 << 20 // of which a first slice takes 22
	run := b.Load(storetest.Chunked(n), n+3)
	slice := b.One(run)
	reply := storetest.Whole(slice)
	for i := range reply.Slots {
		reply.Slots[i].Result = bytes.Repeat([]byte{byte('a' + i%26)}, size)
	}
	reply.Slots[3].Result, reply.Slots[3].Err = nil, &workqueue.SlotError{Code: "BAD", Message: "no"}
	reply.Slots[7].Result = bytes.Repeat([]byte("7"), 12<<20) // more than a page by itself
	// A few together: a transaction has its time.
	for some := range slices.Chunk(reply.Slots, 4) {
		part := reply
		part.Slots = some
		b.Record(part)
	}

	store, pool := b.narrow(1)
	before := pool.Stat().AcquireCount()
	next := workqueue.Ordinal(0)
	err := storetest.Export(t.Context(), store, run, nil, func(item *export.Item) error {
		want := []byte(nil)
		if i := int(item.Ordinal); i < len(reply.Slots) {
			want = reply.Slots[i].Result
		}
		if item.Ordinal != next || item.Key != fmt.Sprintf("C%d", next) || !bytes.Equal(item.Result, want) {
			t.Errorf("item %d %s with %d bytes of %.8s; want item %d with %d", item.Ordinal, item.Key, len(item.Result),
				item.Result, next, len(want))
		}
		next++
		return nil
	})
	if pages := pool.Stat().AcquireCount() - before; err != nil || next != n+3 || pages < 4 {
		t.Errorf("%d items in %d reads, %v; want %d items in 4 or more", next, pages, err, n+3)
	}
}

// Of several generations the newest part counts, and none while the item runs again.
func TestExportKnowsGenerations(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(4), 4)
	b.Record(storetest.Faulty(b.One(run), workqueue.SlotError{Code: "OLD", Message: "first"}))
	export := func(want ...string) {
		t.Helper()
		var got []string
		testenv.NoError(t, storetest.Export(t.Context(), b.Store, run, nil, func(item *export.Item) error {
			got = append(got, fmt.Sprintf("%s%s%s", item.State, item.Result, item.ErrorCode))
			return nil
		}))
		testenv.SameList(t, got, want, "the export")
	}
	export("failedOLD", "failedOLD", "failedOLD", "failedOLD")
	testenv.Must(redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{
		Run: run, Select: redo.Selection{Keys: []string{"C1", "C2"}},
	}))(t)
	export("failedOLD", "missing", "missing", "failedOLD")
	again := storetest.Whole(b.One(run))
	again.Slots[1].Result, again.Slots[1].Err = nil, &workqueue.SlotError{Code: "NEW", Message: "second"}
	b.Record(again)
	export("failedOLD", `done{"of":1}`, "failedNEW", "failedOLD")
}

// Of a run with several steps the results are those of one; what has failed a step that it needs has failed.
func TestExportOfSeveralSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Request()
	req.Steps[0].Name = "accounts"
	for _, s := range []workqueue.StepSpec{
		{Name: "extra", Optional: true}, {Name: "letter", Needs: []int{0, 1}}, {Name: "notify", Needs: []int{0}},
	} {
		step := req.Steps[0]
		step.Name, step.Needs, step.Optional = s.Name, s.Needs, s.Optional
		req.Steps = append(req.Steps, step)
	}
	run := b.Load(req, 5)
	const set = `UPDATE work_block SET ready = B'0'::bit(8192), done = $3::text::bit(8192), failed = $4::text::bit(8192)
		WHERE run_id = $1 AND step = $2`
	for step, planes := range [][2]string{{"10101", "01000"}, {"10001", "00100"}, {"10001", "00100"}, {"1", "00001"}} {
		b.Exec(set, run, step, planes[0], planes[1])
	}
	b.Exec(storetest.PutPart, run, 2, 1, "letter", nil, nil, []int{0, 4})
	for step, code := range []string{"EARLY", "EXTRA", "LATE", "NOTIFY"} {
		b.Exec(storetest.PutPart, run, step, 1, "", nil, code, []int{[]int{1, 2, 2, 4}[step]})
	}
	parts := func(step string) (got []string) {
		t.Helper()
		e := testenv.Must(export.New(b.Store).Open(t.Context(), export.Request{Run: run, Step: step, Parts: true}))(t)
		testenv.NoError(t, e.Each(t.Context(), func(item *export.Item) error {
			text := fmt.Sprintf("%d %s %s%s", item.Ordinal, item.State, item.Step, item.Result)
			for i, p := range item.Parts {
				text += fmt.Sprintf(" %s:%s%s%s", e.Steps()[i], p.State, p.Result, p.ErrorCode)
			}
			got = append(got, text)
			return nil
		}))
		return got
	}
	export := func(step string, states ...workqueue.Outcome) (got []string) {
		t.Helper()
		e, err := export.New(b.Store).Open(t.Context(), export.Request{Run: run, Step: step, States: states})
		if err == nil {
			err = e.Each(t.Context(), func(item *export.Item) error {
				got = append(got, fmt.Sprintf("%d %s %s %s%s", item.Ordinal, item.State, item.Step, item.Result, item.ErrorCode))
				return nil
			})
		}
		if choice := new(workqueue.StepChoiceError); errors.As(err, &choice) {
			return append(choice.Steps, choice.Step)
		} else if err != nil {
			t.Fatal(err)
		}
		return got
	}
	b.Exec(storetest.PutPart, run, 0, 1, "old", nil, nil, []int{0, 3}) // nulled out at item 3
	b.Exec(storetest.PutPart, run, 0, 2, "new", nil, nil, []int{0, 2, 4})
	b.Exec(storetest.PutPart, run, 1, 1, "extra", nil, nil, []int{0, 4})
	b.Exec(storetest.PutPart, run, 3, 1, "notify", nil, nil, []int{0})
	b.Exec(`UPDATE work_block SET done = done & ~B'00001'::bit(8192) WHERE run_id = $1 AND step = 1`, run)
	all := []string{
		"0 done  accounts:donenew0 extra:doneextra0 letter:doneletter0 notify:donenotify0",
		"1 failed accounts accounts:failedEARLY extra: letter: notify:",
		"2 failed letter accounts:donenew2 extra:failedEXTRA letter:failedLATE notify:",
		"3 missing  accounts: extra: letter: notify:",
		"4 failed notify accounts:donenew4 extra: letter: notify:failedNOTIFY", // the letter is recomputed
	}
	for _, c := range []struct{ got, want []string }{
		{parts(""), all},
		{parts("letter"), append(slices.Clone(all[:4]), strings.Replace(all[4], "failed notify", "missing ", 1))},
		{export("letter"), []string{"0 done letter letter0", "1 failed accounts EARLY", "2 failed letter LATE",
			"3 missing  ", "4 done letter letter4"}},
		{export("letter", workqueue.OutcomeDone), []string{"0 done letter letter0", "4 done letter letter4"}},
		{export("extra", workqueue.OutcomeFailed), []string{"2 failed extra EXTRA"}},
		{export("", workqueue.OutcomeFailed), []string{"1 failed accounts EARLY", "2 failed letter LATE",
			"4 failed notify NOTIFY"}},
		{export(""), []string{"letter", "notify", ""}},
		{export("other"), []string{"accounts", "extra", "letter", "notify", "other"}},
	} {
		testenv.SameList(t, c.got, c.want, "the items")
	}
}

// TestExportOfManyAtOnce has more slow readers than there are connections.
func TestExportOfManyAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(4), 4)
	b.Finish(run)
	store, _ := b.narrow(2)
	const readers = 6
	reading, ended, enough := make(chan struct{}, readers), make(chan error, readers), make(chan struct{})
	for range readers {
		go func() {
			first := true
			ended <- storetest.Export(t.Context(), store, run, nil, func(*export.Item) error {
				if first {
					reading <- struct{}{}
					<-enough
				}
				first = false
				return nil
			})
		}()
	}
	limit := time.After(time.Minute)
	for range readers {
		select {
		case <-reading:
		case <-limit:
			t.Error("slow readers keep the connections from the others")
			close(enough)
			return
		}
	}
	close(enough)
	for range readers {
		testenv.NoError(t, <-ended)
	}
}
