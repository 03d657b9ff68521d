// Package export reads all items of a run with their outcomes, page by page, in constant memory, and single results.
// Their output format is the API's concern.
//
// Results too large for a message arrive in pieces, each with the service's description of the whole, and are stored
// as pieces: at most one piece is in memory. A piece is accepted only from the slice's endpoint, while the slice is
// live and waits for the item. settle records a result once all pieces are present with the described size and hash.
// Unrecorded results are deleted after their slice ends.
package export

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// Store exports runs. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// Item is one item with its outcome: Result if it is done; Step and error, of the first failed step, if it failed.
type Item struct {
	Ordinal      workqueue.Ordinal
	Key          string
	State        workqueue.Outcome
	Step         string
	Result       []byte // valid until yield returns
	ContentType  string // empty: JSON
	Large        *LargeResult
	ErrorCode    string
	ErrorMessage string
	Accepted     bool   // all its failures are accepted
	Payload      []byte // JSON, if requested; valid until yield returns
	Parts        []Item // if requested, its outcome at each step; without state where none counts
}

// LargeResult is a result too large for a message; [Store.OpenResult] reads it. Result has its size and hash.
type LargeResult struct {
	ID          uuid.UUID
	ContentType string
}

// Request selects the items to export, and the step whose parts they have.
type Request struct {
	Run workqueue.RunID
	// Step is the step whose parts are the results; "" means the only one that no other needs. An item is done if
	// that step is done with it, failed if that step or one that it needs failed it, and missing otherwise.
	Step    string
	States  []workqueue.Outcome // only items in these states; none: all
	Select  redo.Selection      // only these items; empty: all. Parts are those of the exported steps
	Payload bool                // include the items' payloads
	// Parts includes the outcomes at all steps, in place of Result. Without a Step, an item is done if all steps that
	// no other needs are. What is being recomputed has no part.
	Parts bool
}

// Export is a validated export.
type Export struct {
	store    *database.DB
	seal     *database.Seal
	run      workqueue.RunID
	items    int64
	steps    []workqueue.Step // whose failures count, in order, including the exported one
	names    []string
	before   [][]workqueue.Step // that each needs, directly or not
	optional []bool             // the exported steps continue without them, or do not need them
	leaf     []bool             // is exported
	result   int                // index of the step whose parts are the results, or plane.NoStep
	states   []workqueue.Outcome
	chosen   map[workqueue.Block]*bitfield.Set // only these items; nil: all
	payload  bool
	parts    bool
}

const exportRun = `SELECT items FROM batchrun WHERE id = $1`

// Open returns the export of a run. Failed items need no step. The error may be a *StepChoiceError.
func (s Store) Open(ctx context.Context, req Request) (*Export, error) {
	e := &Export{store: s.db, run: req.Run, states: req.States, payload: req.Payload, parts: req.Parts,
		result: plane.NoStep}
	err := s.db.Pool.QueryRow(ctx, exportRun, req.Run).Scan(&e.items)
	if errors.Is(err, pgx.ErrNoRows) {
		err = workqueue.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("export run %s: %w", req.Run, err)
	}
	g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, s.db.Pool, req.Run)
	if err == nil {
		e.seal, err = s.db.Seal(ctx, s.db.Pool, req.Run)
	}
	if err == nil {
		err = e.choose(g, req.Step)
	}
	if err == nil && !req.Select.Empty() {
		looking, cancel := context.WithTimeout(ctx, database.OperatorTimeout) // a path may take long
		defer cancel()
		err = s.db.Snapshot(looking, func(tx pgx.Tx) (err error) {
			e.chosen, err = req.Select.Items(looking, tx, req.Run, e.items, e.steps)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("export run %s: %w", req.Run, err)
	}
	return e, nil
}

// leaves returns the exported steps: the named one, or all that no other needs.
func (e *Export) leaves(g *plane.Graph, name string) (leaves []workqueue.Step, err error) {
	var all, names []string
	for i := range g.Steps {
		all = append(all, g.Steps[i].Name)
		if all[i] == name || name == "" && len(g.After[i]) == 0 {
			leaves, names = append(leaves, workqueue.Step(i)), append(names, all[i])
		}
	}
	failuresOnly := slices.Equal(e.states, []workqueue.Outcome{workqueue.OutcomeFailed})
	switch {
	case name != "" && len(leaves) == 0:
		return nil, &workqueue.StepChoiceError{Step: name, Steps: all}
	case len(leaves) > 1 && !failuresOnly && !e.parts:
		return nil, &workqueue.StepChoiceError{Steps: names}
	}
	return leaves, nil
}

func (e *Export) choose(g *plane.Graph, name string) error {
	leaves, err := e.leaves(g, name)
	if err != nil {
		return err
	}
	several := len(leaves) > 1
	for i := range g.Steps {
		step := workqueue.Step(i)
		leaf := slices.Contains(leaves, step)
		counts := several || leaf || slices.Contains(g.Before[leaves[0]], step)
		if !counts && !e.parts {
			continue
		}
		if leaf && !several && !e.parts {
			e.result = len(e.steps)
		}
		e.steps, e.names, e.before = append(e.steps, step), append(e.names, g.Steps[i].Name), append(e.before, g.Before[i])
		e.leaf = append(e.leaf, leaf)
		e.optional = append(e.optional, !counts || g.Steps[i].Optional && (several || !leaf))
	}
	return nil
}

// Steps names the steps of the items' parts.
func (e *Export) Steps() []string {
	if !e.parts {
		return nil
	}
	return e.names
}

// Items returns the number of items, or 0 if only some of the run's are exported.
func (e *Export) Items() int64 {
	if e.chosen != nil || len(e.states) > 0 {
		return 0
	}
	return e.items
}

// Each yields the items in ordinal order. Memory is constant: pages of at most 1024 items and about 8 MiB, each read
// as of one moment. While yield runs, no connection or snapshot is held. An error from yield is wrapped.
func (e *Export) Each(ctx context.Context, yield func(*Item) error) error {
	pages := exportPages{Export: e, results: pg.Arena{Most: exportBytes}}
	for from := workqueue.Ordinal(0); int64(from) < e.items; {
		page, next, err := pages.read(ctx, from)
		if err != nil {
			return fmt.Errorf("export run %s from item %d: %w", e.run, from, err)
		}
		for i := range page {
			if err := yield(&page[i]); err != nil {
				return fmt.Errorf("export run %s, item %d: %w", e.run, page[i].Ordinal, err)
			}
		}
		from = next
	}
	return nil
}
