package tracker_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
)

// mutate takes one fence out of a statement. The replacements are pairs of old and new; each old text must be there.
func mutate(t *testing.T, sql string, replacements ...string) string {
	t.Helper()
	for i := 0; i < len(replacements); i += 2 {
		if !strings.Contains(sql, replacements[i]) {
			t.Fatalf("the fence %q is no longer in the statement: the mutant proves nothing", replacements[i])
		}
		sql = strings.ReplaceAll(sql, replacements[i], replacements[i+1])
	}
	return sql
}

// TestMutantsAreCaught takes the fences out, one at a time, and forces the order of events in which each is needed. The
// same race is run with the real statement first: exactly one of its calls reports completion, and with the mutant none
// or both do.
func TestMutantsAreCaught(t *testing.T) {
	t.Parallel()
	ack, seal := tracker.Statements["ack"], tracker.Statements["seal"]
	// The batch row is read as it was when the statement began.
	unlocked := mutate(t, ack, "FOR NO KEY UPDATE OF b", "")
	for name, tc := range map[string]struct {
		ack, seal string
		sealed    bool
		sizes     []int
		race      func(s statements) (first, second call)
		want      int // completions that the mutant reports
	}{
		"ack without the batch row lock, behind a seal": {
			ack: unlocked, sizes: []int{2}, want: 0,
			race: func(s statements) (call, call) { return s.sealing(), s.acking(whole(0, 2)) },
		},
		"ack without the batch row lock, behind an ack": {
			ack: unlocked, sealed: true, sizes: []int{2, 2}, want: 0,
			race: func(s statements) (call, call) { return s.acking(whole(0, 2)), s.acking(whole(1, 2)) },
		},
		"seal without the batch row lock": {
			seal: mutate(t, seal, "b.open_groups = 0", "seen.open_groups = 0",
				"WHERE b.id = $1", "FROM tracker_batch seen WHERE seen.id = $1 AND b.id = $1"),
			sizes: []int{2}, want: 0,
			race: func(s statements) (call, call) { return s.acking(whole(0, 2)), s.sealing() },
		},
		"ack without the group lock": {
			ack: mutate(t, ack, "FOR NO KEY UPDATE OF g", ""), sealed: true, sizes: []int{2}, want: 0,
			race: func(s statements) (call, call) { return s.acking(some(0, 0)), s.acking(some(0, 1)) },
		},
		"ack that reports without having emptied": {
			ack: mutate(t, ack, "AND (l.pending & l.mask) <> B'0'::bit(8192)", "",
				"g.pending = B'0'::bit(8192) AS emptied", "(l.pending & l.mask) <> B'0'::bit(8192) AS emptied",
				"WHERE emptied > 0", "", "b.state = 'sealed' AND b.open_groups = t.emptied", "b.open_groups = t.emptied"),
			sealed: true, sizes: []int{2}, want: 2,
			race: func(s statements) (call, call) { return s.acking(whole(0, 2)), s.acking(whole(0, 2)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := func(ackSQL, sealSQL string) int {
				id := b.open(tc.sizes...)
				if tc.sealed {
					b.seal(id)
				}
				first, second := tc.race(statements{id: id, ack: ackSQL, seal: sealSQL})
				got := b.race(first, second, commits)
				if got.secondErr != nil {
					t.Fatal(got.secondErr)
				}
				return got.completions()
			}
			if got := run(ack, seal); got != 1 {
				t.Errorf("the real statements reported completion %d times", got)
			}
			if got := run(or(tc.ack, ack), or(tc.seal, seal)); got != tc.want {
				t.Errorf("the mutant reported completion %d times, want %d: the fence does something else", got, tc.want)
			}
		})
	}
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// statements are an ack and a seal of one batch with the SQL given.
type statements struct {
	id        uuid.UUID
	ack, seal string
}

func (s statements) acking(acks ...tracker.Ack) call {
	return func(ctx context.Context, tx pgx.Tx) (bool, error) {
		acked, err := tracker.AckWith(ctx, tx, s.ack, s.id, acks)
		return acked.Completed, err
	}
}

func (s statements) sealing() call {
	return func(ctx context.Context, tx pgx.Tx) (completed bool, err error) {
		return completed, tx.QueryRow(ctx, s.seal, s.id).Scan(&completed)
	}
}
