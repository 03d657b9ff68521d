package deadletter

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// MaxRequeues is how often a request is sent again without force: it will die again, and may crash services.
const MaxRequeues = 3

const (
	// maxRefs bounds the letters named by one selection.
	maxRefs = 1000
	// maxListed bounds the letters listed in an answer or audit entry.
	maxListed = 100
)

// DeadSelection selects dead letters. One of Refs, Endpoint and All is set. Endpoint and All mean waiting ones.
type DeadSelection struct {
	Refs     []string // IDs, or parts of them
	Endpoint string
	All      bool
	Force    bool // also requeue those requeued MaxRequeues times
}

func (sel DeadSelection) validate() error {
	n := 0
	for _, set := range []bool{len(sel.Refs) > 0, sel.Endpoint != "", sel.All} {
		if set {
			n++
		}
	}
	switch {
	case n != 1:
		return errors.New("choose either some letters by their ids, or those of an endpoint, or all")
	case len(sel.Refs) > maxRefs:
		return fmt.Errorf("%d letters are named; name at most %d in one request", len(sel.Refs), maxRefs)
	case !pg.ValidText(sel.Endpoint):
		return fmt.Errorf("endpoint %q: %w", sel.Endpoint, workqueue.ErrNotFound)
	}
	return nil
}

// Requeue is the outcome of requeuing a selection.
type Requeue struct {
	Requeued     int             `json:"requeued"`
	Refused      []RefusedLetter `json:"refused" doc:"the first hundred"`
	RefusedTotal int             `json:"refused_total"`
}

// RefusedLetter is a letter left unchanged.
type RefusedLetter struct {
	ID     workqueue.LetterID `json:"id"`
	Reason string             `json:"reason" doc:"and what to do instead"`
}

func (r *Requeue) refuse(id workqueue.LetterID, reason string) {
	r.RefusedTotal++
	if len(r.Refused) < maxListed {
		r.Refused = append(r.Refused, RefusedLetter{id, reason})
	}
}

const (
	// lockLetters locks the selected letters by ID, before the update. Named ones are locked in any state, to report it.
	lockLetters = `
SELECT id, state, requeued, body IS NOT NULL AND endpoint <> '', run_id FROM dead_letter
WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE`

	// requeueLetters, if forced, also takes letters sent before: a lost stream may have contained them.
	requeueLetters = `
UPDATE dead_letter
SET state = 'requeued', requeued = requeued + 1, changed_at = tranche_now(), sent_at = NULL
WHERE id = ANY($1) AND (state = 'waiting' OR $2 AND state = 'requeued') AND body IS NOT NULL`

	// requeueWaiting takes all waiting letters of one endpoint or all, inside PostgreSQL: only a page of refused
	// ones is returned. Bodies are stored out of line and not rewritten.
	requeueWaiting = `
WITH waiting AS MATERIALIZED (
    SELECT id, requeued, body IS NOT NULL AND endpoint <> '' AS whole FROM dead_letter
    WHERE state = 'waiting' AND ($1 = '' OR endpoint = $1)
    ORDER BY id FOR NO KEY UPDATE
), moved AS (
    UPDATE dead_letter d
    SET state = 'requeued', requeued = d.requeued + 1, changed_at = tranche_now(), sent_at = NULL
    FROM waiting w WHERE d.id = w.id AND d.state = 'waiting' AND w.whole AND (w.requeued < $2 OR $3)
    RETURNING d.id
), refused AS (
    SELECT id, requeued, whole FROM waiting WHERE NOT (whole AND (requeued < $2 OR $3))
)
SELECT (SELECT count(*) FROM moved), (SELECT count(*) FROM refused),
    ARRAY(SELECT id FROM moved ORDER BY id LIMIT $4), ARRAY(SELECT id FROM refused WHERE whole ORDER BY id LIMIT $4),
    ARRAY(SELECT id FROM refused WHERE NOT whole ORDER BY id LIMIT $4)`
)

// Requeue sends dead letters to their endpoints again, and returns those refused, with reasons. They move in one
// transaction with an audit entry; nodes publish them afterwards, see [Store.UnsentLetters].
func (s Store) Requeue(ctx context.Context, sel DeadSelection, actor string) (Requeue, error) {
	if err := sel.validate(); err != nil {
		return Requeue{}, fmt.Errorf("requeue dead letters: %w", err)
	}
	var out Requeue
	err := s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) (err error) {
		out = Requeue{Refused: []RefusedLetter{}}
		moved := letterMove{actor: actor, op: "requeue", to: LetterRequeued, sel: sel}
		if len(sel.Refs) > 0 {
			err = requeueNamed(ctx, tx, &moved, &out)
		} else {
			err = requeueAll(ctx, tx, &moved, &out)
		}
		if err != nil || out.Requeued == 0 {
			return err
		}
		return moved.audit(ctx, tx)
	})
	return out, pg.Wrap(err, "requeue dead letters")
}

