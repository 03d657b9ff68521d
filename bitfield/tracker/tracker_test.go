package tracker_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/bitfield/tracker"
)

func TestOneBatchFromOpenToCompleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(8192, 100)
	var first int
	b.in(func(tx pgx.Tx) (err error) {
		first, err = tracker.AddGroups(t.Context(), tx, id, []int{1, 2, 3})
		return err
	})
	if first != 2 {
		t.Errorf("the first of the new groups is %d, want 2", first)
	}
	if b.seal(id) {
		t.Error("a batch with pending items was completed by its seal")
	}
	if got := b.ack(id, some(0, 0, 8191), some(1, 5)); got != (tracker.Acked{Newly: 3}) {
		t.Errorf("first ack: %+v", got)
	}
	if got := b.ack(id, whole(3, 2), whole(0, 8192), whole(1, 100)); got != (tracker.Acked{Newly: 8291}) {
		t.Errorf("second ack: %+v", got)
	}
	missing, err := tracker.Missing(t.Context(), b.pool, id)
	want := []tracker.Range{{Group: 2, Lo: 0, Hi: 1}, {Group: 4, Lo: 0, Hi: 3}}
	if err != nil || !slices.Equal(missing, want) {
		t.Errorf("missing: %v, %v", missing, err)
	}
	if got := b.get(id); got.State != tracker.StateSealed || got.Groups != 5 || got.OpenGroups != 2 || got.Items != 8298 {
		t.Errorf("before the last ack: %+v", got)
	}
	if got := b.ack(id, whole(2, 1), whole(4, 3)); got != (tracker.Acked{Newly: 4, Completed: true, Generation: 1}) {
		t.Errorf("last ack: %+v", got)
	}
	got := b.get(id)
	if got.State != tracker.StateCompleted || got.OpenGroups != 0 || got.SealedAt == nil || got.CompletedAt == nil ||
		got.Owner != "test" || got.ID != id || got.Generation != 1 || got.ActiveAt.Before(got.CreatedAt) {
		t.Errorf("at the end: %+v", got)
	}
	if missing, err := tracker.Missing(t.Context(), b.pool, id); err != nil || len(missing) != 0 {
		t.Errorf("missing at the end: %v, %v", missing, err)
	}
}

