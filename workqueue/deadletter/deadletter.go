// Package deadletter stores dead letters, which are requests abandoned after failed deliveries, with their state;
// and messages in quarantine, which could not be accepted.
package deadletter

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Store reads and writes dead letters. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// LetterState is the state of a dead letter.
type LetterState string

// The states of a dead letter.
const (
	LetterWaiting  LetterState = "waiting"  // to be requeued or dropped
	LetterRequeued LetterState = "requeued" // sent to its endpoint again; if it dies again, that is another letter
	LetterReissued LetterState = "reissued" // its items continued automatically; kept for inspection
	LetterDropped  LetterState = "dropped"  // discarded, with its body
)

// MaxLetterBody is the largest stored body in bytes. A letter with a larger one is stored without it.
const MaxLetterBody = 16 << 20

// DeadLetter is a request that no service could handle, unchanged, and what is known of its end.
type DeadLetter struct {
	ID         workqueue.LetterID  `json:"id"`
	MsgID      string              `json:"-"` // of the letter, which is stored once
	Endpoint   string              `json:"endpoint"`
	Cause      string              `json:"cause" doc:"a short code"`
	Message    string              `json:"message,omitempty"`
	Mode       string              `json:"mode,omitempty" doc:"batch or single; empty when the request does not say"`
	Run        *workqueue.RunID    `json:"run,omitempty"`
	Slice      *workqueue.SliceID  `json:"slice,omitempty"`
	Root       *workqueue.SliceID  `json:"root,omitempty" doc:"the slice that all this was for"`
	Stack      string              `json:"stack,omitempty" doc:"the endpoints that waited for the answer, outermost first"`
	Origin     string              `json:"origin,omitempty" doc:"the first requester"`
	Service    string              `json:"service,omitempty" doc:"who gave it up: name@version instance"`
	Deliveries int                 `json:"deliveries" doc:"0 when it is not known"`
	Requeued   int                 `json:"requeued" doc:"how often an operator has sent it again, over all its letters"`
	Items      int                 `json:"items" doc:"0 when it is not known"`
	State      LetterState         `json:"state" enum:"waiting,requeued,reissued,dropped"`
	Headers    map[string][]string `json:"headers,omitempty"`
	Body       []byte              `json:"body,omitempty"`
	NoBody     bool                `json:"-"` // the body is not available: the letter cannot be sent again
	Size       int                 `json:"size" doc:"bytes of the body; 0 when it is not kept"`
	At         time.Time           `json:"at" doc:"when it died"`
	ChangedAt  time.Time           `json:"changed_at" doc:"when it came into its state"`
}

const insertLetter = `
INSERT INTO dead_letter (id, msg_id, endpoint, cause, message, mode, run_id, slice_id, root_id, stack, origin, service,
    deliveries, requeued, items, state, headers, body, at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18,
    coalesce($19, tranche_now()))
ON CONFLICT (msg_id) DO NOTHING`

// Add stores a dead letter. A letter with the same MsgID is stored once, however many nodes find it; isNew: this
// call stored it. A zero State means LetterWaiting, a zero At the current database time; the store sets ID, Size and
// ChangedAt. Invalid text is replaced, and a body larger than MaxLetterBody is left out.
func (s Store) Add(ctx context.Context, letter DeadLetter) (isNew bool, err error) {
	if letter.MsgID == "" {
		return false, errors.New("bury a letter: it has no message id")
	}
	letter.State = cmp.Or(letter.State, LetterWaiting)
	seal, err := s.db.SealOfMessage(ctx, letter.Run)
	if database.Unreadable(err) { // kept without its body, or its message would come again forever
		letter.NoBody, err = true, nil
	}
	if err != nil {
		return false, fmt.Errorf("bury letter %s: %w", letter.MsgID, err)
	}
	id := uuid.Must(uuid.NewV7())
	body := seal.Bytes(database.LetterOf(workqueue.LetterID(id)), keptBody(&letter, MaxLetterBody-seal.Overhead()))
	tag, err := s.db.Pool.Exec(ctx, insertLetter, id, letterKey(letter.MsgID),
		pg.Plain(letter.Endpoint), pg.Plain(letter.Cause), pg.Plain(letter.Message), pg.Plain(letter.Mode),
		letter.Run, letter.Slice, letter.Root, pg.Plain(letter.Stack), pg.Plain(letter.Origin),
		pg.Plain(letter.Service), counted(letter.Deliveries),
		counted(letter.Requeued), counted(letter.Items), letter.State, pg.Sanitized(letter.Headers), body,
		pg.UnlessZero(letter.At))
	return tag.RowsAffected() == 1, pg.Wrap(err, "bury letter %s", letter.MsgID)
}

