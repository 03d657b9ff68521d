package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Quarantined is a reply, or a slot of one, that could not be accepted.
type Quarantined struct {
	Reason  string // a short code: json, version, wrong_endpoint, foreign_ordinal, …
	Detail  string
	Subject string
	Run     uuid.UUID // zero if the message does not say
	Slice   uuid.UUID
	Headers map[string][]string
	Body    []byte
}

const maxQuarantinedBody = 64 << 10

const insertQuarantine = `
INSERT INTO quarantine (reason, detail, subject, run_id, slice_id, headers, body) VALUES ($1, $2, $3, $4, $5, $6, $7)`

// Quarantine stores a message that could not be accepted, in a transaction, since it must not be stored twice.
func (s Store) Quarantine(ctx context.Context, q Quarantined) error {
	// An empty message is not the same as none.
	body := append([]byte{}, q.Body[:min(len(q.Body), maxQuarantinedBody)]...)
	seal, err := s.db.SealOfMessage(ctx, (*workqueue.RunID)(&q.Run))
	if database.Unreadable(err) { // as for dead letters
		body, err = []byte{}, nil
	}
	if err != nil {
		return fmt.Errorf("quarantine a message on %s: %w", q.Subject, err)
	}
	body = seal.Bytes(database.InQuarantine(), body)
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, insertQuarantine, pg.Plain(q.Reason), pg.Plain(q.Detail), pg.Plain(q.Subject),
			uuid.NullUUID{UUID: q.Run, Valid: q.Run != uuid.Nil}, uuid.NullUUID{UUID: q.Slice, Valid: q.Slice != uuid.Nil},
			pg.Sanitized(q.Headers), body)
		return err
	})
	return pg.Wrap(err, "quarantine a message on %s", q.Subject)
}

// QuarantinedView is a message that could not be accepted.
type QuarantinedView struct {
	ID      int64               `json:"id"`
	At      time.Time           `json:"at"`
	Reason  string              `json:"reason" doc:"a short code"`
	Detail  string              `json:"detail"`
	Subject string              `json:"subject"`
	Run     *workqueue.RunID    `json:"run,omitempty" doc:"absent when the message does not say"`
	Slice   *workqueue.SliceID  `json:"slice,omitempty"`
	Headers map[string][]string `json:"headers,omitempty"`
	Body    []byte              `json:"body,omitempty" doc:"the first 64 KiB"`
	Size    int                 `json:"size" doc:"bytes of the body that are kept"`
}

// QuarantineFilter selects quarantined messages.
type QuarantineFilter struct {
	Run   workqueue.RunID `json:"-"` // zero: any or none
	After int64           `query:"after" minimum:"0" doc:"next of the previous page"`
	Limit int             `query:"limit" minimum:"1" maximum:"500" default:"50"` // 0 means DefaultQuarantined
}

// The number of messages on a page.
const (
	DefaultQuarantined = 50
	MaxQuarantined     = 500
)

// QuarantinePage is a page of messages, newest first, without bodies.
type QuarantinePage struct {
	Messages []QuarantinedView `json:"messages"`
	Next     int64             `json:"next,omitempty" doc:"where the next page continues; absent on the last one"`
}

const quarantinedColumns = `
SELECT id, at, reason, detail, subject, run_id, slice_id, headers, octet_length(body),` + sealedBody

// The primary key, backwards, or quarantine_run.
const listQuarantined = quarantinedColumns + `
FROM quarantine
WHERE ($1::uuid IS NULL OR run_id = $1) AND ($2 = 0::bigint OR id < $2)
ORDER BY id DESC
LIMIT $3`

// QuarantinedMessages lists quarantined messages, newest first, without bodies.
func (s Store) QuarantinedMessages(ctx context.Context, f QuarantineFilter) (page QuarantinePage, err error) {
	limit := pg.Limit(f.Limit, DefaultQuarantined, MaxQuarantined)
	rows := pg.Rows(ctx, s.db.Pool, listQuarantined, pg.UnlessZero(f.Run), f.After, limit+1)
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (QuarantinedView, error) {
		return scanQuarantined(row)
	})
	page.Messages, page.Next = pg.Cut(found, limit, func(m *QuarantinedView) int64 { return m.ID })
	return page, pg.Wrap(err, "list quarantined messages")
}

const oneQuarantined = quarantinedColumns + `, body FROM quarantine WHERE id = $1`

// QuarantinedMessage returns one message with the stored part of its body.
func (s Store) QuarantinedMessage(ctx context.Context, id int64) (QuarantinedView, error) {
	var body []byte
	rows := pg.Rows(ctx, s.db.Pool, oneQuarantined, id)
	view, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (QuarantinedView, error) {
		return scanQuarantined(row, &body)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = workqueue.ErrNotFound
	}
	if err != nil {
		return QuarantinedView{}, fmt.Errorf("read quarantined message %d: %w", id, err)
	}
	seal, err := s.db.SealOfMessage(ctx, view.Run)
	if err == nil {
		view.Body, err = seal.OpenBytes(database.InQuarantine(), body)
	}
	if err != nil && !errors.Is(err, database.ErrRunGone) {
		return QuarantinedView{}, fmt.Errorf("read quarantined message %d: %w", id, err)
	}
	view.Size = len(view.Body)
	return view, nil
}

// scanQuarantined reads quarantinedColumns and then more.
func scanQuarantined(row pgx.CollectableRow, more ...any) (QuarantinedView, error) {
	var q QuarantinedView
	var sealed int
	to := []any{&q.ID, &q.At, &q.Reason, &q.Detail, &q.Subject, &q.Run, &q.Slice, &q.Headers, &q.Size, &sealed}
	if err := row.Scan(append(to, more...)...); err != nil {
		return q, err
	}
	q.Size -= sealed * database.SealOverhead
	return q, nil
}
