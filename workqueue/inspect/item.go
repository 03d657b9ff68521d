package inspect

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// ItemView is one item with its full history.
type ItemView struct {
	Ordinal workqueue.Ordinal `json:"ordinal"`
	Key     string            `json:"key"`
	State   workqueue.Outcome `json:"state" enum:"done,failed,missing"`
	Payload json.RawMessage   `json:"payload"`
	Steps   []ItemStep        `json:"steps"`

	Lane string `json:"lane,omitempty" doc:"of a run in order: the number of its partition, or of its value's lane"`

	EarlierPayloads []control.EarlierPayload `json:"earlier_payloads,omitempty" doc:"before corrections, newest first"`
}

// ItemStep is one item in one step.
type ItemStep struct {
	Step     workqueue.Step `json:"step"`
	Name     string         `json:"name"`
	Kind     workqueue.Kind `json:"kind" enum:"endpoint,direct,http,sql,local"`
	Endpoint string         `json:"endpoint" doc:"or another target: http:HOST, sql:SOURCE, local:FUNCTION"`
	Optional bool           `json:"optional,omitempty"`
	Needs    []string       `json:"needs,omitempty" doc:"steps that come first"`
	State    string         `json:"state" enum:"waiting,held,ready,in_flight,scheduled,done,failed,skipped"`

	WaitsFor []string `json:"waits_for,omitempty" doc:"steps that it has not ended in, or the barrier is for"`

	LeftOutBy   []string             `json:"left_out_by,omitempty" doc:"when skipped: the steps that failed it"`
	Stale       bool                 `json:"stale,omitempty" doc:"its inputs are being recomputed"`
	Generation  workqueue.Generation `json:"generation,omitempty" doc:"of the result or error"`
	RecordedAt  *time.Time           `json:"recorded_at,omitempty" doc:"when the result or error came"`
	Service     string               `json:"service,omitempty" doc:"who it came from"`
	Result      json.RawMessage      `json:"result,omitempty" doc:"when it is JSON"`
	ResultBytes []byte               `json:"result_bytes,omitempty" doc:"when it is something else"`
	ContentType string               `json:"content_type,omitempty"`
	Large       bool                 `json:"large,omitempty" doc:"it did not fit in a message; fetch it separately"`
	Size        int                  `json:"size,omitempty" doc:"bytes of the result"`
	SHA256      string               `json:"sha256,omitempty" doc:"of the result, in hexadecimal"`
	Error       *ItemError           `json:"error,omitempty"`
	Accepted    *control.Acceptance  `json:"accepted,omitempty" doc:"who has accepted that it failed, and why"`
	Earlier     []EarlierPart        `json:"earlier,omitempty" doc:"what earlier generations had here, the newest first"`
	Attempts    []Attempt            `json:"attempts" doc:"every slice that held the item, oldest first"`

	needs    []workqueue.Step
	Approval bool `json:"waits_for_approval,omitempty" doc:"what the step needs ended; it waits for approval"`

	barrier bool // it has a barrier that has not been passed
}

// EarlierPart is a result or an error that no longer counts.
type EarlierPart struct {
	Generation workqueue.Generation `json:"generation"`
	RecordedAt *time.Time           `json:"recorded_at,omitempty"`
	Size       int                  `json:"size,omitempty"`
	SHA256     string               `json:"sha256,omitempty"`
	Error      *ItemError           `json:"error,omitempty"`
}

// ItemError is why an item failed.
type ItemError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Attempt is one slice as one of its items sees it.
type Attempt struct {
	Slice      workqueue.SliceID    `json:"slice"`
	Generation workqueue.Generation `json:"generation"`
	Attempt    int                  `json:"attempt"`
	Cause      string               `json:"cause" doc:"why the slice was made"`
	State      string               `json:"state" doc:"of the slice"`
	Items      int                  `json:"items" doc:"in the slice"`
	Service    string               `json:"service,omitempty" doc:"who answered"`
	CreatedAt  time.Time            `json:"created_at"`
	SentAt     *time.Time           `json:"sent_at,omitempty" doc:"or when it was claimed, if the reply was that fast"`
	EndedAt    *time.Time           `json:"ended_at,omitempty"`
	Deadline   *time.Time           `json:"deadline,omitempty"`
	NotBefore  *time.Time           `json:"not_before,omitempty" doc:"of one that is scheduled: when it is sent"`

	Outcome string `json:"outcome" enum:"done,failed,retried,lost,open" doc:"retried: retried after an error"`

	Error *ItemError `json:"error,omitempty"`
}

