package orchestrator

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/retention"
)

// errTooLong is the error of a statement that a limit of time ended.
var errTooLong = &pgconn.PgError{Code: "57014"}

// shelf is a store with finished runs and old messages, each of which PostgreSQL may find too much.
type shelf struct {
	limits       retention.Limits
	rows         map[workqueue.RunID]int64 // of runs past their limits
	going        map[workqueue.RunID]int64 // those that are being deleted
	quarantine   int64
	most         int64 // rows of a piece
	kept, stuck  workqueue.RunID
	huge         workqueue.RunID
	sized        map[workqueue.RunID]bool
	unmeasurable bool
	guessed      []workqueue.RunID
	batches      []int           // runs measured together
	target       string          // of the archive; empty: there never was one
	noted        string          // why something is not in it
	sealed       int64           // up to where the audit log is in it
	archived     []string        // what came in, and was deleted, in this order
	flawed       workqueue.RunID // cannot be archived
	mu           sync.Mutex      // of the next
	down         int             // the archive takes nothing from its nth object on
}

func (s *shelf) Retention(context.Context) ([]retention.Retention, error) {
	age := time.Hour
	return []retention.Retention{{Kind: retention.RetainRuns, Limits: s.limits}, {Kind: retention.RetainEvents},
		{Kind: retention.RetainAudit, Limits: s.limits},
		{Kind: retention.RetainQuarantine, Limits: retention.Limits{Age: &age}}}, nil
}

func (s *shelf) RetentionCutoff(context.Context, *retention.Retention) (*time.Time, error) {
	now := time.Now()
	return &now, nil
}

// least are the first runs of a set, in the order of their ids.
func least[T any](of map[workqueue.RunID]T, limit int, without []workqueue.RunID) (some []workqueue.RunID) {
	all := slices.SortedFunc(maps.Keys(of), func(a, b workqueue.RunID) int { return cmp.Compare(a.String(), b.String()) })
	for _, run := range all {
		if len(some) < limit && !slices.Contains(without, run) {
			some = append(some, run)
		}
	}
	return some
}

func (s *shelf) RunsPastLimits(_ context.Context, _ time.Time, limit int, without []workqueue.RunID,
) ([]workqueue.RunID, error) {
	return least(s.rows, limit, without), nil
}

func (s *shelf) DeleteRun(_ context.Context, _ workqueue.Lease, run workqueue.RunID, _ time.Time, _, archived string,
) (bool, error) {
	switch {
	case run == s.kept:
		return false, errors.New("a test keeps it")
	case s.target != "" && archived != "state of "+run.String():
		return false, nil
	}
	s.archived = append(s.archived, "delete")
	s.going[run] = s.rows[run]
	delete(s.rows, run)
	return true, nil
}

func (s *shelf) GoingRuns(_ context.Context, limit int, without ...workqueue.RunID) (going []inspect.GoneRun, _ error) {
	for _, run := range least(s.going, limit, without) {
		going = append(going, inspect.GoneRun{Run: run})
	}
	return going, nil
}

func (s *shelf) Empty(context.Context, workqueue.Lease, workqueue.RunID) (retention.Emptying, error) {
	return retention.Emptying{Busy: true}, nil
}

func (s *shelf) DeletePiece(_ context.Context, _ workqueue.Lease, run workqueue.RunID, span int64,
) (int64, bool, error) {
	switch left := s.going[run]; {
	case run == s.stuck:
		return 0, false, errors.New("a test has stuck it")
	case span > s.most:
		return 0, false, errTooLong
	case left <= span:
		delete(s.going, run)
		return left, true, nil
	}
	s.going[run] -= span
	return span, false, nil
}

func (s *shelf) DeleteOld(_ context.Context, _ workqueue.Lease, kind retention.RetentionKind, _ time.Time, limit int,
) (int64, error) {
	if kind == retention.RetainAudit {
		s.archived = append(s.archived, "expire")
		return 0, nil
	}
	if int64(limit) > s.most {
		return 0, errTooLong
	}
	n := min(s.quarantine, int64(limit))
	s.quarantine -= n
	return n, nil
}

func (s *shelf) NoteDeleted(context.Context, workqueue.Lease, retention.RetentionKind, int64) error {
	return nil
}
func (s *shelf) DropSizes(context.Context, workqueue.Lease) error  { return nil }
func (s *shelf) ForgetGone(context.Context, workqueue.Lease) error { return nil }

