package workqueue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ItemView is one item with everything that happened to it.
type ItemView struct {
	Ordinal Ordinal         `json:"ordinal"`
	Key     string          `json:"key"`
	State   Outcome         `json:"state" enum:"done,failed,missing"`
	Payload json.RawMessage `json:"payload"`
	Steps   []ItemStep      `json:"steps"`
}

// ItemStep is one item in one step.
type ItemStep struct {
	Step        Step            `json:"step"`
	Name        string          `json:"name"`
	Endpoint    string          `json:"endpoint"`
	State       string          `json:"state" enum:"waiting,ready,in_flight,scheduled,done,failed"`
	Generation  Generation      `json:"generation,omitempty" doc:"of the result or error"`
	Result      json.RawMessage `json:"result,omitempty" doc:"when it is JSON"`
	ResultBytes []byte          `json:"result_bytes,omitempty" doc:"when it is something else"`
	ContentType string          `json:"content_type,omitempty"`
	Error       *ItemError      `json:"error,omitempty"`
	Attempts    []Attempt       `json:"attempts" doc:"every slice that held the item, oldest first"`
}

// ItemError is why an item failed.
type ItemError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Attempt is one slice as one of its items sees it.
type Attempt struct {
	Slice      SliceID    `json:"slice"`
	Generation Generation `json:"generation"`
	Attempt    int        `json:"attempt"`
	Cause      string     `json:"cause" doc:"why the slice was made"`
	State      string     `json:"state" doc:"of the slice"`
	Items      int        `json:"items" doc:"in the slice"`
	Service    string     `json:"service,omitempty" doc:"who answered"`
	CreatedAt  time.Time  `json:"created_at"`
	SentAt     *time.Time `json:"sent_at,omitempty" doc:"or when it was claimed, if the reply was that fast"`
	EndedAt    *time.Time `json:"ended_at,omitempty"`
	Deadline   *time.Time `json:"deadline,omitempty"`
	Outcome    string     `json:"outcome" enum:"done,failed,retried,lost,open" doc:"retried: tried again after an error"`
	Error      *ItemError `json:"error,omitempty"`
}

// MaxTwins bounds the items of one key that Items returns, in a run that allows a key to stand more than once.
const MaxTwins = 100

// work_queue_key finds the items.
const itemsByKey = `
SELECT ordinal, item_key, payload FROM work_queue WHERE run_id = $1 AND item_key = $2 ORDER BY ordinal LIMIT $3`

// Point reads of primary keys, the newest part, and the live slices of the item's block by work_slice_block.
const itemSteps = `
SELECT s.step, s.name, s.endpoint,
    CASE WHEN get_bit(b.done, $3) = 1 THEN 'done'
        WHEN get_bit(b.failed, $3) = 1 THEN 'failed'
        WHEN get_bit(b.ready, $3) = 1 THEN 'ready'
        ELSE coalesce((SELECT CASE w.state WHEN 'scheduled' THEN 'scheduled' ELSE 'in_flight' END FROM work_slice w
            WHERE w.run_id = b.run_id AND w.step = b.step AND w.block = b.block
                AND w.state IN ('scheduled', 'claimed', 'sent') AND get_bit(w.remaining, $3) = 1 LIMIT 1), 'waiting')
    END,
    coalesce(p.generation, 0), p.result, coalesce(p.content_type, ''), p.error_code, coalesce(p.error_message, '')
FROM run_step s
JOIN work_block b ON b.run_id = s.run_id AND b.step = s.step AND b.block = $2
LEFT JOIN LATERAL (
    SELECT generation, result, content_type, error_code, error_message FROM work_part
    WHERE run_id = s.run_id AND step = s.step AND ordinal = $4
        AND (get_bit(b.done, $3) = 1 OR get_bit(b.failed, $3) = 1)
    ORDER BY generation DESC LIMIT 1
) p ON true
WHERE s.run_id = $1
ORDER BY s.step`

