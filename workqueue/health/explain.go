package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Advice is an action that an operator can take.
type Advice struct {
	Do      string `json:"do"`
	Command string `json:"command,omitempty" doc:"exact"`
}

// LastEvent is the last event of some items or of a run.
type LastEvent struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
}

// StepPart is how many items of a group one step misses.
type StepPart struct {
	Step  string `json:"step"`
	Items int64  `json:"items"`
}

// MissingGroup is items without an outcome that wait for the same reason: in one step, in several (Steps), or in all
// steps when neither is set. Every item that a step misses is in exactly one group of that step.
type MissingGroup struct {
	State    string     `json:"state" enum:"waiting,held,ready,scheduled,claimed,sent" doc:"of the items, by the bits"`
	Reason   Kind       `json:"reason" doc:"in one word, as conditions of the health have it, like no_listeners"`
	Items    int64      `json:"items" doc:"of several steps, those of the one with the most, or counted if that is more"`
	Counted  int64      `json:"counted" doc:"of those, the ones in no group of a step before"`
	Slices   int64      `json:"slices" doc:"that hold them; 0 while they are in none"`
	Runs     int64      `json:"runs,omitempty" doc:"in the view of an endpoint: whose items they are"`
	Answered int64      `json:"answered,omitempty" doc:"other items of these slices that were answered already"`
	Step     string     `json:"step,omitempty"`
	Steps    []StepPart `json:"steps,omitempty" doc:"instead of step, when the items of several have the same reason"`
	Endpoint string     `json:"endpoint,omitempty"`
	Owner    Owner      `json:"owner" enum:"service,node,timer,operator,nats,step,nobody" doc:"what it waits on"`
	Who      string     `json:"who" doc:"the owner by name"`
	Abnormal bool       `json:"abnormal,omitempty" doc:"abnormal: they would not wait if all were well"`
	Why      string     `json:"why" doc:"the reason in a sentence"`
	Since    *time.Time `json:"since,omitempty"`
	Last     *LastEvent `json:"last,omitempty" doc:"the last thing that happened to them"`
	Next     string     `json:"next" doc:"what will happen"`
	When     *time.Time `json:"when,omitempty" doc:"at the latest; absent: immediately, or not automatically"`
	Advice   []Advice   `json:"advice,omitempty" doc:"what an operator could do"`

	run     workqueue.RunID
	session workqueue.SessionID // of the node that claimed them
	by      []cameBy
	until   time.Time // latest When of the items, if it differs from When
	needs   stepSet   // steps that they wait for
	needed  []string  // names of needs, and of the local functions reported with them
}

// Session returns the session of the node that claimed the items, or the zero ID.
func (g *MissingGroup) Session() workqueue.SessionID { return g.session }

// Run returns the run of the items; for an endpoint's explanation, one of the runs.
func (g *MissingGroup) Run() workqueue.RunID { return g.run }

// Explanation says why a run is not done. The Counted of its groups add up to Unsettled; the Items of a step's
// groups add up to what the step misses. In a run of one step, both equal Missing.
type Explanation struct {
	Run        workqueue.RunID      `json:"run"`
	Name       string               `json:"name,omitempty"`
	Plan       string               `json:"plan"`
	State      string               `json:"state" enum:"loading,running,paused,completed,cancelled"`
	Generation workqueue.Generation `json:"generation"`
	Items      int64                `json:"items"`
	Done       int64                `json:"done"`
	Failed     int64                `json:"failed"`
	Missing    int64                `json:"missing" doc:"items that are neither done nor failed"`
	Unsettled  int64                `json:"unsettled" doc:"items that some step has no outcome for; the sum of counted"`
	Open       *inspect.OpenView    `json:"open,omitempty" doc:"the run takes items until it is sealed"`
	Steps      []StepStanding       `json:"steps,omitempty" doc:"of a run with several steps"`
	Unsealed   bool                 `json:"unsealed,omitempty" doc:"its items are still being stored and are not counted"`
	Summary    string               `json:"summary" doc:"the whole in a sentence or two"`
	Groups     []MissingGroup       `json:"groups" doc:"those that need an operator first"`
	Key        string               `json:"key,omitempty" doc:"all counts are of the items of this key"`
	Of         []inspect.ItemView   `json:"of,omitempty" doc:"those items with every attempt"`
	Last       *LastEvent           `json:"last,omitempty" doc:"the last thing that happened to the run"`
	Advice     []Advice             `json:"advice,omitempty" doc:"about the entire run"`
	Notes      []string             `json:"notes,omitempty"`
	Nodes      int                  `json:"nodes" doc:"that are alive"`
	At         time.Time            `json:"at" doc:"the database's clock; all of the above is as of one moment"`

	ServicesAt *time.Time `json:"services_at,omitempty" doc:"when services and consumers were queried, which is later"`
}

// Explain says why a run is not done: which items are missing, who must act, since when, and what happens next. It
// reads one snapshot, and the sums are exact. The caller adds what services and consumers do.
func (s Store) Explain(ctx context.Context, id workqueue.RunID) (*Explanation, error) {
	var e *Explanation
	err := s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		run, err := inspect.ReadSummary(ctx, tx, id)
		if err != nil {
			return err
		}
		f, err := readFacts(ctx, tx, []workqueue.RunID{id}, nil)
		if err != nil {
			return err
		}
		e = newExplanation(&run, f)
		e.Items, e.Done, e.Failed, e.Unsettled = run.Items, run.Done, run.Failed, run.Items-run.Settled()
		return e.fill(f)
	})
	if err != nil {
		return nil, fmt.Errorf("explain run %s: %w", id, err)
	}
	return e, nil
}