func requeueAll(ctx context.Context, tx pgx.Tx, moved *letterMove, out *Requeue) error {
	var refused int
	var looping, bodiless []workqueue.LetterID
	err := tx.QueryRow(ctx, requeueWaiting, moved.sel.Endpoint, MaxRequeues, moved.sel.Force, maxListed).
		Scan(&out.Requeued, &refused, &moved.ids, &looping, &bodiless)
	if err != nil {
		return err
	}
	moved.waiting(out.Requeued)
	for _, id := range looping {
		out.refuse(id, loopReason())
	}
	for _, id := range bodiless {
		out.refuse(id, bodilessReason())
	}
	out.RefusedTotal = refused
	return nil
}

func loopReason() string {
	return fmt.Sprintf("it has been requeued %d times and died each time; fix the service, then force it", MaxRequeues)
}

func bodilessReason() string {
	return fmt.Sprintf("it names no endpoint, or its body was not kept (one of more than %d MiB, or than a message may "+
		"have, is not); request it again", MaxLetterBody>>20)
}

type deadRow struct {
	ID       workqueue.LetterID
	State    LetterState
	Requeued int
	Whole    bool
	Run      *workqueue.RunID
}

func requeueNamed(ctx context.Context, tx pgx.Tx, moved *letterMove, out *Requeue) error {
	rows, err := lockNamed(ctx, tx, moved.sel.Refs)
	if err != nil {
		return err
	}
	for i := range rows {
		if reason := rows[i].mayRequeue(moved.sel.Force); reason != "" {
			out.refuse(rows[i].ID, reason)
			continue
		}
		moved.add(&rows[i])
	}
	out.Requeued = len(moved.ids)
	return pg.CheckRows(len(moved.ids))(tx.Exec(ctx, requeueLetters, moved.ids, moved.sel.Force))
}

func (l *deadRow) mayRequeue(force bool) string {
	switch {
	case l.State == LetterReissued && l.Run != nil:
		return fmt.Sprintf("its items continued in smaller slices; rerun those that failed with "+
			"'tranche run rerun %s --failed'", l.Run)
	case l.State == LetterReissued:
		return "its items continued in smaller slices: there is nothing to do"
	case l.State == LetterRequeued && !force:
		return "it has been requeued already, and should it die again, that is another letter; if a stream was lost since, " +
			"send it again by force (--force)"
	case l.State == LetterDropped:
		return "it was dropped, and its body is gone; request it again"
	case !l.Whole:
		return bodilessReason()
	case l.Requeued >= MaxRequeues && !force:
		return loopReason()
	}
	return ""
}

func lockNamed(ctx context.Context, tx pgx.Tx, refs []string) ([]deadRow, error) {
	ids := make([]workqueue.LetterID, 0, len(refs))
	for _, ref := range refs {
		id, err := resolveLetter(ctx, tx, ref)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return pg.Collect(ctx, tx, pgx.RowToStructByPos[deadRow], lockLetters, ids)
}

const (
	// dropWaiting is set-based for the same reason as requeueWaiting.
	dropWaiting = `
WITH waiting AS MATERIALIZED (
    SELECT id FROM dead_letter WHERE state = 'waiting' AND ($1 = '' OR endpoint = $1)
    ORDER BY id FOR NO KEY UPDATE
), dropped AS (
    UPDATE dead_letter d SET state = 'dropped', body = NULL, changed_at = tranche_now()
    FROM waiting w WHERE d.id = w.id AND d.state = 'waiting' RETURNING d.id
)
SELECT (SELECT count(*) FROM dropped), ARRAY(SELECT id FROM dropped ORDER BY id LIMIT $2)`

	dropLetters = `
UPDATE dead_letter SET state = 'dropped', body = NULL, changed_at = tranche_now()
WHERE id = ANY($1) AND state IN ('waiting', 'reissued')`
)

// Drop discards dead letters with their bodies; what else is known of them stays. It returns how many it dropped now.
// If a named letter was requeued, it drops nothing and returns a [workqueue.ConflictError].
func (s Store) Drop(ctx context.Context, sel DeadSelection, actor string) (n int, err error) {
	if err := sel.validate(); err != nil {
		return 0, fmt.Errorf("drop dead letters: %w", err)
	}
	err = s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) (err error) {
		moved := letterMove{actor: actor, op: "drop", to: LetterDropped, sel: sel}
		if len(sel.Refs) > 0 {
			err = dropNamed(ctx, tx, &moved)
			n = len(moved.ids)
		} else {
			err = tx.QueryRow(ctx, dropWaiting, sel.Endpoint, maxListed).Scan(&n, &moved.ids)
			moved.waiting(n)
		}
		if err != nil || n == 0 {
			return err
		}
		return moved.audit(ctx, tx)
	})
	return n, pg.Wrap(err, "drop dead letters")
}

func dropNamed(ctx context.Context, tx pgx.Tx, moved *letterMove) error {
	rows, err := lockNamed(ctx, tx, moved.sel.Refs)
	if err != nil {
		return err
	}
	for i := range rows {
		switch l := &rows[i]; l.State {
		case LetterRequeued:
			return workqueue.Conflict("cannot drop dead letter %s: it is %s; should it die again, drop the letter that comes "+
				"then", l.ID, l.State)
		case LetterDropped:
		default:
			moved.add(l)
		}
	}
	return pg.CheckRows(len(moved.ids))(tx.Exec(ctx, dropLetters, moved.ids))
}

