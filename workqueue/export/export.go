// Package export reads all items of a run with their outcomes, page by page, in constant memory, and single results.
// What becomes of them, as lines, tables or files, is the API's to say.
//
// Results that do not fit a message come in pieces, each with what the service says about the whole, and stay in them:
// nothing here holds more of a result than a piece at once. A piece counts only while its slice is live and waits for
// its item, and when it comes from the endpoint that the slice was sent to. A result becomes that of its item in the
// transaction of settle that records it, once all pieces are here and have the size and the hash that the service said.
// What is not recorded is deleted once its slice has ended.
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

// Store is the database for who exports runs. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// Item is one item with its outcome. Result, of the step that is exported, is set when it is done; Step,
// ErrorCode and ErrorMessage, of the first step that failed, when it failed.
type Item struct {
	Ordinal      workqueue.Ordinal
	Key          string
	State        workqueue.Outcome
	Step         string
	Result       []byte // valid until yield returns
	ContentType  string // empty means JSON
	Large        *LargeResult
	ErrorCode    string
	ErrorMessage string
	Accepted     bool   // each of its failures is
	Payload      []byte // JSON, when it was asked for; valid until yield returns
}

// LargeResult is a result that did not fit a message. Package results has it; in its place stands a JSON object with
// its bytes and its SHA-256.
type LargeResult struct {
	ID          uuid.UUID
	ContentType string
}

// Request says which items of a run are exported, and whose parts.
type Request struct {
	Run workqueue.RunID
	// Step is the name of the step whose parts are the results; "" is the only one that no other needs. An item is done
	// when that step has done it, failed when that step has failed it or a step that it needs, and missing otherwise.
	Step    string
	States  []workqueue.Outcome // only items in one of them; none: all
	Select  redo.Selection      // only these items; empty: all. Parts are those of the steps that are exported
	Payload bool                // items come with what they carry
}

// Export is an export that has been found to be possible.
type Export struct {
	store    *database.DB
	run      workqueue.RunID
	items    int64
	steps    []workqueue.Step // that tell of failures, in order; the one that is exported is among them
	names    []string
	optional []bool // of steps that the exported one goes on without
	result   int    // which of them is exported, or plane.NoStep
	states   []workqueue.Outcome
	chosen   map[workqueue.Block]*bitfield.Set // only these items; nil: all
	payload  bool
}

const exportRun = `SELECT items FROM batchrun WHERE id = $1`

// Open returns the export of a run. Without a step, failed items can be exported of any run: those of all steps.
// The error wraps ErrNotFound when there is no such run, or is a *StepChoiceError.
func (s Store) Open(ctx context.Context, req Request) (*Export, error) {
	e := &Export{store: s.db, run: req.Run, states: req.States, payload: req.Payload, result: plane.NoStep}
	err := s.db.Pool.QueryRow(ctx, exportRun, req.Run).Scan(&e.items)
	if errors.Is(err, pgx.ErrNoRows) {
		err = workqueue.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("export run %s: %w", req.Run, err)
	}
	g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, s.db.Pool, req.Run)
	if err == nil {
		err = e.choose(g, req.Step)
	}
	if err == nil && !req.Select.Empty() {
		looking, cancel := context.WithTimeout(ctx, database.OperatorTimeout) // a path may take as long as it wants to
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

// choose finds the step that is exported, and those whose failures are its items'.
func (e *Export) choose(g *plane.Graph, name string) error {
	leaves, all := make([]string, 0, 1), make([]string, len(g.Steps))
	chosen := workqueue.Step(plane.NoStep)
	for i := range g.Steps {
		all[i] = g.Steps[i].Name
		if all[i] == name || name == "" && len(g.After[i]) == 0 {
			chosen, leaves = workqueue.Step(i), append(leaves, all[i])
		}
	}
	failuresOnly := slices.Equal(e.states, []workqueue.Outcome{workqueue.OutcomeFailed})
	switch {
	case name != "" && len(leaves) == 0:
		return &workqueue.StepChoiceError{Step: name, Steps: all}
	case len(leaves) > 1 && !failuresOnly:
		return &workqueue.StepChoiceError{Steps: leaves}
	}
	for i := range g.Steps {
		step := workqueue.Step(i)
		switch {
		case len(leaves) > 1: // whichever it was
		case step == chosen:
			e.result = len(e.steps)
		case !slices.Contains(g.Before[chosen], step):
			continue
		}
		e.steps, e.names = append(e.steps, step), append(e.names, all[i])
		e.optional = append(e.optional, g.Steps[i].Optional && len(e.steps)-1 != e.result)
	}
	return nil
}

// Items is how many items the run has.
func (e *Export) Items() int64 { return e.items }

// Each yields the items in the order of their ordinals. Memory is constant: pages of at most 1024 items and of 8 MiB
// but for the item that fills it, each read at one moment. While yield runs, neither a connection nor a snapshot is
// held, so a slow reader is in no one's way. An error from yield ends the export and is wrapped.
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
