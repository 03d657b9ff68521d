package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// DeadFilter chooses what DeadLetters lists.
type DeadFilter struct {
	Endpoint string             // empty: of every endpoint
	State    LetterState        // empty: in every state
	Limit    int                // 1 to MaxLetters; 0 means DefaultLetters
	After    workqueue.LetterID // the Next of the page before; zero: from the newest
}

// The number of letters in one page.
const (
	DefaultLetters = 50
	MaxLetters     = 500
)

// DeadLetterPage is some dead letters, newest first, without their bodies.
type DeadLetterPage struct {
	Letters []DeadLetter        `json:"letters"`
	Next    *workqueue.LetterID `json:"next,omitempty" doc:"where the next page goes on; absent on the last one"`
}

// The size of a body is known without reading it.
const letterColumns = `
SELECT id, endpoint, cause, message, mode, run_id, slice_id, root_id, stack, origin, service, deliveries, requeued,
    items, state, headers, coalesce(octet_length(body), 0), at, changed_at`

// The primary key, backwards, or one of dead_letter_state and dead_letter_endpoint.
const listLetters = letterColumns + `
FROM dead_letter
WHERE ($1 = '' OR endpoint = $1) AND ($2 = '' OR state = $2) AND ($3::uuid IS NULL OR id < $3)
ORDER BY id DESC
LIMIT $4`

// DeadLetters lists dead letters, newest first, without their bodies.
func (s Store) DeadLetters(ctx context.Context, f DeadFilter) (DeadLetterPage, error) {
	limit := pg.Limit(f.Limit, DefaultLetters, MaxLetters)
	page := DeadLetterPage{Letters: []DeadLetter{}}
	if !pg.ValidText(f.Endpoint) || !pg.ValidText(string(f.State)) {
		return page, nil
	}
	var after *workqueue.LetterID
	if f.After != (workqueue.LetterID{}) {
		after = &f.After
	}
	var err error
	page.Letters, err = pg.Collect(ctx, s.db.Pool, scanLetter, listLetters, f.Endpoint, string(f.State), after, limit+1)
	if err != nil {
		return DeadLetterPage{}, fmt.Errorf("list dead letters: %w", err)
	}
	if len(page.Letters) > limit {
		page.Letters = page.Letters[:limit]
		page.Next = &page.Letters[limit-1].ID
	}
	return page, nil
}

const oneLetter = letterColumns + `, body FROM dead_letter WHERE id = $1`

// DeadLetter returns the letter that a person means by ref, with its body: an id, or a piece of one (MinPrefix
// digits or more, hyphens optional). It returns an AmbiguousLetterError when several letters fit, and an error that
// wraps ErrNotFound when none does.
func (s Store) DeadLetter(ctx context.Context, ref string) (DeadLetter, error) {
	id, err := resolveLetter(ctx, s.db.Pool, ref)
	if err != nil {
		return DeadLetter{}, err
	}
	var body []byte
	rows := pg.Rows(ctx, s.db.Pool, oneLetter, id)
	letter, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (DeadLetter, error) {
		return scanLetterAnd(row, &body)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = workqueue.ErrNotFound
	}
	if err != nil {
		return DeadLetter{}, fmt.Errorf("read dead letter %s: %w", id, err)
	}
	letter.Body = body
	return letter, nil
}

func scanLetter(row pgx.CollectableRow) (DeadLetter, error) { return scanLetterAnd(row) }

// scanLetterAnd reads letterColumns and what follows them.
func scanLetterAnd(row pgx.CollectableRow, more ...any) (DeadLetter, error) {
	var l DeadLetter
	var headers []byte
	to := []any{&l.ID, &l.Endpoint, &l.Cause, &l.Message, &l.Mode, &l.Run, &l.Slice, &l.Root, &l.Stack, &l.Origin,
		&l.Service, &l.Deliveries, &l.Requeued, &l.Items, &l.State, &headers, &l.Size, &l.At, &l.ChangedAt}
	if err := row.Scan(append(to, more...)...); err != nil {
		return l, err
	}
	if err := json.Unmarshal(headers, &l.Headers); err != nil {
		return l, fmt.Errorf("headers of dead letter %s: %w", l.ID, err)
	}
	return l, nil
}
