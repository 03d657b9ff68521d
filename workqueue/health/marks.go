package health

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// MarkState is what somebody said of a condition.
type MarkState string

// The states of a mark.
const (
	Aside MarkState = "aside" // it is not told of, until it gets worse or the time is up
	Taken MarkState = "taken" // somebody sees to it
)

// Mark is what somebody said of a condition; without a subject, of all of its kind that had begun by then.
type Mark struct {
	ConditionKey

	State    MarkState
	By       string
	At       time.Time
	Until    *time.Time // nil: for good
	Reason   string
	Severity string // when it was said; the worst, of all of a kind
	Count    int64  // the same; the sum
}

// NewMark is what is to be said of a condition. By, At and Until of its mark come from Actor, the clock and For.
type NewMark struct {
	Mark

	Actor string
	For   time.Duration // zero: for good
}

const (
	healthMarks = `
SELECT kind, subject, state, by, at, until, reason, severity, count FROM health_mark
WHERE until IS NULL OR until > clock_timestamp()`

	// What is said of all of a kind takes the place of what was said of one of them. Rows whose time is up go, too.
	dropMarks = `
DELETE FROM health_mark WHERE kind = $1 AND ($2 IN (subject, '')) OR until <= clock_timestamp()
RETURNING kind = $1 AND $2 IN (subject, ''), subject, state, by, until, reason`

	// Somebody else may have said something since the row was deleted: the later word holds.
	putMark = `
INSERT INTO health_mark AS m (kind, subject, state, by, until, reason, severity, count)
VALUES ($1, $2, $3, $4, clock_timestamp() + nullif($5::interval, '0'), $6, $7, $8)
ON CONFLICT (kind, subject) DO UPDATE SET state = excluded.state, by = excluded.by, at = excluded.at,
    until = excluded.until, reason = excluded.reason, severity = excluded.severity, count = excluded.count
RETURNING at, until`
)

// PutMark notes what somebody says of a condition, and returns it as it stands.
func (s Store) PutMark(ctx context.Context, m NewMark) (Mark, error) {
	m.By, m.Reason = pg.Plain(m.Actor), pg.Plain(m.Reason)
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		was, err := dropped(ctx, tx, m.ConditionKey)
		if err != nil {
			return err
		}
		err = tx.QueryRow(ctx, putMark, m.Kind, m.Subject, m.State, m.By, m.For, m.Reason, m.Severity, m.Count).
			Scan(&m.At, &m.Until)
		if err != nil {
			return err
		}
		verb := map[MarkState]string{Aside: "health_aside", Taken: "health_take"}[m.State]
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: m.Actor, Name: verb, Subject: m.audited(), Before: was,
			After: map[string]any{"state": m.State, "until": m.Until, "reason": m.Reason, "severity": m.Severity,
				"count": m.Count}})
	})
	if err != nil {
		return Mark{}, fmt.Errorf("mark condition %s: %w", m.audited(), err)
	}
	return m.Mark, nil
}

// DropMarks takes back what was said of a condition; without a subject, of all of its kind. It reports whether there
// was anything.
func (s Store) DropMarks(ctx context.Context, key ConditionKey, actor string) (found bool, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		was, err := dropped(ctx, tx, key)
		if found = was != nil; !found || err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "health_back", Subject: key.audited(),
			Before: was})
	})
	if err != nil {
		return false, fmt.Errorf("take back what was said of condition %s: %w", key.audited(), err)
	}
	return found, nil
}

// dropped deletes marks, and returns what they said, by their subjects; nil: there were none.
func dropped(ctx context.Context, tx pgx.Tx, key ConditionKey) (was map[string]any, err error) {
	rows, err := tx.Query(ctx, dropMarks, key.Kind, key.Subject)
	if err != nil {
		return nil, err
	}
	var ours bool
	var m Mark
	_, err = pgx.ForEachRow(rows, []any{&ours, &m.Subject, &m.State, &m.By, &m.Until, &m.Reason}, func() error {
		if ours && was == nil {
			was = map[string]any{}
		}
		if ours {
			was[cmp.Or(m.Subject, "all")] = map[string]any{"state": m.State, "by": m.By, "until": m.Until, "reason": m.Reason}
		}
		return nil
	})
	return was, err
}

// audited is the subject of an action about a condition.
func (k ConditionKey) audited() string {
	if k.Subject == "" {
		return k.Kind
	}
	return k.Kind + " " + k.Subject
}