func TestSealCompletesWhatHasNothingPending(t *testing.T) {
	t.Parallel()
	b := setup(t)
	empty, acked := b.open(), b.open(3)
	if got := b.ack(acked, whole(0, 3)); got != (tracker.Acked{Newly: 3}) {
		t.Errorf("ack before the seal: %+v", got)
	}
	for name, id := range map[string]uuid.UUID{"empty": empty, "acked": acked} {
		if !b.seal(id) {
			t.Errorf("%s: the seal did not complete it", name)
		}
		if b.seal(id) {
			t.Errorf("%s: a second seal completed it again", name)
		}
		if got := b.get(id); got.State != tracker.StateCompleted || got.CompletedAt == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestDuplicateAcksDoNoHarm(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(4, 4)
	b.seal(id)
	if got := b.ack(id, some(0, 1), some(0, 1, 2), some(0)); got.Newly != 2 {
		t.Errorf("acks of one group in one call: %+v", got)
	}
	for range 3 {
		if got := b.ack(id, some(0, 1, 2)); got != (tracker.Acked{}) {
			t.Errorf("a duplicate did %+v", got)
		}
	}
	b.ack(id, whole(0, 4))
	if got := b.ack(id, whole(0, 4), whole(1, 4)); got != (tracker.Acked{Newly: 4, Completed: true, Generation: 1}) {
		t.Errorf("the last ack, overlapping: %+v", got)
	}
	if got := b.ack(id, whole(0, 4), whole(1, 4)); got != (tracker.Acked{}) {
		t.Errorf("an ack after completion did %+v", got)
	}
	if got := b.ack(id); got != (tracker.Acked{}) {
		t.Errorf("an ack of nothing did %+v", got)
	}
}

func TestRearmStartsAnotherGeneration(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(10, 10)
	if got := b.rearm(id, some(0, 1)); got != 2 || b.get(id).State != tracker.StateOpen {
		t.Errorf("rearm of an open batch: generation %d, %+v", got, b.get(id))
	}
	b.seal(id)
	b.ack(id, whole(0, 10))
	b.ack(id, whole(1, 10))
	if got := b.rearm(id, some(1, 3, 9), some(1, 4)); got != 3 {
		t.Errorf("generation %d, want 3", got)
	}
	got := b.get(id)
	if got.State != tracker.StateSealed || got.OpenGroups != 1 || got.CompletedAt != nil || got.Generation != 3 {
		t.Errorf("after the rearm: %+v", got)
	}
	if got := b.rearm(id, some(0, 0), some(1, 3)); got != 4 || b.get(id).OpenGroups != 2 {
		t.Errorf("rearm of a sealed batch: generation %d, %+v", got, b.get(id))
	}
	if got := b.ack(id, whole(1, 10)); got != (tracker.Acked{Newly: 3}) {
		t.Errorf("ack of the rearmed items: %+v", got)
	}
	if got := b.ack(id, whole(0, 10)); got != (tracker.Acked{Newly: 1, Completed: true, Generation: 4}) {
		t.Errorf("last ack of the generation: %+v", got)
	}
}

func TestCancelledBatchNeverCompletes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	sealed, open := b.open(2), b.open(2)
	b.seal(sealed)
	for _, id := range []uuid.UUID{sealed, open} {
		b.cancel(id)
		b.cancel(id)
		if got := b.ack(id, whole(0, 2)); got != (tracker.Acked{Newly: 2}) {
			t.Errorf("ack of a cancelled batch: %+v", got)
		}
		if got := b.get(id); got.State != tracker.StateCancelled || got.OpenGroups != 0 || got.CompletedAt != nil {
			t.Errorf("a cancelled batch: %+v", got)
		}
	}
}

func TestOperationsThatDoNotFitTheState(t *testing.T) {
	t.Parallel()
	b := setup(t)
	sealed, completed, cancelled := b.open(2), b.open(2), b.open(2)
	b.seal(sealed)
	b.ack(completed, whole(0, 2))
	b.seal(completed)
	b.cancel(cancelled)
	add := func(id uuid.UUID) func(pgx.Tx) error {
		return func(tx pgx.Tx) error {
			_, err := tracker.AddGroups(t.Context(), tx, id, []int{1})
			return err
		}
	}
	for name, tc := range map[string]struct {
		do    func(tx pgx.Tx) error
		id    uuid.UUID
		state tracker.State
	}{
		"add to sealed":    {add(sealed), sealed, tracker.StateSealed},
		"add to completed": {add(completed), completed, tracker.StateCompleted},
		"add to cancelled": {add(cancelled), cancelled, tracker.StateCancelled},
		"seal cancelled": {func(tx pgx.Tx) error {
			_, err := tracker.Seal(t.Context(), tx, cancelled)
			return err
		}, cancelled, tracker.StateCancelled},
		"cancel completed": {func(tx pgx.Tx) error {
			return tracker.Cancel(t.Context(), tx, completed)
		}, completed, tracker.StateCompleted},
		"rearm cancelled": {func(tx pgx.Tx) error {
			_, err := tracker.Rearm(t.Context(), tx, cancelled, []tracker.Ack{some(0, 1)})
			return err
		}, cancelled, tracker.StateCancelled},
	} {
		before := b.get(tc.id)
		err := b.refused(tc.do)
		var state *tracker.StateError
		if !errors.As(err, &state) || state.Batch != tc.id || state.State != tc.state {
			t.Errorf("%s: got %v", name, err)
		}
		if after := b.get(tc.id); !same(before, after) {
			t.Errorf("%s: it changed from %+v to %+v", name, before, after)
		}
	}
}

// same compares what is counted, not the times.
func same(a, b tracker.Batch) bool {
	return a.State == b.State && a.Generation == b.Generation && a.Groups == b.Groups &&
		a.OpenGroups == b.OpenGroups && a.Items == b.Items && a.ActiveAt.Equal(b.ActiveAt)
}

func TestUnknownBatch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := uuid.New()
	ctx := t.Context()
	for name, do := range map[string]func(tx pgx.Tx) error{
		"add":     func(tx pgx.Tx) error { _, err := tracker.AddGroups(ctx, tx, id, []int{1}); return err },
		"seal":    func(tx pgx.Tx) error { _, err := tracker.Seal(ctx, tx, id); return err },
		"ack":     func(tx pgx.Tx) error { _, err := tracker.AckMasks(ctx, tx, id, []tracker.Ack{some(0, 1)}); return err },
		"rearm":   func(tx pgx.Tx) error { _, err := tracker.Rearm(ctx, tx, id, []tracker.Ack{some(0, 1)}); return err },
		"cancel":  func(tx pgx.Tx) error { return tracker.Cancel(ctx, tx, id) },
		"get":     func(tx pgx.Tx) error { _, err := tracker.Get(ctx, tx, id); return err },
		"missing": func(tx pgx.Tx) error { _, err := tracker.Missing(ctx, tx, id); return err },
	} {
		if err := b.refused(do); !errors.Is(err, tracker.ErrNotFound) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestOpenTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(1)
	err := b.refused(func(tx pgx.Tx) error { return tracker.Open(t.Context(), tx, id, "other") })
	if !errors.Is(err, tracker.ErrExists) || b.get(id).Owner != "test" {
		t.Errorf("got %v", err)
	}
}

func TestAddGroupsRefusesBadSizes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(1)
	for _, bad := range []int{0, -1, 8193, 1 << 40} {
		err := b.refused(func(tx pgx.Tx) error {
			_, err := tracker.AddGroups(t.Context(), tx, id, []int{1, bad})
			return err
		})
		var size *tracker.SizeError
		if !errors.As(err, &size) || size.At != 1 || size.Size != bad {
			t.Errorf("size %d: got %v", bad, err)
		}
	}
	err := b.refused(func(tx pgx.Tx) error {
		_, err := tracker.AddGroups(t.Context(), tx, id, nil)
		return err
	})
	if !errors.Is(err, tracker.ErrNothing) {
		t.Errorf("no sizes: got %v", err)
	}
	if got := b.get(id); got.Groups != 1 || got.Items != 1 {
		t.Errorf("a refused add left %+v", got)
	}
}