func (s *shelf) MeasureRuns(_ context.Context, _ workqueue.Lease, limit int) ([]workqueue.RunID, error) {
	var done []workqueue.RunID
	for run := range s.sized {
		done = append(done, run)
	}
	batch := least(s.rows, limit, done)
	switch {
	case s.unmeasurable:
		return batch, errors.New("a test lets none be measured")
	case len(batch) > 2 || slices.Contains(batch, s.huge):
		return batch, errTooLong
	}
	s.batches = append(s.batches, len(batch))
	for _, run := range batch {
		s.sized[run] = true
	}
	return batch, nil
}

func (s *shelf) GuessRun(_ context.Context, _ workqueue.Lease, run workqueue.RunID) (int64, error) {
	s.sized[run], s.guessed = true, append(s.guessed, run)
	return 1, nil
}

func (s *shelf) NoteArchive(_ context.Context, _ workqueue.Lease, target string, reason *string) (bool, error) {
	s.target = cmp.Or(target, s.target)
	if reason != nil {
		s.noted = *reason
	}
	return s.target != "", nil
}

func (s *shelf) AuditToArchive(context.Context, time.Time) (after, last int64, _ error) {
	return s.sealed, 9, nil
}

func (s *shelf) AuditArchived(_ context.Context, _ workqueue.Lease, seal int64) error {
	s.sealed = seal
	return nil
}

// chest is the archive of a shelf.
type chest struct{ *shelf }

func (chest) Target() string { return "chest" }

func (c chest) put(what string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down--; c.down < 0 {
		return errors.New("the chest is shut")
	}
	c.archived = append(c.archived, what)
	return nil
}

func (c chest) Check(context.Context) error { return c.put("check") }

func (c chest) Run(_ context.Context, run workqueue.RunID) (string, error) {
	if run == c.flawed {
		return "", errors.New("a test has flawed it")
	}
	return "state of " + run.String(), c.put("run")
}

func (c chest) Audit(context.Context, int64, int64) error { return c.put("audit") }

// What is not in the archive is not deleted, whether that takes nothing from the beginning, in the middle or at the
// end, or the leader has none. Other kinds wait for nothing, and the first reason is noted, until all is well.
func TestRetentionWaitsForTheArchive(t *testing.T) {
	one, flawed := int64(1), workqueue.NewRunID()
	for name, c := range map[string]struct {
		target string // of an earlier leader
		none   bool   // this one has no archive
		down   int
		flawed workqueue.RunID
		want   string
		noted  string
		runs   int // left
	}{
		"all is well": {down: 99, want: "check run run run run delete delete delete delete run delete audit expire"},
		"it was not well": {target: "old", down: 99,
			want: "check run run run run delete delete delete delete run delete audit expire"},
		"no archive ever":      {none: true, want: "delete delete delete delete delete expire"},
		"only the last leader": {none: true, target: "old", runs: 5, noted: "without --archive"},
		"down":                 {noted: "shut", runs: 5},
		"down after a run":     {down: 2, want: "check run delete", noted: "shut", runs: 4},
		"down after the runs": {down: 6, want: "check run run run run delete delete delete delete run delete",
			noted: "shut"},
		"a run that cannot be stored": {down: 99, flawed: flawed, noted: "flawed it", runs: 1,
			want: "check run run run check delete delete delete run run delete delete audit expire"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &shelf{limits: retention.Limits{Count: &one}, rows: map[workqueue.RunID]int64{}, flawed: c.flawed, down: c.down,
				target: c.target, noted: c.target}
			if c.flawed != (workqueue.RunID{}) {
				s.rows[c.flawed] = 9
			}
			var archive Archive
			if !c.none {
				archive = chest{s}
			}
			retainedIn(t, s, archive, func(failed error) {
				testenv.Same(t, strings.Join(s.archived, " "), c.want, "what came to pass")
				if len(s.rows) != c.runs || s.quarantine != 0 {
					t.Errorf("%d runs are left, and %d messages", len(s.rows), s.quarantine)
				}
				if (c.noted == "") != (s.noted == "" && failed == nil) || !strings.Contains(s.noted, c.noted) {
					t.Errorf("it is noted: %q, and the round says %v", s.noted, failed)
				}
			})
		})
	}
}

// retained is one round of the leader task, in a bubble.
func retained(t *testing.T, s *shelf, check func(failed error)) {
	t.Helper()
	retainedIn(t, s, nil, check)
}

