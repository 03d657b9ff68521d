package service_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker/service"
)

// mutate takes a fence out of a statement. Each old text must be there.
func mutate(t *testing.T, name string, replacements ...string) string {
	t.Helper()
	sql := service.Statements[name]
	for i := 0; i < len(replacements); i += 2 {
		if !strings.Contains(sql, replacements[i]) {
			t.Fatalf("the fence %q is no longer in %s: the mutant proves nothing", replacements[i], name)
		}
		sql = strings.ReplaceAll(sql, replacements[i], replacements[i+1])
	}
	return sql
}

// TestMutantsAreCaught runs what each fence is for, with it and without.
func TestMutantsAreCaught(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, tc := range map[string]struct {
		statement string
		mutant    string
		holds     func(b *bench, sql string) bool
	}{
		"two producers without the batch row lock": {
			"lockBatch", mutate(t, "lockBatch", "FOR NO KEY UPDATE OF b", ""), (*bench).sameKeyOnce,
		},
		"an end without its fence": {
			"end", mutate(t, "end", " AND s.event_id IS NULL", ""), (*bench).endsOnce,
		},
		"an end by what is deleted": {
			"end", mutate(t, "end", " AND s.deleted_at IS NULL", ""), (*bench).endsNotWhenDeleted,
		},
		"ages without the slack of acks": {
			"reapVerdict", mutate(t, "reapVerdict", "greatest(interval '1 second', least(s.open_idle, s.sealed_idle) / 20)",
				"interval '0'"), (*bench).livesWithinTheSlack,
		},
		"ages that ignore the batch row": {
			"reapVerdict", mutate(t, "reapVerdict", "greatest(s.active_at, b.active_at)", "s.active_at"), (*bench).addsCount,
		},
		"a webhook that is owed to no one": {
			"reapVerdict", mutate(t, "reapVerdict", " AND (v.live OR NOT v.owed)", ""), (*bench).owedIsKept,
		},
	} {
		if !tc.holds(b, service.Statements[tc.statement]) {
			t.Errorf("%s: the real statement does not hold", name)
		}
		if tc.holds(b, tc.mutant) {
			t.Errorf("%s: the mutant is not caught", name)
		}
	}
}

func (b *bench) sameKeyOnce(lock string) bool {
	id, tx := b.open(), b.begin()
	one, err := service.Add(b.Context(), tx, id, 10, "k")
	if err != nil {
		b.Fatal(err)
	}
	var two service.Added
	err = b.behind(tx, func(ctx context.Context, tx pgx.Tx) (err error) {
		two, err = service.AddWith(ctx, tx, lock, id, 10, "k")
		return err
	}, tx.Commit)
	return err == nil && two.Existing && two.FirstGroup == one.FirstGroup
}

func (b *bench) endsOnce(end string) bool {
	id := b.open()
	b.seal(id)
	err := b.try(func(ctx context.Context, tx pgx.Tx) error { return service.EndWith(ctx, tx, end, id) })
	return err == nil && len(b.events(id)) == 1
}

func (b *bench) endsNotWhenDeleted(end string) bool {
	id := b.open()
	b.in(func(ctx context.Context, tx pgx.Tx) error {
		if err := service.Delete(ctx, tx, id); err != nil {
			return err
		}
		return service.EndWith(ctx, tx, end, id)
	})
	return len(b.events(id)) == 0
}

// reaps says whether a Reap that judges so ends a batch to which something was done a day and a minute ago.
func (b *bench) reaps(judge string, r service.OpenRequest, do func(id uuid.UUID)) bool {
	id := b.openAs(r, 1)
	do(id)
	b.age(id, day+time.Minute)
	b.exec(`UPDATE tracker_service SET reap_at = tranche_now() WHERE batch_id = $1`, id)
	var got service.Reaped
	b.in(func(ctx context.Context, tx pgx.Tx) (err error) {
		got, err = service.ReapWith(ctx, tx, judge, 1000)
		return err
	})
	return slices.Contains(got.Expired, id) || slices.Contains(got.Deleted, id)
}

func (b *bench) livesWithinTheSlack(judge string) bool {
	return !b.reaps(judge, service.OpenRequest{Owner: "o"}, func(uuid.UUID) {})
}

func (b *bench) addsCount(judge string) bool {
	return !b.reaps(judge, service.OpenRequest{Owner: "o", OpenIdle: 2 * day}, func(id uuid.UUID) {
		b.age(id, 5*day)
		if _, err := b.add(id, 1, ""); err != nil {
			b.Fatal(err)
		}
	})
}

func (b *bench) owedIsKept(judge string) bool {
	r := service.OpenRequest{Owner: "o", Keep: time.Hour, Webhook: service.Hook{URL: "https://h"}}
	return !b.reaps(judge, r, func(id uuid.UUID) {
		b.ack(all(id))
		b.seal(id)
	})
}