// work_slice_block finds the slices; work_error and work_part are read by primary key.
const itemAttempts = `
SELECT w.step, w.id, w.generation, w.attempt, w.cause, w.state, bit_count(w.mask)::integer, coalesce(w.service, ''),
    w.created_at,
    coalesce(w.sent_at, CASE WHEN w.state = 'recorded' THEN greatest(w.created_at, w.not_before) END),
    w.ended_at, w.deadline,
    CASE WHEN p.result IS NOT NULL THEN 'done'
        WHEN p.error_code IS NOT NULL THEN 'failed'
        WHEN e.error_code IS NOT NULL OR w.state = 'recorded' AND w.error_code IS NOT NULL THEN 'retried'
        WHEN w.state IN ('scheduled', 'claimed', 'sent') THEN 'open'
        ELSE 'lost' END,
    coalesce(p.error_code, e.error_code, CASE WHEN p.result IS NULL THEN w.error_code END),
    coalesce(p.error_message, e.error_message, w.error_message, '')
FROM work_slice w
LEFT JOIN work_error e ON e.run_id = w.run_id AND e.step = w.step AND e.ordinal = $4 AND e.slice_id = w.id
LEFT JOIN work_part p ON p.run_id = w.run_id AND p.step = w.step AND p.ordinal = $4 AND p.slice_id = w.id
WHERE w.run_id = $1 AND w.block = $2 AND w.step = ANY ($5) AND get_bit(w.mask, $3) = 1
ORDER BY w.step, w.created_at, w.id`

// Items returns the items that have the given key: one, unless the run allows a key to stand more than once. The error
// wraps ErrNotFound when the run or the key does not exist.
func (s *Store) Items(ctx context.Context, id RunID, key string) ([]ItemView, error) {
	var items []ItemView
	err := s.snapshot(ctx, func(tx pgx.Tx) (err error) {
		if _, err := readSummary(ctx, tx, id); err != nil {
			return err
		}
		if items, err = findItems(ctx, tx, id, key); err != nil {
			return err
		}
		for i := range items {
			if err := fillItem(ctx, tx, id, &items[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("view item %q of run %s: %w", key, id, err)
	}
	return items, nil
}

var errNoKey = fmt.Errorf("no item has this key: %w", ErrNotFound)

func findItems(ctx context.Context, tx pgx.Tx, id RunID, key string) ([]ItemView, error) {
	if !validText(key) {
		return nil, errNoKey
	}
	rows, err := tx.Query(ctx, itemsByKey, id, key, MaxTwins)
	if err != nil {
		return nil, err
	}
	items, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ItemView, error) {
		var item ItemView
		var payload string
		err := row.Scan(&item.Ordinal, &item.Key, &payload)
		item.Payload = json.RawMessage(payload)
		return item, err
	})
	if err == nil && len(items) == 0 {
		err = errNoKey
	}
	return items, err
}

func fillItem(ctx context.Context, tx pgx.Tx, id RunID, item *ItemView) error {
	block, bit := item.Ordinal.Block()
	rows, err := tx.Query(ctx, itemSteps, id, block, bit, item.Ordinal)
	if err != nil {
		return err
	}
	if item.Steps, err = pgx.CollectRows(rows, scanItemStep); err != nil {
		return err
	}
	item.State = overall(item.Steps)
	numbers := make([]Step, len(item.Steps))
	for i := range item.Steps {
		numbers[i] = item.Steps[i].Step
	}
	if rows, err = tx.Query(ctx, itemAttempts, id, block, bit, item.Ordinal, numbers); err != nil {
		return err
	}
	return attachAttempts(rows, item.Steps)
}

func scanItemStep(row pgx.CollectableRow) (ItemStep, error) {
	step := ItemStep{Attempts: []Attempt{}}
	var result []byte
	var code *string
	var message string
	err := row.Scan(&step.Step, &step.Name, &step.Endpoint, &step.State, &step.Generation, &result, &step.ContentType,
		&code, &message)
	switch {
	case code != nil:
		step.Error = &ItemError{Code: *code, Message: message}
	case step.ContentType == "" && json.Valid(result):
		step.Result = result
	default:
		step.ResultBytes = result
	}
	return step, err
}

func attachAttempts(rows pgx.Rows, steps []ItemStep) error {
	var number Step
	var a Attempt
	var code *string
	var message string
	to := []any{&number, &a.Slice, &a.Generation, &a.Attempt, &a.Cause, &a.State, &a.Items, &a.Service, &a.CreatedAt,
		&a.SentAt, &a.EndedAt, &a.Deadline, &a.Outcome, &code, &message}
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

// overall is the outcome of an item over all steps.
func overall(steps []ItemStep) Outcome {
	outcome := OutcomeDone
	for i := range steps {
		switch steps[i].State {
		case "failed":
			return OutcomeFailed
		case "done":
		default:
			outcome = OutcomeMissing
		}
	}
	return outcome
}