// letterMove is an operator's action on dead letters: which it moved, from which states, and to which.
type letterMove struct {
	actor string
	op    string
	to    LetterState
	sel   DeadSelection
	ids   []workqueue.LetterID // of all named ones, or of the first waiting ones
	from  map[string]any
	total int
}

func (m *letterMove) add(l *deadRow) {
	m.ids = append(m.ids, l.ID)
	m.count(l.State, 1)
}

func (m *letterMove) waiting(n int) { m.count(LetterWaiting, n) }

func (m *letterMove) count(state LetterState, n int) {
	if m.from == nil {
		m.from = map[string]any{}
	}
	before, _ := m.from[string(state)].(int) // 0 if it is the first
	m.from[string(state)] = before + n
	m.total += n
}

// audit writes the audit entry in the action's transaction: how many letters were in which states before and after.
func (m *letterMove) audit(ctx context.Context, tx pgx.Tx) error {
	detail := map[string]any{
		"letters": m.total, "ids": m.ids[:min(len(m.ids), maxListed)], "force": m.sel.Force, "all": m.sel.All,
	}
	if m.sel.Endpoint != "" {
		detail["endpoint"] = m.sel.Endpoint
	}
	return ledger.AuditChange(ctx, tx, ledger.Action{
		Actor: m.actor, Name: "dead_letter_" + m.op, Subject: m.sel.Endpoint, Detail: detail, Before: m.from,
		After: map[string]any{string(m.to): m.total},
	})
}

// UnsentLetter is a requeued letter not known to be in the stream.
type UnsentLetter struct {
	ID       workqueue.LetterID
	Endpoint string
	Requeued int // including this time
	Headers  map[string][]string
	Body     []byte
	Run      *workqueue.RunID
}

const (
	// unsentBytes bounds the bodies of one read, except that the first letter is always read.
	unsentBytes = 8 << 20

	unsentLetters = `
SELECT id, endpoint, requeued, headers, body, run_id FROM (
    SELECT id, endpoint, requeued, headers, body, run_id, changed_at,
        sum(octet_length(body)) OVER (ORDER BY changed_at, id) - octet_length(body) AS before
    FROM (SELECT * FROM dead_letter WHERE state = 'requeued' AND sent_at IS NULL
              AND NOT endpoint = ANY($3)
          ORDER BY changed_at, id LIMIT $1) oldest
) sized WHERE before < $2
ORDER BY changed_at, id`

	lettersSent = `
UPDATE dead_letter SET sent_at = tranche_now()
WHERE id = ANY($1) AND state = 'requeued' AND sent_at IS NULL`
)

// UnsentLetters returns requeued letters not marked as sent, oldest first: at most limit and about 8 MiB, without the
// endpoints in except. Letters that can never be decrypted wait again.
func (s Store) UnsentLetters(ctx context.Context, limit int, except ...string) ([]UnsentLetter, error) {
	letters, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[UnsentLetter],
		unsentLetters, limit, unsentBytes, append([]string{}, except...)) // not null
	if err != nil {
		return nil, fmt.Errorf("read requeued letters: %w", err)
	}
	sendable := letters[:0]
	for _, letter := range letters {
		seal, err := s.db.SealOfMessage(ctx, letter.Run)
		if err == nil {
			letter.Body, err = seal.OpenBytes(database.LetterOf(letter.ID), letter.Body)
		}
		_, keyless := errors.AsType[*workqueue.StateError](err)
		switch {
		case err == nil:
			sendable = append(sendable, letter)
		case keyless, errors.Is(err, database.ErrRunGone), errors.Is(err, database.ErrDamaged):
			err = s.LetterUnsendable(ctx, letter.ID, err.Error())
		}
		if err != nil {
			return nil, fmt.Errorf("read requeued letter %s: %w", letter.ID, err)
		}
	}
	return sendable, nil
}

// LettersSent marks requeued letters as being in the stream.
func (s Store) LettersSent(ctx context.Context, ids []workqueue.LetterID) error {
	_, err := s.db.Pool.Exec(ctx, lettersSent, ids)
	return pg.Wrap(err, "mark %d letters as sent", len(ids))
}

const letterUnsendable = `
UPDATE dead_letter
SET state = 'waiting', requeued = requeued - 1, changed_at = tranche_now(),
    message = 'it could not be requeued: ' || $2::text
WHERE id = $1 AND state = 'requeued' AND sent_at IS NULL`

// LetterUnsendable returns an unpublishable requeued letter to waiting, with the reason. It was never sent.
func (s Store) LetterUnsendable(ctx context.Context, id workqueue.LetterID, reason string) error {
	_, err := s.db.Pool.Exec(ctx, letterUnsendable, id, pg.Plain(reason))
	return pg.Wrap(err, "put letter %s back", id)
}
