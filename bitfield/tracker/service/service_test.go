package service_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/bitfield/tracker/service"
)

func TestOneBatchFromOpenToDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.openAs(service.OpenRequest{Owner: "billing", Key: "2026-11", CreatedBy: "ann"})
	added, err := b.add(id, 8192+100, "")
	if want := (service.Added{FirstGroup: 0, Groups: 2, Items: 8292}); err != nil || added != want {
		t.Fatalf("added %+v, %v", added, err)
	}
	if added, err = b.add(id, 3*8192, "more"); added.FirstGroup != 2 || added.Groups != 3 || err != nil {
		t.Fatalf("added %+v, %v", added, err)
	}
	if b.seal(id) {
		t.Error("the seal completed a batch with pending items")
	}
	got := b.ack(items(id, some(0, 0, 8191)), failed("E_GONE", id, some(0, 0, 5), some(1, 99)),
		service.BatchAck{Batch: id, Whole: []tracker.Span{{First: 2, Last: 3}}, Code: "E_ALL"})
	if want := []service.Acked{{Newly: 2}, {Newly: 2}, {Newly: 2 * 8192}}; !slices.Equal(got, want) {
		t.Errorf("acked %+v, want %+v", got, want)
	}
	info := b.get(id)
	codes := []service.CodeCount{{Code: "E_ALL", Items: 2 * 8192}, {Code: "E_GONE", Items: 2}}
	if info.State != tracker.StateSealed || info.Items != 8292+3*8192 || info.Done != 2 || info.Failed != 2*8192+2 ||
		info.Pending != info.Items-info.Done-info.Failed || !slices.Equal(info.Codes, codes) || info.OpenGroups != 3 {
		t.Errorf("in the middle: %+v", info)
	}
	states, err := service.GroupStates(t.Context(), b.pool, id, 1, 2)
	if want := []service.GroupState{{1, 100, 99, 0, 1}, {2, 8192, 0, 0, 8192}}; err != nil || !slices.Equal(states, want) {
		t.Errorf("groups %+v, %v", states, err)
	}
	missing, next, err := service.Missing(t.Context(), b.pool, id, service.Position{}, 2)
	if want := []tracker.Range{{Group: 0, Lo: 1, Hi: 5}, {Group: 0, Lo: 6, Hi: 8191}}; err != nil || next == nil ||
		*next != (service.Position{Group: 1}) || !slices.Equal(missing, want) {
		t.Errorf("missing %v, next %v, %v", missing, next, err)
	}
	missing, next, err = service.Missing(t.Context(), b.pool, id, service.Position{Group: 1, Index: 50}, 2)
	if want := []tracker.Range{{Group: 1, Lo: 50, Hi: 99}, {Group: 4, Lo: 0, Hi: 8192}}; err != nil || next != nil ||
		!slices.Equal(missing, want) {
		t.Errorf("missing %v, next %v, %v", missing, next, err)
	}
	if got := b.ack(all(id), all(id)); !slices.Equal(got, []service.Acked{{Newly: info.Pending, Completed: true}, {}}) {
		t.Errorf("the last ack: %+v", got)
	}
	info = b.get(id)
	if info.State != tracker.StateCompleted || info.Pending != 0 || info.CompletedAt == nil || info.Key != "2026-11" ||
		info.CreatedBy != "ann" || info.Keep != service.DefaultKeep {
		t.Errorf("at the end: %+v", info)
	}
	key := "2026-11"
	want := []event{{Kind: "tracker.completed", Batch: id, Owner: "billing", Key: &key, Items: info.Items, Done: info.Done,
		Failed: info.Failed, Codes: map[string]int64{"E_ALL": 2 * 8192, "E_GONE": 2}}}
	if got := b.events(id); !reflect.DeepEqual(got, want) {
		t.Errorf("events %+v, want %+v", got, want)
	}
	b.in(func(ctx context.Context, tx pgx.Tx) error { return service.Delete(ctx, tx, id) })
	b.gone(id)
	again := b.openAs(service.OpenRequest{Owner: "billing", Key: "2026-11"})
	b.in(func(ctx context.Context, tx pgx.Tx) error {
		for {
			if n, err := service.Purge(ctx, tx, 2); n == 0 || err != nil {
				return err
			}
		}
	})
	if n := b.count(`SELECT (SELECT count(*) FROM tracker_group) + (SELECT count(*) FROM tracker_failed) +
		(SELECT count(*) FROM tracker_add) + (SELECT count(*) FROM tracker_batch)`); n != 1 || again == id {
		t.Errorf("%d rows are left; the one of the new batch was to be", n)
	}
	b.openAs(service.OpenRequest{ID: id, Owner: "billing"}) // another batch, whose end is another event
	if completed := b.seal(id); !completed || len(b.events(id)) != 2 {
		t.Errorf("completed %t, with the events %+v", completed, b.events(id))
	}
}

