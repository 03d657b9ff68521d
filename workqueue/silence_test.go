package workqueue_test

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// hand marks slices as sent, and as handed to services.
func (b *bench) hand(claimed ...workqueue.Slice) {
	b.Helper()
	b.Send(claimed...)
	b.Exec(`UPDATE work_slice SET handed_at = tranche_now() WHERE id = ANY ($1)`, ids(claimed...))
}

// judge has the deadlines of slices pass and says which of them are held against their items.
func (b *bench) judge(doubted map[workqueue.SliceID]bool, claimed ...workqueue.Slice) map[workqueue.SliceID]bool {
	b.Helper()
	b.Pass(ids(claimed...)...)
	blamed, err := settle.New(b.Store).Blamed(b.Context(), ids(claimed...), doubted)
	if err != nil {
		b.Fatal(err)
	}
	return blamed
}

// What is sent along with others that are answered is to blame for its silence; what nobody else was answered beside,
// or before, or while JetStream was away, is not.
func TestSilenceIsBlamedWhenOthersWereAnswered(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		others  func(b *bench, run workqueue.RunID, other workqueue.Slice)
		doubted bool
		blamed  bool
	}{
		"another was answered": {others: func(b *bench, _ workqueue.RunID,
			o workqueue.Slice) {
			b.Record(storetest.Whole(o))
		},
			blamed: true},
		"another was refused": {others: func(b *bench, _ workqueue.RunID, o workqueue.Slice) { b.Record(refusing(o)) },
			blamed: true},
		"JetStream was away": {others: func(b *bench, _ workqueue.RunID, o workqueue.Slice) { b.Record(storetest.Whole(o)) },
			doubted: true},
		"nobody was answered": {others: func(*bench, workqueue.RunID, workqueue.Slice) {}},
		"another was given up by a node": {others: func(b *bench, _ workqueue.RunID, o workqueue.Slice) {
			b.Record(exhausted(o))
		}},
		"one that was sent before": {others: func(b *bench, _ workqueue.RunID, o workqueue.Slice) {
			b.Exec(`UPDATE work_slice SET sent_at = sent_at - interval '1 minute' WHERE id = $1`, o.ID)
			b.Record(storetest.Whole(o))
		}},
		"at another endpoint": {others: func(b *bench, _ workqueue.RunID, o workqueue.Slice) {
			b.Exec(`UPDATE work_slice SET endpoint = 'invoice' WHERE id = $1`, o.ID)
			a := storetest.Whole(o)
			a.Endpoint = "invoice"
			b.Record(a)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.Load(storetest.Chunked(1), 2)
			claimed := b.Claim(run, storetest.Plenty)
			b.hand(claimed...)
			late := claimed[0]
			tc.others(b, run, claimed[1])
			if got := b.judge(map[workqueue.SliceID]bool{late.ID: tc.doubted}, late)[late.ID]; got != tc.blamed {
				t.Errorf("blamed: %v; want %v", got, tc.blamed)
			}
		})
	}
}

// An item whose services never answer anybody is issued again without blame, five times; from then on each silence
// costs it an attempt, and it comes to its end. So does one whose replies are lost again and again.
func TestSilenceComesToAnEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	req := storetest.Chunked(1)
	req.Steps[0].MaxAttempts = 2
	run := b.Load(req, 1)
	for n := 1; n <= 7; n++ {
		s := b.One(run)
		want := max(0, n-6)
		if s.Attempt != n || s.Failures != want || n > 1 && n < 7 && s.Cause != workqueue.CauseSilence {
			t.Fatalf("issue %d: %+v; want %d failures", n, s, want)
		}
		b.hand(s)
		end := settle.New(b.Store).Excuse
		if b.judge(nil, s)[s.ID] {
			end = settle.New(b.Store).Expire
		}
		if ended, err := end(t.Context(), lease, ids(s)); err != nil || ended != 1 {
			t.Fatalf("issue %d: ended %d, %v", n, ended, err)
		}
		b.hurry(run)
		b.Check()
	}
	b.WantTally(run, storetest.Tally{Failed: 1})
	if n := b.Number(`SELECT count(*) FROM work_part WHERE error_code = 'deadline'`); n != 1 {
		t.Error("it did not fail by its deadline")
	}
}

func TestLostRepliesAreCountedInTheEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	run := b.Load(storetest.Chunked(1), 1)
	s := b.One(run)
	b.hand(s)
	b.Pass(s.ID)
	if n, err := settle.New(b.Store).ReleaseAcknowledged(t.Context(), lease, ids(s)); err != nil || n != 1 {
		t.Fatalf("released %d, %v", n, err)
	}
	again := b.One(run)
	if again.Failures != 0 || again.Attempt != 2 || again.Cause != workqueue.CauseStreams {
		t.Errorf("after a lost reply: %+v", again)
	}
	b.hand(again)
	for attempt, spent := range map[int]bool{2: false, 49: false, 50: true} {
		b.Exec(`UPDATE work_slice SET attempt = $2, deadline = tranche_now() WHERE id = $1`, again.ID, attempt)
		late, err := settle.New(b.Store).OverdueSlices(t.Context(), storetest.Plenty)
		if err != nil || len(late) != 1 || late[0].Spent != spent || late[0].HandedFor <= 0 || late[0].HandedFor > time.Hour {
			t.Errorf("issue %d: %+v, %v; want spent %v", attempt, late, err, spent)
		}
	}
}