// MaxTwins bounds the items of one key that Items returns, in a run that allows duplicate keys.
const MaxTwins = 100

// work_queue_key finds the items.
const itemsByKey = `
SELECT ordinal, item_key, payload FROM work_queue WHERE run_id = $1 AND item_key = $2 AND ordinal > $4
ORDER BY ordinal LIMIT $3`

// Point reads of primary keys, and the block's live slices by work_slice_block. An open run's item may have none.
const itemSteps = `
SELECT s.step, s.name, s.kind, s.endpoint, s.optional, ` + NeedNames + `, s.needs,
    s.barrier AND NOT s.barrier_passed, s.gate_since IS NOT NULL,
    CASE WHEN get_bit(b.done, $3) = 1 THEN 'done'
        WHEN get_bit(b.failed, $3) = 1 THEN 'failed'
        WHEN get_bit(b.skipped, $3) = 1 THEN 'skipped'
        WHEN get_bit(b.ready, $3) = 1 THEN 'ready'
        WHEN get_bit(b.held, $3) = 1 THEN 'held'
        ELSE coalesce((SELECT CASE w.state WHEN 'scheduled' THEN 'scheduled' ELSE 'in_flight' END FROM work_slice w
            WHERE w.run_id = b.run_id AND w.step = b.step AND w.block = b.block
                AND w.state IN ('scheduled', 'claimed', 'sent') AND get_bit(w.remaining, $3) = 1 LIMIT 1), 'waiting')
    END
FROM run_step s
LEFT JOIN work_block b ON b.run_id = s.run_id AND b.step = s.step AND b.block = $2
WHERE s.run_id = $1
ORDER BY s.step`

// The parts of an item; the newest of each step includes its result, unless that is stored separately, and with $4 all
// do. Ranges of work_result's primary key; slices and large results by theirs.
const itemParts = `
SELECT p.step, p.generation, coalesce(w.ended_at, w.sent_at), coalesce(w.service, ''),
    CASE WHEN $4 OR p.generation = max(p.generation) OVER (PARTITION BY p.step) THEN p.result END,
    coalesce(p.content_type, ''), coalesce(l.bytes, octet_length(p.result), 0)::integer,
    coalesce(encode(CASE WHEN p.large_id IS NULL THEN sha256(p.result) ELSE l.sha256 END, 'hex'), ''),
    p.large_id IS NOT NULL, p.error_code, coalesce(p.error_message, '')
FROM work_result p LEFT JOIN work_slice w ON w.id = p.slice_id LEFT JOIN large_result l ON l.id = p.large_id
WHERE p.run_id = $1 AND p.step = ANY ($3) AND p.ordinal = $2
ORDER BY p.step, p.generation DESC`

// work_slice_block finds the slices; work_error and work_result are read by primary key.
const itemAttempts = `
SELECT w.step, w.id, w.generation, w.attempt, w.cause, w.state, bit_count(w.mask)::integer, coalesce(w.service, ''),
    w.created_at,
    coalesce(w.sent_at, CASE WHEN w.state = 'recorded' THEN greatest(w.created_at, w.not_before) END),
    w.ended_at, w.deadline, CASE WHEN w.state = 'scheduled' THEN w.not_before END,
    CASE WHEN p.result IS NOT NULL THEN 'done'
        WHEN p.error_code IS NOT NULL THEN 'failed'
        WHEN e.error_code IS NOT NULL OR w.state = 'recorded' AND w.error_code IS NOT NULL THEN 'retried'
        WHEN w.state IN ('scheduled', 'claimed', 'sent') THEN 'open'
        ELSE 'lost' END,
    coalesce(p.error_code, e.error_code, CASE WHEN p.result IS NULL THEN w.error_code END),
    coalesce(p.error_message, e.error_message, w.error_message, '')
FROM work_slice w
LEFT JOIN work_error e ON e.run_id = w.run_id AND e.step = w.step AND e.ordinal = $4 AND e.slice_id = w.id
LEFT JOIN work_result p ON p.run_id = w.run_id AND p.step = w.step AND p.ordinal = $4 AND p.slice_id = w.id
WHERE w.run_id = $1 AND w.block = $2 AND w.step = ANY ($5) AND get_bit(w.mask, $3) = 1
ORDER BY w.step, w.created_at, w.id`

// Items returns the items with a key: one, unless the run allows duplicate keys.
func (s Store) Items(ctx context.Context, id workqueue.RunID, key string) ([]ItemView, error) {
	items, _, err := s.ItemsAfter(ctx, id, key, NoOrdinal)
	return items, err
}