// gone checks that no one can tell a deleted batch from one that never was.
func (b *bench) gone(id uuid.UUID) {
	b.Helper()
	for name, err := range b.touchAll(id) {
		var gone *service.NotFoundError
		if !errors.As(err, &gone) || gone.Batch != id || !errors.Is(err, tracker.ErrNotFound) {
			b.Errorf("%s of what is not there: %v", name, err)
		}
	}
	if list, err := service.List(b.Context(), b.pool, service.Filter{Limit: 100}); err != nil ||
		slices.ContainsFunc(list, func(s service.Summary) bool { return s.ID == id }) {
		b.Errorf("it is listed: %+v, %v", list, err)
	}
}

func (b *bench) touchAll(id uuid.UUID) map[string]error {
	ctx := b.Context()
	_, add := b.add(id, 1, "k")
	_, ack := b.tryAck(items(id, some(0, 0)))
	_, code := b.tryAck(failed("E", id, some(0, 0)))
	_, every := b.tryAck(all(id))
	_, whole := b.tryAck(service.BatchAck{Batch: id, Whole: []tracker.Span{{}}})
	_, nothing := b.tryAck(service.BatchAck{Batch: id})
	_, get := service.Get(ctx, b.pool, id)
	_, groups := service.GroupStates(ctx, b.pool, id, 0, 1)
	_, _, missing := service.Missing(ctx, b.pool, id, service.Position{}, 1)
	return map[string]error{
		"add": add, "ack": ack, "failed ack": code, "ack of all": every, "ack of groups": whole, "ack of nothing": nothing,
		"get": get, "groups": groups, "missing": missing,
		"seal": b.try(func(ctx context.Context, tx pgx.Tx) error {
			_, err := service.Seal(ctx, tx, id)
			return err
		}),
		"delete": b.try(func(ctx context.Context, tx pgx.Tx) error { return service.Delete(ctx, tx, id) }),
	}
}

// TestBatchesOfRunsAreOutOfReach tries everything with the batch of a run, which stays as it was.
func TestBatchesOfRunsAreOutOfReach(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := uuid.New()
	b.in(func(ctx context.Context, tx pgx.Tx) error {
		if err := tracker.Open(ctx, tx, run, "run"); err != nil {
			return err
		}
		if _, err := tracker.AddGroups(ctx, tx, run, []int{10}); err != nil {
			return err
		}
		_, err := tracker.Seal(ctx, tx, run)
		return err
	})
	b.gone(run)
	err := b.try(func(ctx context.Context, tx pgx.Tx) error {
		_, err := service.Open(ctx, tx, service.OpenRequest{ID: run, Owner: "thief"})
		return err
	})
	if !errors.Is(err, tracker.ErrExists) {
		t.Errorf("opening it: %v", err)
	}
	batch, err := tracker.Get(t.Context(), b.pool, run)
	if err != nil || batch.Items != 10 || batch.OpenGroups != 1 || batch.State != tracker.StateSealed {
		t.Errorf("it is left as %+v, %v", batch, err)
	}
	b.gone(uuid.New())
}

func TestOpenAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	asked := service.OpenRequest{
		Owner: "o", Key: "k", OpenIdle: time.Hour, Webhook: service.Hook{URL: "https://h", Secret: "s"},
	}
	open := func(change func(r *service.OpenRequest)) (opened service.Opened, err error) {
		r := asked
		change(&r)
		err = b.try(func(ctx context.Context, tx pgx.Tx) error {
			opened, err = service.Open(ctx, tx, r)
			return err
		})
		return opened, err
	}
	id := b.openAs(asked)
	for name, change := range map[string]func(r *service.OpenRequest){
		"the same":              func(*service.OpenRequest) {},
		"the same with its id":  func(r *service.OpenRequest) { r.ID = id },
		"with the default said": func(r *service.OpenRequest) { r.Keep = service.DefaultKeep },
	} {
		if got, err := open(change); err != nil || got != (service.Opened{ID: id, Existing: true}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for field, change := range map[string]func(r *service.OpenRequest){
		"id":             func(r *service.OpenRequest) { r.ID = uuid.New() },
		"open_idle":      func(r *service.OpenRequest) { r.OpenIdle = time.Minute },
		"keep":           func(r *service.OpenRequest) { r.Keep = time.Minute },
		"webhook.url":    func(r *service.OpenRequest) { r.Webhook.URL = "https://other" },
		"webhook.secret": func(r *service.OpenRequest) { r.Webhook.Secret = "" },
		"key":            func(r *service.OpenRequest) { r.ID, r.Key = id, "" },
	} {
		_, err := open(change)
		var conflict *service.ConflictError
		if !errors.As(err, &conflict) || conflict.Field != field || conflict.Batch != id ||
			!errors.Is(err, service.ErrConflict) {
			t.Errorf("another %s: %v", field, err)
		}
	}
	if other, err := open(func(r *service.OpenRequest) { r.Owner = "p" }); err != nil || other.ID == id || other.Existing {
		t.Errorf("another owner's key: %+v, %v", other, err)
	}
	if n := b.count(`SELECT count(*) FROM tracker_batch`); n != 2 {
		t.Errorf("%d batches, want 2", n)
	}
}

func TestWhatNoTrackerCanDo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(10)
	open := func(r service.OpenRequest) error {
		return b.try(func(ctx context.Context, tx pgx.Tx) error {
			_, err := service.Open(ctx, tx, r)
			return err
		})
	}
	add := func(n int64, key string) error { _, err := b.add(id, n, key); return err }
	ack := func(a ...service.BatchAck) error { _, err := b.tryAck(a...); return err }
	for name, tc := range map[string]struct {
		err   error
		field string
	}{
		"no owner":        {open(service.OpenRequest{}), "owner"},
		"long owner":      {open(service.OpenRequest{Owner: strings.Repeat("é", 201)}), "owner"},
		"binary key":      {open(service.OpenRequest{Owner: "o", Key: "a\x00"}), "key"},
		"no UTF-8":        {open(service.OpenRequest{Owner: "o", Key: "\xff"}), "key"},
		"no age":          {open(service.OpenRequest{Owner: "o", OpenIdle: -1}), "open_idle"},
		"old age":         {open(service.OpenRequest{Owner: "o", Keep: 1e18}), "keep"},
		"secret only":     {open(service.OpenRequest{Owner: "o", Webhook: service.Hook{Secret: "s"}}), "webhook.url"},
		"zero items":      {add(0, ""), "items"},
		"less than none":  {add(-1, ""), "items"},
		"too many":        {add(service.MaxAdd+1, ""), "items"},
		"terminal escape": {add(1, "\x1b[31m"), "key"},
		"a code's length": {ack(failed(strings.Repeat("x", 65), id, some(0, 1))), "code"},
		"a code's bidi":   {ack(failed("\u202e", id, some(0, 1))), "code"},
		"too many groups": {ack(items(id, make([]tracker.Ack, service.MaxAckGroups+1)...)), "ids"},
	} {
		var request *service.RequestError
		if !errors.As(tc.err, &request) || request.Field != tc.field {
			t.Errorf("%s: %v", name, tc.err)
		}
	}
	for name, bad := range map[string]service.BatchAck{
		"foreign group":      items(id, some(0, 1), some(1, 0)),
		"index past the end": items(id, some(0, 9, 10)),
		"negative group":     items(id, some(-1, 0)),
		"huge group":         items(id, some(1<<40, 0)),
		"span past the end":  {Batch: id, Whole: []tracker.Span{{First: 0, Last: 1}}},
		"span backwards":     {Batch: id, Whole: []tracker.Span{{First: 1, Last: 0}}},
		"negative span":      {Batch: id, Whole: []tracker.Span{{First: -1, Last: 0}}},
		"failed":             failed("E", id, some(0, 1), some(1, 0)),
		"failed span":        {Batch: id, Whole: []tracker.Span{{First: 0, Last: 1}}, Code: "E"},
	} {
		other := b.open(5)
		var group *tracker.GroupError
		if err := ack(items(other, first(0, 5)), items(id, some(0, 2)), bad); !errors.As(err, &group) || group.Batch != id {
			t.Errorf("%s: %v", name, err)
		}
		if got := b.get(id); got.Pending != 10 || b.get(other).Pending != 5 {
			t.Errorf("%s: a refused ack left %+v", name, got)
		}
	}
	b.seal(id)
	var state *tracker.StateError
	if err := add(1, ""); !errors.As(err, &state) || state.State != tracker.StateSealed {
		t.Errorf("add after the seal: %v", err)
	}
	if got := b.ack(); len(got) != 0 {
		t.Errorf("an ack of nothing did %+v", got)
	}
	if got := b.ack(all(b.open())); got[0] != (service.Acked{}) {
		t.Errorf("an ack of all of nothing did %+v", got)
	}
}