func TestMasksThatFitNoGroup(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(100, 8192)
	for name, tc := range map[string]struct {
		bad  tracker.Ack
		want tracker.GroupError
	}{
		"unknown group":  {some(2, 0), tracker.GroupError{Batch: id, Group: 2, Groups: 2, Bit: 0}},
		"negative group": {some(-1, 0), tracker.GroupError{Batch: id, Group: -1}},
		"huge group":     {some(1<<40, 0), tracker.GroupError{Batch: id, Group: 1 << 40}},
		"past the size":  {some(0, 5, 100), tracker.GroupError{Batch: id, Group: 0, Groups: 2, Size: 100, Bit: 100}},
	} {
		for op, do := range map[string]func(tx pgx.Tx) error{
			"ack": func(tx pgx.Tx) error {
				_, err := tracker.AckMasks(t.Context(), tx, id, []tracker.Ack{tc.bad, whole(1, 8192), whole(0, 1)})
				return err
			},
			"rearm": func(tx pgx.Tx) error {
				_, err := tracker.Rearm(t.Context(), tx, id, []tracker.Ack{whole(1, 8192), tc.bad})
				return err
			},
		} {
			err := b.refused(do)
			var group *tracker.GroupError
			if !errors.As(err, &group) || *group != tc.want {
				t.Errorf("%s %s: got %v", op, name, err)
			}
		}
	}
	got := b.get(id)
	missing, err := tracker.Missing(t.Context(), b.pool, id)
	want := []tracker.Range{{Group: 0, Lo: 0, Hi: 100}, {Group: 1, Lo: 0, Hi: 8192}}
	if err != nil || !slices.Equal(missing, want) || got.OpenGroups != 2 || got.Generation != 1 {
		t.Errorf("what was refused left %v, %v, %+v", missing, err, got)
	}
}

func TestRearmOfNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(1)
	for _, items := range [][]tracker.Ack{nil, {some(0)}} {
		err := b.refused(func(tx pgx.Tx) error {
			_, err := tracker.Rearm(t.Context(), tx, id, items)
			return err
		})
		if !errors.Is(err, tracker.ErrNothing) {
			t.Errorf("got %v", err)
		}
	}
}

