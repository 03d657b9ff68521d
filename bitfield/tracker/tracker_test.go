package tracker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func (b *bench) tryOpen(r tracker.OpenRequest) (tracker.Opened, error) {
	return try(b, func(ctx context.Context, tx pgx.Tx) (tracker.Opened, error) { return tracker.OpenTracker(ctx, tx, r) })
}

// An end is noted once, and not of what was deleted.
func TestAnEndIsNotedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	sealed, deleted := b.open(), b.open()
	b.seal(sealed)
	testenv.NoError(t, b.tryDelete(deleted))
	for id, want := range map[uuid.UUID]int{sealed: 1, deleted: 0} {
		_, err := try(b, func(ctx context.Context, tx pgx.Tx) (nothing, error) {
			return nothing{}, tracker.NoteEnd(ctx, tx, id)
		})
		if n := len(b.events(id)); err != nil || n != want {
			t.Errorf("%d events, %v; want %d", n, err, want)
		}
	}
}

// gone checks that no one can tell a deleted batch from one that never was.
func (b *bench) gone(id uuid.UUID) {
	b.Helper()
	for name, err := range b.touchAll(id) {
		var gone *tracker.NotFoundError
		if !errors.As(err, &gone) || gone.Batch != id || !errors.Is(err, tracker.ErrNotFound) {
			b.Errorf("%s of what is not there: %v", name, err)
		}
	}
	if list, err := tracker.List(b.Context(), b.pool, tracker.Filter{Limit: 100}); err != nil ||
		slices.ContainsFunc(list, func(s tracker.Summary) bool { return s.ID == id }) {
		b.Errorf("it is listed: %+v, %v", list, err)
	}
}

func (b *bench) touchAll(id uuid.UUID) map[string]error {
	ctx := b.Context()
	_, add := b.add(id, 1, "k")
	_, ack := b.tryAck(items(id, some(0, 0)))
	_, code := b.tryAck(failed("E", id, some(0, 0)))
	_, every := b.tryAck(all(id))
	_, groups := b.tryAck(whole(id, 0, 0))
	_, empty := b.tryAck(tracker.ItemsAck{Batch: id})
	_, get := tracker.Get(ctx, b.pool, id)
	_, seal := b.trySeal(id)
	_, states := tracker.GroupStates(ctx, b.pool, id, 0, 1)
	_, _, missing := tracker.Missing(ctx, b.pool, id, tracker.Position{}, 1)
	return map[string]error{
		"add": add, "ack": ack, "failed ack": code, "ack of all": every, "ack of groups": groups, "ack of nothing": empty,
		"get": get, "groups": states, "missing": missing,
		"seal": seal, "delete": b.tryDelete(id),
	}
}

// TestBatchesOfRunsAreOutOfReach tries everything with the batch of a run, which stays as it was.
func TestBatchesOfRunsAreOutOfReach(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.run(10)
	b.inTurn(sealing(run))
	b.gone(run)
	_, err := b.tryOpen(tracker.OpenRequest{ID: run, Owner: "thief"})
	testenv.Is(t, err, tracker.ErrExists, "opening it")
	if row := b.row(run); row.Items != 10 || row.OpenGroups != 1 || row.State != tracker.StateSealed {
		t.Errorf("it is left as %+v", row)
	}
	b.gone(uuid.New())
}

func TestOpenAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	asked := tracker.OpenRequest{
		Owner: "o", Key: "k", OpenIdle: time.Hour, Webhook: tracker.Hook{URL: "https://h", Secret: "s"},
	}
	open := func(change func(r *tracker.OpenRequest)) (tracker.Opened, error) {
		r := asked
		change(&r)
		return b.tryOpen(r)
	}
	id := b.openAs(asked)
	for name, change := range map[string]func(r *tracker.OpenRequest){
		"the same":              func(*tracker.OpenRequest) {},
		"the same with its id":  func(r *tracker.OpenRequest) { r.ID = id },
		"with the default said": func(r *tracker.OpenRequest) { r.Keep = tracker.DefaultKeep },
	} {
		testenv.Same(t, testenv.Must(open(change))(t), (tracker.Opened{ID: id, Existing: true}), "%s", name)
	}
	for field, change := range map[string]func(r *tracker.OpenRequest){
		"id":             func(r *tracker.OpenRequest) { r.ID = uuid.New() },
		"open_idle":      func(r *tracker.OpenRequest) { r.OpenIdle = time.Minute },
		"keep":           func(r *tracker.OpenRequest) { r.Keep = time.Minute },
		"webhook.url":    func(r *tracker.OpenRequest) { r.Webhook.URL = "https://other" },
		"webhook.secret": func(r *tracker.OpenRequest) { r.Webhook.Secret = "" },
		"key":            func(r *tracker.OpenRequest) { r.ID, r.Key = id, "" },
	} {
		_, err := open(change)
		var conflict *tracker.ConflictError
		if !errors.As(err, &conflict) || conflict.Field != field || conflict.Batch != id {
			t.Errorf("another %s: %v", field, err)
		}
	}
	if other, err := open(func(r *tracker.OpenRequest) { r.Owner = "p" }); err != nil || other.ID == id || other.Existing {
		t.Errorf("another owner's key: %+v, %v", other, err)
	}
	testenv.Same(t, b.count(`SELECT count(*) FROM tracker_batch`), 2, "batches")
}