// TestAddAgain adds with a key again, also after the seal, and with another number.
func TestAddAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id, other := b.open(1), b.open()
	one, err := b.add(id, 10_000, "page 1")
	if err != nil {
		t.Fatal(err)
	}
	b.seal(id)
	again, err := b.add(id, 10_000, "page 1")
	if one.Existing = true; err != nil || again != one {
		t.Errorf("again: %+v, %v, want %+v", again, err, one)
	}
	var conflict *service.ConflictError
	_, err = b.add(id, 9_999, "page 1")
	if !errors.As(err, &conflict) || conflict.Was != "10000" || conflict.Is != "9999" {
		t.Errorf("with another number: %v", err)
	}
	if got, err := b.add(other, 9_999, "page 1"); err != nil || got.Existing {
		t.Errorf("in another batch: %+v, %v", got, err)
	}
	if got := b.get(id); got.Items != 10_001 || got.Groups != 3 {
		t.Errorf("it has %+v", got)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var want []uuid.UUID
	for i := range 6 {
		id := b.openAs(service.OpenRequest{Owner: []string{"even", "odd"}[i%2]})
		if i >= 4 {
			b.seal(id)
		}
		want = append([]uuid.UUID{id}, want...)
	}
	ids := func(f service.Filter) (ids []uuid.UUID) {
		list, err := service.List(t.Context(), b.pool, f)
		if err != nil {
			t.Fatal(err)
		}
		for i := range list {
			ids = append(ids, list[i].ID)
		}
		return ids
	}
	for name, tc := range map[string]struct {
		f    service.Filter
		want []uuid.UUID
	}{
		"all":       {service.Filter{Limit: 10}, want},
		"page":      {service.Filter{Limit: 2, After: want[1]}, want[2:4]},
		"owner":     {service.Filter{Limit: 10, Owner: "odd"}, []uuid.UUID{want[0], want[2], want[4]}},
		"page of":   {service.Filter{Limit: 1, Owner: "odd", After: want[0]}, want[2:3]},
		"state":     {service.Filter{Limit: 10, State: tracker.StateCompleted}, want[:2]},
		"both":      {service.Filter{Limit: 10, State: tracker.StateOpen, Owner: "even"}, []uuid.UUID{want[3], want[5]}},
		"of no one": {service.Filter{Limit: 10, Owner: "x"}, nil},
	} {
		if got := ids(tc.f); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	if _, err := service.List(t.Context(), b.pool, service.Filter{State: "odd"}); err == nil {
		t.Error("a state that there is not was listed")
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
	for name, sql := range service.Statements {
		if _, err := conn.Prepare(t.Context(), name, sql); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