func TestAcksOfSeveralBatchesAreOneStatement(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, two, three, unknown := b.open(5, 3), b.open(5), b.open(2), uuid.New()
	b.seal(one)
	b.seal(two)
	var acked [3]tracker.Acked
	ack := func(acks ...tracker.BatchAcks) error {
		return pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
			batch := &pgx.Batch{}
			if err := tracker.QueueAcks(batch, acks); err != nil {
				return err
			}
			return tx.SendBatch(t.Context(), batch).Close()
		})
	}
	of := func(i int, id uuid.UUID, items ...tracker.Ack) tracker.BatchAcks {
		return tracker.BatchAcks{Batch: id, Items: items, Into: &acked[i]}
	}
	if err := ack(of(0, three, whole(0, 2)), of(1, one, some(1, 0, 2), whole(0, 5)), of(2, two, some(0, 4))); err != nil {
		t.Fatal(err)
	}
	if want := [3]tracker.Acked{{Newly: 2}, {Newly: 7}, {Newly: 1}}; acked != want {
		t.Errorf("got %+v; want %+v", acked, want)
	}
	for name, bad := range map[string]tracker.BatchAcks{
		"an unknown batch":          of(0, unknown, some(0, 1)),
		"a group that is not there": of(0, three, some(9, 1)),
		"an item that is not there": of(0, three, some(0, 2)),
	} {
		acked = [3]tracker.Acked{}
		err := ack(of(1, one, some(1, 1)), bad, of(2, two, whole(0, 5)))
		var group *tracker.GroupError
		if (bad.Batch == unknown) != errors.Is(err, tracker.ErrNotFound) ||
			(bad.Batch == three) != (errors.As(err, &group) && group.Batch == three && group.Group == bad.Items[0].Group) {
			t.Errorf("%s: %v", name, err)
		}
		if acked != [3]tracker.Acked{} {
			t.Errorf("beside %s something was acknowledged: %+v", name, acked)
		}
	}
	b.seal(three)
	if err := ack(of(0, three, whole(0, 2)), of(1, one, whole(1, 3), whole(0, 5)), of(2, two, whole(0, 5))); err != nil {
		t.Fatal(err)
	}
	want := [3]tracker.Acked{{}, {Newly: 1, Completed: true, Generation: 1}, {Newly: 4, Completed: true, Generation: 1}}
	if acked != want {
		t.Errorf("got %+v; want %+v", acked, want)
	}
	if err := ack(of(0, two, some(0, 1)), of(1, two, some(0, 2))); err == nil {
		t.Error("a batch can be named twice")
	}
	batch := &pgx.Batch{}
	if err := tracker.QueueAcks(batch, []tracker.BatchAcks{of(0, two)}); err != nil || batch.Len() != 0 {
		t.Errorf("an ack of nothing was queued: %d, %v", batch.Len(), err)
	}
}

// TestBitsMeanTheSameInSQL shows on a real server that member i in Go is bit i of get_bit, set_bit and bit_count.
func TestBitsMeanTheSameInSQL(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, i := range []int{0, 1, 7, 8, 63, 64, 65, 127, 128, 4095, 4096, 8127, 8128, 8190, 8191} {
		set := bitfield.Of(i)
		var bit, count int
		var made, ranged bitfield.Set
		err := b.pool.QueryRow(t.Context(),
			`SELECT get_bit($1::bit(8192), $2), bit_count($1::bit(8192)), set_bit(B'0'::bit(8192), $2, 1),
			        ~(~B'0'::bit(8192) >> $2)`,
			pgbits.Of(set), i).Scan(&bit, &count, pgbits.Into(&made), pgbits.Into(&ranged))
		if err != nil {
			t.Fatal(err)
		}
		if bit != 1 || count != 1 || made != set || ranged != bitfield.Full(i) {
			t.Errorf("bit %d: get_bit %d, bit_count %d", i, bit, count)
		}
	}
	sets := []bitfield.Set{bitfield.Of(3, 8191), bitfield.Full(8192), {}}
	rows, err := b.pool.Query(t.Context(),
		`SELECT m FROM unnest($1::bit(8192)[]) WITH ORDINALITY AS u(m, n) ORDER BY n`, pgbits.Slice(sets))
	if err != nil {
		t.Fatal(err)
	}
	back, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s bitfield.Set, err error) {
		return s, row.Scan(pgbits.Into(&s))
	})
	if err != nil || !slices.Equal(back, sets) {
		t.Errorf("an array of sets did not survive: %v", err)
	}
}

// TestPoolingSafeModes runs the statements with the wildest parameters in pgx's modes for connection poolers.
func TestPoolingSafeModes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec,
	} {
		id := b.open(10)
		cfg := b.pool.Config().ConnConfig.Copy()
		cfg.DefaultQueryExecMode = mode
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		err = pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			if _, err := tracker.AddGroups(t.Context(), tx, id, []int{2, 3}); err != nil {
				return err
			}
			if _, err := tracker.Missing(t.Context(), tx, id); err != nil {
				return err
			}
			acked, err := tracker.AckMasks(t.Context(), tx, id, []tracker.Ack{some(0, 1), some(2, 2)})
			if acked.Newly != 2 {
				t.Errorf("%v: %+v", mode, acked)
			}
			return err
		})
		if err != nil {
			t.Errorf("%v: %v", mode, err)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestEveryStatementIsPrepared(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn, err := pgx.ConnectConfig(t.Context(), b.pool.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	for name, sql := range tracker.Statements {
		if _, err := conn.Prepare(t.Context(), name, sql); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
