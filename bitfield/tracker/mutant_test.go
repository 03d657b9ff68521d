package tracker_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// mutate takes a fence out of a statement. The replacements are pairs of old and new; each old text must be there.
func mutate(t *testing.T, name string, replacements ...string) string {
	t.Helper()
	sql := tracker.Statements[name]
	for i := 0; i < len(replacements); i += 2 {
		if !strings.Contains(sql, replacements[i]) {
			t.Fatalf("the fence %q is no longer in %s: the mutant proves nothing", replacements[i], name)
		}
		sql = strings.ReplaceAll(sql, replacements[i], replacements[i+1])
	}
	return sql
}

// sqlMutant is a statement that lacks a fence, and what that is for.
type sqlMutant struct {
	statement string
	lacking   []string // the fence, and what stands there instead
	holds     func(b *bench, sql string) bool
}

func batchMutants() map[string]sqlMutant {
	noBatchLock, noGroupLock := []string{"FOR NO KEY UPDATE OF b", ""}, []string{"FOR NO KEY UPDATE OF g", ""}
	return map[string]sqlMutant{
		"ack without the batch row lock, behind a seal": {"ack", noBatchLock, func(b *bench, sql string) bool {
			id := b.run(2)
			return b.completes(sealing(id), ackingBy(sql, id, first(0, 2)))
		}},
		"ack without the batch row lock, behind an ack": {"ack", noBatchLock, func(b *bench, sql string) bool {
			id := b.sealedRun(2, 2)
			return b.completes(ackingBy(sql, id, first(0, 2)), ackingBy(sql, id, first(1, 2)))
		}},
		"seal without the batch row lock": {"seal", []string{"b.open_groups = 0", "seen.open_groups = 0",
			"WHERE b.id = $1", "FROM tracker_batch seen WHERE seen.id = $1 AND b.id = $1"},
			func(b *bench, sql string) bool {
				id := b.run(2)
				return b.completes(acking(id, first(0, 2)), func(ctx context.Context, tx pgx.Tx) (done bool, err error) {
					err = tx.QueryRow(ctx, sql, id).Scan(&done)
					return done, err
				})
			}},
		"ack without the group lock": {"ack", noGroupLock, func(b *bench, sql string) bool {
			id := b.sealedRun(2)
			return b.completes(ackingBy(sql, id, some(0, 0)), ackingBy(sql, id, some(0, 1)))
		}},
		"ack that reports without having emptied": {"ack", []string{"AND (l.pending & l.mask) <> B'0'::bit(8192)", "",
			"g.pending = B'0'::bit(8192) AS emptied", "(l.pending & l.mask) <> B'0'::bit(8192) AS emptied",
			"WHERE emptied > 0", "", "b.state = 'sealed' AND b.open_groups = t.emptied", "b.open_groups = t.emptied"},
			func(b *bench, sql string) bool {
				id := b.sealedRun(2)
				return b.completes(ackingBy(sql, id, first(0, 2)), ackingBy(sql, id, first(0, 2)))
			}},
		"ack of whole groups without their locks, behind itself": {"ackWhole", noGroupLock,
			func(b *bench, sql string) bool { return b.countsOnce(sql, wholly) }},
		"ack of whole groups without their locks, behind a mask": {"ackWhole", noGroupLock,
			func(b *bench, sql string) bool {
				return b.countsOnce(sql, func(_ string, id uuid.UUID, newly *int) call {
					return func(ctx context.Context, tx pgx.Tx) (bool, error) {
						acked, err := tracker.AckMasks(ctx, tx, id, []tracker.Ack{some(1, 2, 3)})
						*newly += acked.Newly
						return acked.Completed, err
					}
				})
			}},
	}
}

