// Package retention deletes what is past its limits of age, number or size, in small transactions that the next
// leader continues. It never deletes what is in progress.
package retention

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Store deletes old rows. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// RetentionKind is what is deleted by one set of limits.
type RetentionKind string

// The kinds of things that are kept for a time.
const (
	RetainRuns        RetentionKind = "runs"   // finished runs with everything of theirs, except the audit log
	RetainEvents      RetentionKind = "events" // published ones
	RetainAudit       RetentionKind = "audit"
	RetainQuarantine  RetentionKind = "quarantine"           // messages that could not be accepted
	RetainDeadLetters RetentionKind = "dead_letters"         // those that do not wait
	RetainSessions    RetentionKind = "sessions"             // of nodes that ended
	RetainOccurrences RetentionKind = "schedule_occurrences" // finished due times
)

// Kinds returns all kinds in display order.
func Kinds() (all []RetentionKind) {
	for _, r := range rules {
		all = append(all, r.kind)
	}
	return all
}

// MinRetentionAge is the least age limit, and MinRetentionBytes the least limit of size.
const (
	MinRetentionAge   = time.Hour
	MinRetentionBytes = 1 << 20
)

// Limits say how much of a kind is kept. What exceeds any of them is deleted, oldest first; nil is no limit.
type Limits struct {
	Age   *time.Duration
	Count *int64 // of the newest
	Bytes *int64 // of the newest, approximate
}

// None reports whether everything is kept.
func (l *Limits) None() bool { return l.Age == nil && l.Count == nil && l.Bytes == nil }

func (l *Limits) validate() error {
	switch {
	case l.Age != nil && *l.Age < MinRetentionAge:
		return workqueue.BadSetting("age is %s; the least is %s, and without an age none counts", *l.Age, MinRetentionAge)
	case l.Count != nil && *l.Count < 1:
		return workqueue.BadSetting("max_count is %d; the least is 1, and without it none counts", *l.Count)
	case l.Bytes != nil && *l.Bytes < MinRetentionBytes:
		return workqueue.BadSetting("max_bytes is %d; the least is %d (1 MiB), and without it none counts", *l.Bytes,
			MinRetentionBytes)
	}
	return nil
}

// String names the limits that are set.
func (l *Limits) String() string {
	var said []string
	if l.Age != nil {
		said = append(said, "age "+Age(*l.Age))
	}
	if l.Count != nil {
		said = append(said, fmt.Sprintf("max_count %d", *l.Count))
	}
	if l.Bytes != nil {
		said = append(said, fmt.Sprintf("max_bytes %d", *l.Bytes))
	}
	return strings.Join(said, ", ")
}

// Age formats an age: 90d, or 36h0m0s if it is not whole days.
func Age(age time.Duration) string {
	if hours := age / time.Hour; age%time.Hour == 0 && hours%24 == 0 {
		return fmt.Sprintf("%dd", hours/24)
	}
	return age.String()
}

func (l *Limits) values() map[string]any {
	v := map[string]any{"age": nil, "max_count": l.Count, "max_bytes": l.Bytes}
	if l.Age != nil {
		v["age"] = Age(*l.Age)
	}
	return v
}

// Retention is a kind with its limits and results.
type Retention struct {
	Kind RetentionKind
	Limits

	ChangedBy   string // empty: defaults
	ChangedAt   time.Time
	Deleted     int64      // ever
	LastDeleted int64      // in the last round that deleted any
	LastAt      *time.Time // time of that round
}

const retentionFields = `kind, age, max_count, max_bytes, changed_by, changed_at, deleted, last_deleted, last_at`

const (
	allRetention = `SELECT ` + retentionFields + ` FROM retention`

	lockRetention = `SELECT ` + retentionFields + ` FROM retention WHERE kind = $1 FOR NO KEY UPDATE`

	setRetention = `
UPDATE retention SET age = $2, max_count = $3, max_bytes = $4, changed_by = $5, changed_at = tranche_now()
WHERE kind = $1 RETURNING ` + retentionFields

	// In days of 24 hours, as ages are.
	leastAuditAge = `SELECT make_interval(secs => extract(epoch FROM min_age)) FROM audit_expiry`
)

// Retention returns the limits of every kind.
func (s Store) Retention(ctx context.Context) ([]Retention, error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	all, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[Retention], allRetention)
	if err != nil {
		return nil, fmt.Errorf("read what is kept: %w", err)
	}
	order := Kinds()
	all = slices.DeleteFunc(all, func(r Retention) bool { return !slices.Contains(order, r.Kind) }) // of a newer version
	slices.SortFunc(all, func(a, b Retention) int { return slices.Index(order, a.Kind) - slices.Index(order, b.Kind) })
	return all, nil
}

// UnknownKindError is returned for a kind that does not exist. It is a [workqueue.ErrNotFound].
type UnknownKindError struct{ Kind string }

func (e *UnknownKindError) Error() string {
	names := make([]string, 0, len(Kinds()))
	for _, k := range Kinds() {
		names = append(names, string(k))
	}
	return fmt.Sprintf("there is no kind %.80q of what is kept for a time; there are %s", e.Kind,
		strings.Join(names, ", "))
}

// Is makes it a [workqueue.ErrNotFound].
func (e *UnknownKindError) Is(target error) bool { return target == workqueue.ErrNotFound }

func (k RetentionKind) check() error {
	if !slices.Contains(Kinds(), k) {
		return &UnknownKindError{string(k)}
	}
	return nil
}

// SetRetention sets the limits of a kind and returns the result.
func (s Store) SetRetention(ctx context.Context, kind RetentionKind, limits Limits, actor string,
) (set Retention, err error) {
	if err := errors.Join(kind.check(), limits.validate()); err != nil {
		return set, err
	}
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if kind == RetainAudit && limits.Age != nil {
			var least time.Duration
			if err := tx.QueryRow(ctx, leastAuditAge).Scan(&least); err != nil {
				return err
			}
			if *limits.Age < least {
				return workqueue.BadSetting("age: %s is too short; the audit log is kept for at least %s (audit_expiry.min_age, "+
					"set by the owner of the database)", Age(*limits.Age), Age(least))
			}
		}
		before, err := pg.One(ctx, tx, pgx.RowToStructByPos[Retention], lockRetention, kind)
		if err != nil {
			return err
		}
		set, err = pg.One(ctx, tx, pgx.RowToStructByPos[Retention], setRetention,
			kind, limits.Age, limits.Count, limits.Bytes, pg.Plain(actor))
		if err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "retention_set", Subject: string(kind),
			Before: before.values(), After: set.values()})
	})
	return set, pg.Wrap(err, "set how long %s are kept", kind)
}

// AskRetention records that a user asked to delete now what is past its limits.
func (s Store) AskRetention(ctx context.Context, actor string) error {
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "retention_run", Subject: "retention"})
	})
	return pg.Wrap(err, "delete what is past its limits")
}

// TookTooLong reports whether PostgreSQL ran out of time, so that a smaller batch may succeed: the transaction's
// time, or a limit of the database or role. Lock waits do not count.
func TookTooLong(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code == "57014" || pg.Code == "25P04" // statement_timeout, transaction_timeout
	}
	return errors.Is(err, context.DeadlineExceeded)
}