// NoOrdinal is before all ordinals.
const NoOrdinal workqueue.Ordinal = -1

// ItemsAfter returns at most MaxTwins items of a key after an ordinal, and whether more follow.
func (s Store) ItemsAfter(ctx context.Context, id workqueue.RunID, key string, after workqueue.Ordinal,
) (items []ItemView, more bool, err error) {
	err = s.db.Snapshot(ctx, func(tx pgx.Tx) (err error) {
		if _, err := ReadSummary(ctx, tx, id); err != nil {
			return err
		}
		seal, err := s.db.Seal(ctx, tx, id)
		if err != nil {
			return err
		}
		if items, more, err = FindItems(ctx, tx, seal, id, key, after); err != nil {
			return err
		}
		for i := range items {
			if err := FillItem(ctx, tx, seal, id, &items[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return items, more, pg.Wrap(err, "view item %q of run %s", key, id)
}

var errNoKey = fmt.Errorf("no item has this key: %w", workqueue.ErrNotFound)

// FindItems finds the items of a key after an ordinal.
func FindItems(ctx context.Context, tx pgx.Tx, seal *database.Seal, id workqueue.RunID, key string,
	after workqueue.Ordinal,
) (items []ItemView, more bool, err error) {
	if !pg.ValidText(key) {
		return nil, false, errNoKey
	}
	rows := pg.Rows(ctx, tx, itemsByKey, id, key, MaxTwins+1, after)
	items, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (ItemView, error) {
		var item ItemView
		var payload []byte
		err := row.Scan(&item.Ordinal, &item.Key, &payload)
		if err == nil {
			item.Payload, err = seal.ViewText(database.PayloadOf(item.Key), payload)
		}
		return item, err
	})
	if err == nil && len(items) == 0 && after == NoOrdinal {
		err = errNoKey
	}
	return items[:min(len(items), MaxTwins)], len(items) > MaxTwins, err
}

// laneOf is a point read; most runs have no lanes.
const laneOf = `SELECT coalesce((SELECT lane::text FROM work_order WHERE run_id = $1 AND ordinal = $2), '')`

// FillItem reads the item's outcome at each step.
func FillItem(ctx context.Context, tx pgx.Tx, seal *database.Seal, id workqueue.RunID, item *ItemView) (err error) {
	block, bit := item.Ordinal.Block()
	if item.Steps, err = pg.Collect(ctx, tx, scanItemStep, itemSteps, id, block, bit); err != nil {
		return err
	}
	if item.Lane, err = pg.One(ctx, tx, pgx.RowTo[string], laneOf, id, item.Ordinal); err != nil {
		return err
	}
	item.State = overall(item.Steps)
	relate(item.Steps)
	numbers := make([]workqueue.Step, len(item.Steps))
	for i := range item.Steps {
		numbers[i] = item.Steps[i].Step
	}
	rows := pg.Rows(ctx, tx, itemParts, id, item.Ordinal, numbers, seal != nil)
	if err := attachParts(rows, seal, item); err != nil {
		return err
	}
	accepted, err := control.AcceptancesOf(ctx, tx, id, item.Ordinal, numbers)
	if err != nil {
		return err
	}
	for i := range item.Steps {
		item.Steps[i].Accepted = accepted[item.Steps[i].Step]
	}
	if item.EarlierPayloads, err = control.EarlierPayloads(ctx, tx, seal, id, item.Ordinal,
		item.Key); err != nil {
		return err
	}
	rows = pg.Rows(ctx, tx, itemAttempts, id, block, bit, item.Ordinal, numbers)
	return attachAttempts(rows, item.Steps)
}

func scanItemStep(row pgx.CollectableRow) (ItemStep, error) {
	step := ItemStep{Attempts: []Attempt{}}
	err := row.Scan(&step.Step, &step.Name, &step.Kind, &step.Endpoint, &step.Optional, &step.Needs, &step.needs,
		&step.barrier, &step.Approval, &step.State)
	return step, err
}

func attachAttempts(rows pgx.Rows, steps []ItemStep) error {
	var number workqueue.Step
	var a Attempt
	var code *string
	var message string
	to := []any{&number, &a.Slice, &a.Generation, &a.Attempt, &a.Cause, &a.State, &a.Items, &a.Service, &a.CreatedAt,
		&a.SentAt, &a.EndedAt, &a.Deadline, &a.NotBefore, &a.Outcome, &code, &message}
	_, err := pgx.ForEachRow(rows, to, func() error {
		a.Error = nil
		if code != nil {
			a.Error = &ItemError{Code: *code, Message: message}
		}
		for i := range steps {
			if steps[i].Step == number {
				steps[i].Attempts = append(steps[i].Attempts, a)
				return nil
			}
		}
		return errors.New("a slice of a step that the run does not have")
	})
	return err
}

// Settled reports whether the step has an outcome for the item.
func (s *ItemStep) Settled() bool {
	return s.State == "done" || s.State == "failed" || s.State == "skipped"
}

func overall(steps []ItemStep) workqueue.Outcome {
	outcome := workqueue.OutcomeDone
	for i := range steps {
		switch {
		case steps[i].State == "failed" && !steps[i].Optional:
			return workqueue.OutcomeFailed
		case !steps[i].Settled():
			outcome = workqueue.OutcomeMissing
		}
	}
	return outcome
}

// relate sets what steps wait for, why they are skipped, and which results may be recomputed. Needed steps come first.
func relate(steps []ItemStep) {
	at := map[workqueue.Step]*ItemStep{}
	for i := range steps {
		s := &steps[i]
		at[s.Step] = s
		for _, need := range s.needs {
			if n := at[need]; n != nil {
				s.behind(n)
			}
		}
		s.Approval = s.Approval && !s.Settled()
		if s.barrier && !s.Approval && !s.Settled() && len(s.WaitsFor) == 0 {
			s.WaitsFor = s.Needs // of other items
		}
	}
}

func (s *ItemStep) behind(n *ItemStep) {
	switch s.State {
	case "waiting":
		if !n.Settled() {
			s.WaitsFor = append(s.WaitsFor, n.Name)
		}
	case "skipped":
		if n.State == "failed" && !n.Optional {
			s.LeftOutBy = addNew(s.LeftOutBy, n.Name)
		} else if n.State == "skipped" && !n.Optional {
			s.LeftOutBy = addNew(s.LeftOutBy, n.LeftOutBy...)
		}
	case "done", "failed":
		s.Stale = s.Stale || !n.Settled() || n.Stale
	}
}

func addNew(to []string, names ...string) []string {
	for _, name := range names {
		if !slices.Contains(to, name) {
			to = append(to, name)
		}
	}
	return to
}

func attachParts(rows pgx.Rows, seal *database.Seal, item *ItemView) error {
	steps := item.Steps
	var number workqueue.Step
	var p itemPart
	to := []any{&number, &p.Generation, &p.at, &p.service, &p.result, &p.contentType, &p.Size, &p.SHA256, &p.large,
		&p.code, &p.message}
	_, err := pgx.ForEachRow(rows, to, func() error {
		i := slices.IndexFunc(steps, func(s ItemStep) bool { return s.Step == number })
		if i < 0 {
			return fmt.Errorf("a part of step %d, which the run does not have", number)
		}
		if seal != nil && !p.large && p.result != nil {
			if err := p.open(seal, database.ResultOf(number, item.Ordinal)); err != nil {
				return err
			}
		}
		steps[i].take(p)
		p.result = nil // the step owns it now
		return nil
	})
	return err
}

type itemPart struct {
	EarlierPart

	at          *time.Time
	service     string
	result      []byte
	contentType string
	large       bool
	code        *string
	message     string
}

func (p *itemPart) open(seal *database.Seal, at database.Place) (err error) {
	if p.result, err = seal.OpenBytes(at, p.result); errors.Is(err, database.ErrDamaged) {
		p.Size, p.SHA256 = 0, ""
		return nil
	} else if err != nil {
		return err
	}
	sum := sha256.Sum256(p.result)
	p.Size, p.SHA256 = len(p.result), hex.EncodeToString(sum[:])
	return nil
}

func (s *ItemStep) take(p itemPart) {
	p.RecordedAt = p.at
	if p.code != nil {
		p.Error = &ItemError{Code: *p.code, Message: p.message}
	}
	counts := s.Generation == 0 && (s.State == "done" && p.Error == nil || s.State == "failed" && p.Error != nil)
	if !counts || len(s.Earlier) > 0 {
		s.Earlier = append(s.Earlier, p.EarlierPart)
		return
	}
	s.Generation, s.RecordedAt, s.Service, s.Error = p.Generation, p.at, p.service, p.Error
	s.Size, s.SHA256, s.ContentType = p.Size, p.SHA256, p.contentType
	s.Large = p.large
	switch {
	case p.large: // the placeholder adds nothing
	case p.contentType == "" && json.Valid(p.result):
		s.Result = p.result
	default:
		s.ResultBytes = p.result
	}
}