func trackerMutants() map[string]sqlMutant {
	return map[string]sqlMutant{
		"two producers without the batch row lock": {"lockTracker", []string{"FOR NO KEY UPDATE OF b", ""},
			(*bench).sameKeyOnce},
		"an end without its fence": {"end", []string{" AND s.event_id IS NULL", ""}, func(b *bench, sql string) bool {
			id := b.open()
			b.seal(id)
			return b.ends(sql, id) == 1
		}},
		"an end by what is deleted": {"end", []string{" AND s.deleted_at IS NULL", ""}, func(b *bench, sql string) bool {
			id := b.open()
			return b.tryDelete(id) == nil && b.ends(sql, id) == 0
		}},
		"ages without the slack of acks": {"reapVerdict", []string{
			"greatest(interval '1 second', least(s.open_idle, s.sealed_idle) / 20)", "interval '0'"},
			func(b *bench, sql string) bool {
				return !b.reaps(sql, tracker.OpenRequest{Owner: "o"}, func(uuid.UUID) {})
			}},
		"ages that ignore the batch row": {"reapVerdict", []string{"greatest(s.active_at, b.active_at)", "s.active_at"},
			func(b *bench, sql string) bool {
				return !b.reaps(sql, tracker.OpenRequest{Owner: "o", OpenIdle: 2 * day}, func(id uuid.UUID) {
					b.age(id, 5*day)
					_, _ = b.add(id, 1, "")
				})
			}},
		"a webhook that is owed to no one": {"reapVerdict", []string{" AND (v.live OR NOT v.owed)", ""},
			func(b *bench, sql string) bool {
				owed := tracker.OpenRequest{Owner: "o", Keep: time.Hour, Webhook: tracker.Hook{URL: "https://h"}}
				return !b.reaps(sql, owed, func(id uuid.UUID) {
					b.ack(all(id))
					b.seal(id)
				})
			}},
	}
}

// TestMutantsAreCaught takes the fences out, one at a time, and does what each is for, with it and without.
func TestMutantsAreCaught(t *testing.T) {
	t.Parallel()
	for _, mutants := range []map[string]sqlMutant{batchMutants(), trackerMutants()} {
		for name, m := range mutants {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				if !m.holds(b, tracker.Statements[m.statement]) {
					t.Error("the real statement does not hold")
				}
				if m.holds(b, mutate(t, m.statement, m.lacking...)) {
					t.Error("the mutant is not caught")
				}
			})
		}
	}
}

func (b *bench) sealedRun(sizes ...int) uuid.UUID {
	b.Helper()
	id := b.run(sizes...)
	b.inTurn(sealing(id))
	return id
}

func ackingBy(sql string, id uuid.UUID, acks ...tracker.Ack) call {
	return func(ctx context.Context, tx pgx.Tx) (bool, error) {
		acked, err := tracker.AckWith(ctx, tx, sql, id, acks)
		return acked.Completed, err
	}
}

// completes says whether exactly one of two calls that meet reports completion.
func (b *bench) completes(first, second call) bool {
	b.Helper()
	got := testenv.Must(b.race(first, second, false))(b)
	return got.first != got.second
}

func wholly(sql string, id uuid.UUID, newly *int) call {
	return func(ctx context.Context, tx pgx.Tx) (bool, error) {
		acked, err := tracker.AckWholeWith(ctx, tx, sql, id, tracker.Span{First: 0, Last: 2})
		*newly += acked.Newly
		return acked.Completed, err
	}
}

// countsOnce says whether an ack of whole groups behind another call counts each item once.
func (b *bench) countsOnce(sql string, before func(sql string, id uuid.UUID, newly *int) call) bool {
	b.Helper()
	id, newly := b.sealedRun(10, 20, 30), 0
	got, err := b.race(before(sql, id, &newly), wholly(sql, id, &newly), false)
	return err == nil && got.first != got.second && newly == 60 && b.row(id).State == tracker.StateCompleted
}

func (b *bench) sameKeyOnce(lock string) bool {
	id, tx := b.open(), b.begin()
	one, err := tracker.AddItems(b.Context(), tx, id, 10, "k")
	testenv.NoError(b, err)
	var two tracker.Added
	err = b.behind(tx, func(ctx context.Context, tx pgx.Tx) (err error) {
		two, err = tracker.AddWith(ctx, tx, lock, id, 10, "k")
		return err
	}, tx.Commit)
	return err == nil && two.Existing && two.FirstGroup == one.FirstGroup
}

// ends notes an end and returns how many events there are; -1 after an error.
func (b *bench) ends(end string, id uuid.UUID) int {
	_, err := try(b, func(ctx context.Context, tx pgx.Tx) (nothing, error) {
		return nothing{}, tracker.EndWith(ctx, tx, end, id)
	})
	if err != nil {
		return -1
	}
	return len(b.events(id))
}

// reaps says whether a Reap that judges so ends a tracker to which something was done a day and a minute ago.
func (b *bench) reaps(judge string, r tracker.OpenRequest, do func(id uuid.UUID)) bool {
	id := b.openAs(r, 1)
	do(id)
	b.age(id, day+time.Minute)
	b.exec(`UPDATE tracker_service SET reap_at = tranche_now() WHERE batch_id = $1`, id)
	got := in(b, func(ctx context.Context, tx pgx.Tx) (tracker.Reaped, error) {
		return tracker.ReapWith(ctx, tx, judge, 1000)
	})
	return slices.Contains(got.Expired, id) || slices.Contains(got.Deleted, id)
}