func retainedIn(t *testing.T, s *shelf, archive Archive, check func(failed error)) {
	t.Helper()
	t.Parallel()
	for range 5 {
		s.rows[workqueue.NewRunID()] = 40
	}
	s.going, s.sized = map[workqueue.RunID]int64{}, map[workqueue.RunID]bool{}
	s.most, s.quarantine = cmp.Or(s.most, mostSpan), 20
	synctest.Test(t, func(t *testing.T) {
		r := &retentionRound{log: zaptest.NewLogger(t), store: s, archive: archive, span: firstSpan}
		check(r.round(t.Context()))
	})
}

// Rows of any size are deleted: what is not done in time is tried with less, down to a single row.
func TestADeletionThatTakesTooLongGoesOnInSmallerPieces(t *testing.T) {
	one := int64(1)
	s := &shelf{most: 1, limits: retention.Limits{Count: &one}, rows: map[workqueue.RunID]int64{}}
	retained(t, s, func(failed error) {
		if failed != nil || len(s.rows)+len(s.going) != 0 || s.quarantine != 0 {
			t.Errorf("%d and %d runs are left, and %d messages: %v", len(s.rows), len(s.going), s.quarantine, failed)
		}
	})
}

// One run cannot be deleted at all, and what is left of another one cannot either; all others are, and it is told.
func TestARunThatCannotBeDeletedKeepsNothingElse(t *testing.T) {
	one := int64(1)
	s := &shelf{limits: retention.Limits{Count: &one}, kept: workqueue.NewRunID(), stuck: workqueue.NewRunID()}
	s.rows = map[workqueue.RunID]int64{s.kept: 9, s.stuck: 9}
	retained(t, s, func(failed error) {
		if len(s.rows) != 1 || s.rows[s.kept] == 0 || len(s.going) != 1 || s.going[s.stuck] == 0 || s.quarantine != 0 {
			t.Errorf("the runs %v and %v are left, and %d messages", s.rows, s.going, s.quarantine)
		}
		if failed == nil || !strings.Contains(failed.Error(), "keeps it") || !strings.Contains(failed.Error(), "stuck it") {
			t.Errorf("the round says %v", failed)
		}
	})
}

// Runs that take too long to measure are measured fewer at a time, or guessed.
func TestRunsThatTakeLongToMeasureAreMeasuredFewerAtATime(t *testing.T) {
	large := int64(1 << 30)
	s := &shelf{limits: retention.Limits{Bytes: &large}, huge: workqueue.NewRunID()}
	s.rows = map[workqueue.RunID]int64{s.huge: 9}
	retained(t, s, func(failed error) {
		if failed != nil || len(s.sized) != 6 || !slices.Equal(s.guessed, []workqueue.RunID{s.huge}) ||
			!slices.Contains(s.batches, 2) {
			t.Errorf("%d of 6 are measured, in batches of %v, and %v guessed: %v", len(s.sized), s.batches, s.guessed, failed)
		}
	})
}

// That runs cannot be measured keeps none from being deleted.
func TestRunsThatCannotBeMeasuredAreDeleted(t *testing.T) {
	large := int64(1 << 30)
	s := &shelf{limits: retention.Limits{Bytes: &large}, unmeasurable: true, rows: map[workqueue.RunID]int64{}}
	retained(t, s, func(failed error) {
		if failed == nil || len(s.rows)+len(s.going) != 0 {
			t.Errorf("%d runs are left: %v", len(s.rows), failed)
		}
	})
}

// Pieces take neither too long nor become so small that a deletion takes indefinitely.
func TestTheNextPieceIsAsLargeAsTheLastOneAllows(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		span int64
		took time.Duration
		want int64
	}{
		{1, 60 * time.Millisecond, 2}, // after timeouts
		{64, 99 * time.Millisecond, 128},
		{64, 100 * time.Millisecond, 64},
		{64, time.Second, 64},
		{1, 20 * time.Millisecond, 2},
		{leastSpan, 60 * time.Millisecond, leastSpan},
		{leastSpan, time.Second, leastSpan},
		{firstSpan, 60 * time.Millisecond, firstSpan},
		{firstSpan, 20 * time.Millisecond, 2 * firstSpan},
		{firstSpan, time.Second, firstSpan / 2},
		{mostSpan, time.Millisecond, mostSpan},
	} {
		testenv.Same(t, nextSpan(tc.span, tc.took), tc.want, "after %d in %s come", tc.span, tc.took)
	}
}