func TestList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var want []uuid.UUID
	for i := range 6 {
		id := b.openAs(tracker.OpenRequest{Owner: []string{"even", "odd"}[i%2]})
		if i >= 4 {
			b.seal(id)
		}
		want = append([]uuid.UUID{id}, want...)
	}
	ids := func(f tracker.Filter) (ids []uuid.UUID) {
		list := testenv.Must(tracker.List(t.Context(), b.pool, f))(t)
		for i := range list {
			ids = append(ids, list[i].ID)
		}
		return ids
	}
	for name, tc := range map[string]struct {
		f    tracker.Filter
		want []uuid.UUID
	}{
		"all":       {tracker.Filter{Limit: 10}, want},
		"page":      {tracker.Filter{Limit: 2, After: want[1]}, want[2:4]},
		"owner":     {tracker.Filter{Limit: 10, Owner: "odd"}, []uuid.UUID{want[0], want[2], want[4]}},
		"page of":   {tracker.Filter{Limit: 1, Owner: "odd", After: want[0]}, want[2:3]},
		"state":     {tracker.Filter{Limit: 10, State: tracker.StateCompleted}, want[:2]},
		"both":      {tracker.Filter{Limit: 10, State: tracker.StateOpen, Owner: "even"}, []uuid.UUID{want[3], want[5]}},
		"of no one": {tracker.Filter{Limit: 10, Owner: "x"}, nil},
	} {
		testenv.SameList(t, ids(tc.f), tc.want, "%s", name)
	}
	_, err := tracker.List(t.Context(), b.pool, tracker.Filter{State: "odd"})
	testenv.Fails(t, err, "a state that there is not was listed")
}

// TestBitsMeanTheSameInSQL shows on a real server that member i in Go is bit i of get_bit, set_bit and bit_count.
func TestBitsMeanTheSameInSQL(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, i := range []int{0, 1, 7, 8, 63, 64, 65, 127, 128, 4095, 4096, 8127, 8128, 8190, 8191} {
		set := bitfield.Of(i)
		var bit, count int
		var made, ranged bitfield.Set
		testenv.NoError(t, b.pool.QueryRow(t.Context(),
			`SELECT get_bit($1::bit(8192), $2), bit_count($1::bit(8192)), set_bit(B'0'::bit(8192), $2, 1),
			        ~(~B'0'::bit(8192) >> $2)`,
			pgbits.Of(set), i).Scan(&bit, &count, pgbits.Into(&made), pgbits.Into(&ranged)))
		if bit != 1 || count != 1 || made != set || ranged != bitfield.Full(i) {
			t.Errorf("bit %d: get_bit %d, bit_count %d", i, bit, count)
		}
	}
}

// TestGroupsAreFoundByKey reads the plans that connections keep, made while there was nothing and while there was much:
// each mask finds its group by the key. Else a commit about a hundred runs compares each group with each mask, and
// reads all groups of a large run.
func TestGroupsAreFoundByKey(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t)
	keyless := strings.Replace(tracker.Statements["ack"], "AND g.grp = w.grp", "AND g.grp + 0 = w.grp", 1)
	if plan := keptPlan(t, pool, keyless); !goesThroughGroups(plan) { // no index has the sum
		t.Errorf("nothing is found in a plan that is bad:\n%s", strings.Join(plan, "\n"))
	}
	for _, first := range []string{`SELECT`, `
		INSERT INTO tracker_batch (id, owner, state) SELECT gen_random_uuid(), 'test', 'open' FROM generate_series(1, 200)`, `
		INSERT INTO tracker_group (batch_id, grp, size, pending)
		SELECT id, g, 9, B'0'::bit(8192) FROM tracker_batch, generate_series(0, 9) g`, `ANALYZE`} {
		testenv.Must(pool.Exec(t.Context(), first))(t)
		for name, statement := range tracker.Statements {
			if plan := keptPlan(t, pool, statement); goesThroughGroups(plan) {
				t.Errorf("after %s, %s goes through groups:\n%s", first, name, strings.Join(plan, "\n"))
			}
		}
	}
}

// goesThroughGroups says whether a plan reads groups that no one named.
func goesThroughGroups(plan []string) bool {
	for i, line := range plan {
		if strings.Contains(line, " Scan") && strings.Contains(line, " on tracker_group ") &&
			!strings.Contains(plan[i+1], "(grp = ") {
			return true
		}
	}
	return false
}

// keptPlan is the plan of a statement about groups that is prepared now and finds rows by keys.
func keptPlan(t *testing.T, pool *pgxpool.Pool, statement string) []string {
	t.Helper()
	plan := testenv.Plan(t, pool, statement, `'{}', '{}', '{}', '{}'`, tracker.ByKey,
		`SET LOCAL plan_cache_mode = force_generic_plan`)
	return append(plan, "")
}