// ExplainKey explains only the items of one key. The error wraps ErrNotFound if the run or the key does not exist.
func (s Store) ExplainKey(ctx context.Context, id workqueue.RunID, key string) (*Explanation, error) {
	var e *Explanation
	err := s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		run, err := inspect.ReadSummary(ctx, tx, id)
		if err != nil {
			return err
		}
		seal, err := s.db.Seal(ctx, tx, id)
		if err != nil {
			return err
		}
		items, _, err := inspect.FindItems(ctx, tx, seal, id, key, inspect.NoOrdinal)
		if err != nil {
			return err
		}
		masks := map[workqueue.Block]bitfield.Set{}
		for i := range items {
			if err := inspect.FillItem(ctx, tx, seal, id, &items[i]); err != nil {
				return err
			}
			block, bit := items[i].Ordinal.Block()
			mask := masks[block]
			mask.Add(bit)
			masks[block] = mask
		}
		f, err := readFacts(ctx, tx, []workqueue.RunID{id}, masks)
		if err == nil {
			err = f.readAhead(ctx, tx, id, masks)
		}
		if err != nil {
			return err
		}
		e = newExplanation(&run, f)
		e.Key, e.Of = key, items
		e.countItems(f.runs[id])
		return e.fill(f)
	})
	if err != nil {
		return nil, fmt.Errorf("explain item %q of run %s: %w", key, id, err)
	}
	return e, nil
}

func newExplanation(run *inspect.RunSummary, f *facts) *Explanation {
	return &Explanation{Run: run.ID, Name: run.Name, Plan: run.Plan, State: f.runs[run.ID].viewState(),
		Generation: run.Generation, Groups: []MissingGroup{}, Nodes: len(f.alive), At: f.at, Open: run.Open}
}

func (e *Explanation) countItems(r *runFacts) {
	e.Items = int64(len(e.Of))
	placed := r.items - r.unplaced
	r.unplaced = 0
	for i := range e.Of {
		if slices.ContainsFunc(e.Of[i].Steps, func(s inspect.ItemStep) bool { return !s.Settled() }) {
			e.Unsettled++
		}
		if int64(e.Of[i].Ordinal) >= placed {
			r.unplaced++
		}
		switch e.Of[i].State {
		case workqueue.OutcomeDone:
			e.Done++
		case workqueue.OutcomeFailed:
			e.Failed++
		case workqueue.OutcomeMissing:
		}
	}
}

func (e *Explanation) fill(f *facts) error {
	run := f.runs[e.Run]
	e.Missing = e.Items - e.Done - e.Failed
	e.Groups = append(e.Groups, f.groups(e.Run)...)
	if err := e.check(run); err != nil {
		return err
	}
	if len(run.steps) > 1 {
		e.Steps = f.standings(run)
	}
	e.Last, e.Notes, e.Advice = run.last(f), slices.Concat(run.notes(), f.nodeNotes(), f.slowNotes()), run.advice(e)
	if run.viewState() == "paused" && !e.heldBack() {
		e.Notes = append(e.Notes, fmt.Sprintf("the run is paused: nothing more is claimed; resume it with: "+
			"`tranche run resume %s`", run.id))
	}
	if e.Unsealed = run.sealedAt == nil && e.Open == nil; e.Unsealed {
		e.Summary = run.loading(f)
	}
	e.Sum()
	return nil
}

// check compares the groups with what is missing, for each step and in total.
func (e *Explanation) check(run *runFacts) error {
	var counted, common int64
	byStep := map[string]int64{}
	for i := range e.Groups {
		g := &e.Groups[i]
		counted += g.Counted
		byStep[g.Step] += g.Items
		if g.Step == "" {
			common += g.Items
		}
	}
	if counted != e.Unsettled {
		return fmt.Errorf("the groups count %d items and %d are not settled: %w", counted, e.Unsettled, errSums)
	}
	for _, st := range run.steps {
		if told, missing := byStep[st.name]+common, st.missing.items+run.unplaced; told != missing {
			return fmt.Errorf("the groups of step %s have %d items and %d are missing: %w", st.name, told, missing, errSums)
		}
	}
	return nil
}

func (e *Explanation) heldBack() bool {
	return slices.ContainsFunc(e.Groups, func(g MissingGroup) bool {
		return g.Reason == RunHeld || g.Reason.heldForFailures()
	})
}

// heldForFailures reports whether a group already says how to see the failures.
func (e *Explanation) heldForFailures() bool {
	return slices.ContainsFunc(e.Groups, func(g MissingGroup) bool {
		return g.Reason.heldForFailures()
	})
}

// errSums is a bug in this package: an explanation must cover every missing item exactly once.
var errSums = errors.New("an explanation does not add up")

func (k Kind) heldForFailures() bool {
	return k == RunOverLimit || k == RunFailFast || k == RunApproval
}
