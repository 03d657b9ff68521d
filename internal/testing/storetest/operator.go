package storetest

import (
	"encoding/json"
	"io"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/report"
	"github.com/tranchehq/tranche/workqueue/schedule"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Wish returns a control of a run by the operator ann.
func Wish(run workqueue.RunID, reason string) control.Control {
	return control.Control{Run: run, Reason: reason, Actor: "ann"}
}

func (b *Bench) PauseRun(run workqueue.RunID) control.Controlled {
	b.Helper()
	return testenv.Must(control.New(b.Store).Pause(b.Context(), Wish(run, "the service is sick")))(b)
}

func (b *Bench) Set(c control.RunChange) control.RunChanged {
	b.Helper()
	c.Actor = "ann"
	return testenv.Must(control.New(b.Store).SetRun(b.Context(), c))(b)
}

// Actions lists a run's entries in the audit log: "pause by ann".
func (b *Bench) Actions(run workqueue.RunID) []string {
	b.Helper()
	var all []string
	err := b.Pool.QueryRow(b.Context(), `SELECT coalesce(array_agg(action || ' by ' || actor ORDER BY id), '{}')
		FROM audit_log WHERE run_id = $1`, run).Scan(&all)
	testenv.NoError(b, err)
	return all
}

func (b *Bench) Events(run workqueue.RunID) []string {
	b.Helper()
	var all []string
	testenv.NoError(b, b.Pool.QueryRow(b.Context(), `SELECT coalesce(array_agg(kind ORDER BY at, id), '{}')
		FROM run_event WHERE run_id = $1`, run).Scan(&all))
	return all
}

// WantRefused wants a StateError with all these texts.
func (b *Bench) WantRefused(err error, parts ...string) {
	b.Helper()
	refused := testenv.As[*workqueue.StateError](b, err, "the refusal")
	for _, part := range parts {
		testenv.Has(b, refused.Error(), part, "the refusal")
	}
}

func (b *Bench) Rerun(run workqueue.RunID, sel redo.Selection) redo.Rerun {
	b.Helper()
	return testenv.Must(redo.New(b.Store).Rerun(b.Context(), redo.RerunRequest{Run: run, Select: sel, Actor: "test"}))(b)
}

func Corrections(payload string, keys ...string) func() (func(*redo.Correction) error, error) {
	return func() (func(*redo.Correction) error, error) {
		i := 0
		return func(c *redo.Correction) error {
			if i == len(keys) {
				return io.EOF
			}
			c.Key, c.Payload, c.Line = keys[i], []byte(payload), i+2
			i++
			return nil
		}, nil
	}
}

func (b *Bench) Correct(run workqueue.RunID, payload string, keys ...string) redo.Corrected {
	b.Helper()
	out, err := redo.New(b.Store).Correct(b.Context(), redo.CorrectRequest{Run: run, Actor: "ann", Reason: "it was wrong",
		Items: Corrections(payload, keys...)})
	testenv.NoError(b, err)
	return out
}

func (b *Bench) WantSaid(err error, parts ...string) {
	b.Helper()
	for _, part := range parts {
		testenv.Says(b, err, part, "the error")
	}
}

// Report returns the report of a run, after checking its sums.
func (b *Bench) Report(run workqueue.RunID) report.RunReport {
	b.Helper()
	r := testenv.Must(report.New(b.Store).Report(b.Context(), run))(b)
	sum := r.Done + r.Failed
	for _, u := range r.Unprocessed {
		sum += u.Items
		if u.Items <= 0 {
			b.Errorf("%d items are %s", u.Items, u.State)
		}
	}
	groups := r.Errors.MoreItems
	for i := range r.Errors.Groups {
		if g := &r.Errors.Groups[i]; !g.Optional {
			groups += g.Count
		}
	}
	if sum != r.Items || groups != r.Failed {
		b.Errorf("the counts are %d of %d items, the groups %d of %d failed", sum, r.Items, groups, r.Failed)
	}
	return r
}

// Ended returns a run of n items that ended this long ago, with rows in every table that has some per run.
func (b *Bench) Ended(n int, ago time.Duration) workqueue.RunID {
	b.Helper()
	run := b.Load(Request(), n)
	b.Record(Faulty(b.One(run), workqueue.SlotError{Code: "BAD", Message: "no"}))
	b.Record(Faulty(b.One(run), workqueue.SlotError{Code: "LATER", Message: "again", Retry: true}))
	b.Finish(run)
	testenv.Must(redo.New(b.Store).Rerun(b.Context(), redo.RerunRequest{Run: run, Actor: "ann",
		Select: redo.Selection{Failed: true}}))(b)
	b.Finish(run)
	b.Exec(`INSERT INTO quarantine (reason, detail, subject, run_id, body) VALUES ('r', 'd', 's', $1, 'x')`, run)
	b.Exec(`INSERT INTO dead_letter (id, msg_id, endpoint, cause, run_id) VALUES (gen_random_uuid(), $2, 'e', 'c', $1)`,
		run, run.String())
	b.Exec(`UPDATE run_event SET published_at = tranche_now() WHERE run_id = $1`, run)
	b.Exec(`UPDATE batchrun SET finished_at = tranche_now() - $2::interval WHERE id = $1`, run, ago)
	return run
}

func (b *Bench) ApplySchedule(name, spec string) workqueue.AppliedDocument {
	b.Helper()
	applied, err := schedule.New(b.Store).ApplySchedule(b.Context(), schedule.Text{
		Document: workqueue.Document{Name: name, Spec: json.RawMessage(spec), Source: spec}, Zone: "UTC",
		Next: func(_ json.RawMessage, after time.Time) (*time.Time, error) {
			return new(after.UTC().Truncate(time.Hour).Add(time.Hour)), nil
		},
	}, "ann")
	testenv.NoError(b, err)
	return applied
}

// Look does what a node does after a commit with failures.
func (b *Bench) Look(l settle.FollowUp) (last pacestore.BreakerChange) {
	b.Helper()
	for _, endpoint := range l.Endpoints {
		change := testenv.Must(pacestore.New(b.Store).CheckBreaker(b.Context(), endpoint))(b)
		last = change
	}
	for _, endpoint := range l.Halved {
		testenv.Must(pacestore.New(b.Store).CheckTooBig(b.Context(), endpoint))(b)
	}
	return last
}

// Breaker returns the state of [Endpoint]'s breaker, and its probes.
func (b *Bench) Breaker() (state string, probes int) {
	b.Helper()
	err := b.Pool.QueryRow(b.Context(), `SELECT breaker, probes FROM endpoint_pace WHERE endpoint = $1`, Endpoint).
		Scan(&state, &probes)
	testenv.NoError(b, err)
	return state, probes
}

// Scene returns a run of 10 items in progress (0 failed, 1 to 3 done, 4 to 6 in flight, the rest ready), and a
// completed one of 4 items.
func Scene(t *testing.T) (b *Bench, open, done workqueue.RunID) {
	t.Helper()
	b = Setup(t)
	done = b.Load(Request(), 4)
	b.Finish(done)
	open = b.Load(Request(), 10)
	claimed := b.Claim(open, 2)
	reply := Whole(claimed[0])
	reply.Slots[0].Result, reply.Slots[0].Err = nil, &workqueue.SlotError{Code: "BAD", Message: "no good"}
	b.Record(reply)
	b.WantTally(open, Tally{Ready: 3, Live: 3, Done: 3, Failed: 1})
	b.Check()
	return b, open, done
}