// maxCounted bounds a letter's own counts, so that they can still be increased.
const maxCounted = 1 << 30

func counted(n int) int { return min(max(n, 0), maxCounted) }

// maxLetterKey bounds the message IDs stored unchanged: an index entry holds only some kilobytes.
const maxLetterKey = 256

// letterKey returns the message ID in a form that PostgreSQL can index.
func letterKey(id string) string {
	if len(id) <= maxLetterKey && pg.ValidText(id) {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// keptBody is the body to store, which may be empty, or nil for none.
func keptBody(letter *DeadLetter, most int) []byte {
	switch {
	case letter.NoBody || len(letter.Body) > most:
		return nil
	case letter.Body == nil:
		return []byte{}
	default:
		return letter.Body
	}
}

// visible are the letters of runs in the namespaces $5; null: all.
const visible = `($5::text[] IS NULL OR (SELECT r.namespace FROM batchrun r WHERE r.id = run_id) = ANY ($5))`

// A range of the primary key; if that is empty, all letters.
const matchingLetters = `
WITH begins AS MATERIALIZED (
    SELECT id FROM dead_letter WHERE id BETWEEN $1 AND $2 AND ` + visible + ` ORDER BY id DESC LIMIT $3)
SELECT id FROM begins
UNION ALL
(SELECT id FROM dead_letter
WHERE NOT EXISTS (SELECT FROM begins) AND position($4 IN replace(id::text, '-', '')) > 0 AND ` + visible + `
ORDER BY id DESC LIMIT $3)`

func resolveLetter(ctx context.Context, db pg.Querier, ref string) (workqueue.LetterID, error) {
	low, high, ok := pg.PrefixRange(strings.TrimSpace(ref))
	piece, _ := pg.Piece(strings.TrimSpace(ref))
	var ids []workqueue.LetterID
	if ok {
		var err error
		ids, err = pg.Collect(ctx, db, pgx.RowTo[workqueue.LetterID], matchingLetters, low, high, pg.MaxMatches, piece,
			workqueue.Namespaces(ctx))
		if err != nil {
			return workqueue.LetterID{}, fmt.Errorf("look up dead letter %q: %w", ref, err)
		}
	}
	switch len(ids) {
	case 0:
		return workqueue.LetterID{}, fmt.Errorf("no dead letter has ID %q: %w", ref, workqueue.ErrNotFound)
	case 1:
		return ids[0], nil
	default:
		return workqueue.LetterID{}, workqueue.Conflict("%q fits more than one dead letter, among them %s and %s; give more "+
			"of the id", ref, ids[0], ids[1])
	}
}

// DeadFilter selects dead letters.
type DeadFilter struct {
	Endpoint string             `query:"endpoint" maxLength:"64" doc:"only those of this endpoint"`
	State    LetterState        `query:"state" enum:"waiting,requeued,reissued,dropped" doc:"only those in this state"`
	Limit    int                `query:"limit" minimum:"1" maximum:"500" default:"50"` // 0 means DefaultLetters
	After    workqueue.LetterID `json:"-"`                                             // Next of the previous page
}

// The number of letters on a page.
const (
	DefaultLetters = 50
	MaxLetters     = 500
	// MaxSearched limits the letters read for a page of a caller limited to namespaces.
	MaxSearched = 20_000
)

// DeadLetterPage is a page of dead letters, newest first, without bodies.
type DeadLetterPage struct {
	Letters []DeadLetter        `json:"letters"`
	Next    *workqueue.LetterID `json:"next,omitempty" doc:"where the next page continues; absent on the last one"`
}

// sealedBody is 1 for a body that is stored encrypted, which is longer.
const sealedBody = `
    (SELECT count(*) FROM batchrun r WHERE r.id = run_id AND r.data_key IS NOT NULL AND octet_length(body) > 0)`

// The size of a body is known without reading it.
const letterColumns = `
SELECT id, endpoint, cause, message, mode, run_id, slice_id, root_id, stack, origin, service, deliveries, requeued,
    items, state, headers, coalesce(octet_length(body), 0), at, changed_at,` + sealedBody

// The primary key, backwards, or one of dead_letter_state and dead_letter_endpoint.
const listLetters = letterColumns + `
FROM dead_letter
WHERE ($1 = '' OR endpoint = $1) AND ($2 = '' OR state = $2) AND ` + visible + `
    AND id < coalesce($3::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    AND id >= coalesce($6::uuid, '00000000-0000-0000-0000-000000000000')
ORDER BY id DESC
LIMIT $4`

// letterFloor bounds what a page of some namespaces reads; null: nothing is older.
const letterFloor = `
SELECT (SELECT id FROM dead_letter WHERE $1::uuid IS NULL OR id < $1 ORDER BY id DESC OFFSET $2 LIMIT 1)`

// DeadLetters lists dead letters of the context's scope, newest first, without bodies. If that is limited, a page may
// have few letters, or none, and a next one.
func (s Store) DeadLetters(ctx context.Context, f DeadFilter) (DeadLetterPage, error) {
	limit := pg.Limit(f.Limit, DefaultLetters, MaxLetters)
	page := DeadLetterPage{Letters: []DeadLetter{}}
	if !pg.ValidText(f.Endpoint) || !pg.ValidText(string(f.State)) {
		return page, nil
	}
	after := pg.UnlessZero(f.After)
	var floor *workqueue.LetterID
	var err error
	if workqueue.Namespaces(ctx) != nil {
		err = s.db.Pool.QueryRow(ctx, letterFloor, after, MaxSearched).Scan(&floor)
	}
	if err == nil {
		page.Letters, err = pg.Collect(ctx, s.db.Pool, scanLetter, listLetters, f.Endpoint, string(f.State), after, limit+1,
			workqueue.Namespaces(ctx), floor)
	}
	switch {
	case err != nil:
		return DeadLetterPage{}, fmt.Errorf("list dead letters: %w", err)
	case len(page.Letters) > limit:
		page.Letters = page.Letters[:limit]
		page.Next = &page.Letters[limit-1].ID
	default:
		page.Next = floor
	}
	return page, nil
}

const letterEndpoints = `SELECT DISTINCT endpoint FROM dead_letter`

// Endpoints returns the endpoints that have dead letters in any state.
func (s Store) Endpoints(ctx context.Context) ([]string, error) {
	return pg.Collect(ctx, s.db.Pool, pgx.RowTo[string], letterEndpoints)
}

const oneLetter = letterColumns + `, body FROM dead_letter WHERE id = $1`

// DeadLetter returns a letter with its body, by ID or part of one (at least MinPrefix digits, hyphens optional). It
// returns a [workqueue.ConflictError] if several match, and an error that wraps ErrNotFound if none does.
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
	seal, err := s.db.SealOfMessage(ctx, letter.Run)
	if err == nil {
		letter.Body, err = seal.OpenBytes(database.LetterOf(id), body)
	}
	if err != nil && !errors.Is(err, database.ErrRunGone) {
		return DeadLetter{}, fmt.Errorf("read dead letter %s: %w", id, err)
	}
	letter.Size = len(letter.Body)
	return letter, nil
}

func scanLetter(row pgx.CollectableRow) (DeadLetter, error) { return scanLetterAnd(row) }

// scanLetterAnd reads letterColumns and then more.
func scanLetterAnd(row pgx.CollectableRow, more ...any) (DeadLetter, error) {
	var l DeadLetter
	var sealed int
	to := []any{&l.ID, &l.Endpoint, &l.Cause, &l.Message, &l.Mode, &l.Run, &l.Slice, &l.Root, &l.Stack, &l.Origin,
		&l.Service, &l.Deliveries, &l.Requeued, &l.Items, &l.State, &l.Headers, &l.Size, &l.At, &l.ChangedAt, &sealed}
	if err := row.Scan(append(to, more...)...); err != nil {
		return l, err
	}
	l.Size -= sealed * database.SealOverhead
	return l, nil
}
