package tracker_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestReapByLastActivity(t *testing.T) {
	t.Parallel()
	b := setup(t)
	hooked := tracker.OpenRequest{Owner: "test", Webhook: tracker.Hook{URL: "https://example.org/"}}
	minute := tracker.OpenRequest{Owner: "test", OpenIdle: time.Minute}
	seal := func(id uuid.UUID) { b.seal(id) }
	complete := func(id uuid.UUID) { b.ack(all(id)); b.seal(id) }
	expire := func(id uuid.UUID) { b.age(id, 26*time.Hour); b.reap(100) }
	for name, tc := range map[string]struct {
		open    tracker.OpenRequest
		do      func(id uuid.UUID)
		after   time.Duration
		expired bool
		deleted bool
	}{
		"open, young":             {after: 23 * time.Hour},
		"open, within the slack":  {after: day + time.Minute},
		"open, old":               {after: 26 * time.Hour, expired: true},
		"open, old, of a minute":  {open: minute, after: time.Hour, expired: true},
		"sealed, older than open": {do: seal, after: 3 * day},
		"sealed, old":             {do: seal, after: 8 * day, expired: true},
		"old, with an ack since": {do: func(id uuid.UUID) {
			b.age(id, 23*time.Hour)
			b.ack(items(id, some(0, 1)))
		}, after: 3 * time.Hour},
		"old, with an add since": {do: func(id uuid.UUID) {
			b.age(id, 23*time.Hour)
			_, _ = b.add(id, 1, "")
		}, after: 3 * time.Hour},
		"old, with duplicates": {do: func(id uuid.UUID) {
			b.ack(items(id, some(0, 1)))
			b.age(id, 23*time.Hour)
			b.ack(items(id, some(0, 1)))
		}, after: 3 * time.Hour, expired: true},
		"completed, young":         {do: complete, after: 6 * day},
		"completed, old":           {do: complete, after: 8 * day, deleted: true},
		"completed, webhook owed":  {open: hooked, do: complete, after: 8 * day},
		"expired, young":           {do: expire, after: 6 * day},
		"expired, old":             {do: expire, after: 8 * day, deleted: true},
		"open, old, webhook asked": {open: hooked, after: 26 * time.Hour, expired: true},
	} {
		if tc.open.Owner == "" {
			tc.open.Owner = "test"
		}
		id := b.openAs(tc.open, 5)
		if tc.do != nil {
			tc.do(id)
		}
		events := len(b.events(id))
		b.age(id, tc.after)
		// Twice: a batch that is not due is put off, and looked at again.
		for _, want := range []bool{true, false} {
			got := b.reap(100)
			expired, deleted := slices.Contains(got.Expired, id), slices.Contains(got.Deleted, id)
			if expired != (tc.expired && want) || deleted != (tc.deleted && want) {
				t.Errorf("%s: %+v", name, got)
			}
		}
		if tc.deleted {
			b.gone(id)
			continue
		}
		got := b.get(id)
		testenv.Same(t, (got.State == tracker.StateExpired), (tc.expired || got.ExpiredAt != nil), "%s: %+v", name, got)
		if !tc.expired {
			continue
		}
		all := b.events(id)
		if len(all) != events+1 || all[0].Kind != "tracker.expired" || all[0].Pending != got.Pending {
			t.Errorf("%s: events %+v", name, all)
		}
		b.expired(name, id, tc.open.Webhook.URL != "")
	}
}

// expired checks what can still be done with an expired batch.
func (b *bench) expired(name string, id uuid.UUID, hook bool) {
	b.Helper()
	before := b.get(id)
	testenv.Same(b, b.ack(all(id))[0], (tracker.Acked{Newly: int(before.Pending)}), "%s: a late ack did", name)
	_, add := b.add(id, 1, "")
	_, seal := b.trySeal(id)
	for op, err := range map[string]error{"add": add, "seal": seal} {
		late := testenv.As[*tracker.StateError](b, err, "%s: a late %s", name, op)
		testenv.Same(b, late.State, tracker.StateExpired, "%s: the batch of a late %s", name, op)
	}
	if got := b.get(id); got.State != tracker.StateExpired || (got.WebhookState == tracker.WebhookDue) != hook {
		b.Errorf("%s: a late ack left %+v", name, got)
	}
}

// TestReapDoesNotWait leaves out a batch that someone is sealing, and looks at it again.
func TestReapDoesNotWait(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(5)
	b.age(id, 2*day)
	tx := b.begin()
	testenv.Must(tracker.SealTracker(t.Context(), tx, id))(t)
	testenv.Same(t, b.reap(10).Looked, 0, "it looked at what is held")
	testenv.NoError(t, tx.Commit(t.Context()))
	if got := b.reap(10); len(got.Expired) != 0 || b.get(id).State != tracker.StateSealed {
		t.Errorf("it expired what was sealed just now: %+v", got)
	}
}

// TestReapOfLargeBatches ends as many at a time as have few groups together, and each of them in the end.
func TestReapOfLargeBatches(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const group = 8192
	var ids []uuid.UUID
	for _, groups := range []int64{9, 2, 2, 1, 9, 0} { // the first is the oldest
		id := b.open()
		if groups > 0 {
			_, _ = b.add(id, groups*group, "")
		}
		b.age(id, 30*day-time.Duration(len(ids))*time.Hour)
		ids = append(ids, id)
	}
	for i, want := range []tracker.Reaped{
		{Looked: 1, More: true, Expired: ids[:1]}, // more than 4, and alone
		{Looked: 2, More: true, Expired: ids[1:3]},
		{Looked: 1, More: true, Expired: ids[3:4]},
		{Looked: 1, More: true, Expired: ids[4:5]},
		{Looked: 1, Expired: ids[5:]},
		{},
	} {
		got := in(b, func(ctx context.Context, tx pgx.Tx) (tracker.Reaped, error) { return tracker.ReapFew(ctx, tx, 100, 4) })
		slices.SortFunc(want.Expired, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
		if got.Looked != want.Looked || got.More != want.More || !slices.Equal(got.Expired, want.Expired) {
			t.Errorf("%d: %+v; want %+v", i, got, want)
		}
	}
	for _, id := range ids {
		if events := b.events(id); len(events) != 1 || events[0].Pending != b.get(id).Pending {
			t.Errorf("%s: events %+v", id, events)
		}
	}
}

// TestAcksWriteTheServiceRowSeldom has many acks write it once.
func TestAcksWriteTheServiceRowSeldom(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(100)
	version := func() (xmin string) {
		testenv.NoError(t, b.pool.QueryRow(t.Context(), `SELECT xmin::text FROM tracker_service WHERE batch_id = $1`, id).
			Scan(&xmin))
		return xmin
	}
	before := version()
	for i := range 20 {
		b.ack(items(id, some(0, i)))
	}
	testenv.Same(t, version(), before, "acks wrote a row that was written just now")
	b.age(id, 80*time.Minute)
	before = version()
	b.ack(items(id, some(0, 50)))
	if version() == before {
		t.Error("an ack did not note activity after a twentieth of the age")
	}
	if got := b.get(id); time.Since(got.ActiveAt) > time.Minute {
		t.Errorf("its last activity is %v ago", time.Since(got.ActiveAt))
	}
	// One who holds the row is not waited for.
	b.age(id, 80*time.Minute)
	tx := b.begin()
	testenv.Must(tx.Exec(t.Context(), `SELECT FROM tracker_service WHERE batch_id = $1 FOR UPDATE`, id))(t)
	in(b, func(ctx context.Context, tx pgx.Tx) ([]tracker.Acked, error) {
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '1ms'`); err != nil {
			return nil, err
		}
		return tracker.AckItems(ctx, tx, []tracker.ItemsAck{items(id, some(0, 51))})
	})
}

// Calls are handed out host by host: of each no more than there is room for, the longest due first, and none that is
// in progress. Who has the fewest in progress comes first.
func TestWebhooksAreHandedOutByHost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i, url := range []string{
		"https://one/1", "https://one/2", "HTTPS://One?3", "https://one:8443/4", "http://two#5", "https://two/6",
		"https://six/7",
	} {
		id := b.openAs(tracker.OpenRequest{Owner: "o", Webhook: tracker.Hook{URL: url, Secret: "s"}})
		b.seal(id)
		b.exec(`UPDATE tracker_service SET webhook_next_at = webhook_next_at - ($2 || ' minutes')::interval
			WHERE batch_id = $1`, id, fmt.Sprint(60-i))
	}
	b.exec(`UPDATE tracker_service SET webhook_next_at = tranche_now() + interval '1 hour'
		WHERE webhook_url = 'https://six/7'`)
	room := func(perHost, atOnce int, underWay ...tracker.Webhook) []tracker.Webhook {
		t.Helper()
		due := testenv.Must(tracker.DueWebhooks(t.Context(), b.pool, tracker.WebhookRoom{
			AtOnce: atOnce, PerHost: perHost, UnderWay: underWay,
		}))(t)
		return due
	}
	same := func(what string, got []tracker.Webhook, want ...string) {
		t.Helper()
		var urls []string
		for i := range got {
			urls = append(urls, got[i].URL)
		}
		testenv.Same(t, fmt.Sprint(urls), fmt.Sprint(want), "%s", what)
	}
	all := room(10, 10)
	same("all", all, "https://one/1", "https://one:8443/4", "http://two#5", "https://one/2", "https://two/6",
		"HTTPS://One?3")
	if len(all) == 6 && (all[5].Host != "one" || all[1].Host != "one:8443" || all[2].Host != "two") {
		t.Errorf("hosts: %+v", all)
	}
	same("one of each", room(1, 10), "https://one/1", "https://one:8443/4", "http://two#5")
	same("two concurrently", room(10, 2), "https://one/1", "https://one:8443/4")
	same("the first is in progress", room(2, 10, all[0]), "https://one:8443/4", "http://two#5", "https://one/2",
		"https://two/6")
	same("a host is full", room(1, 10, all[0]), "https://one:8443/4", "http://two#5")
	same("all is full", room(10, 1, all[0]))
}

// Some room is only for hosts with none in progress: others, however many calls they are owed, leave it free.
func TestRoomIsKeptForHostsWithNoneUnderWay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, url := range []string{"https://one/1", "https://one/2", "https://one/3", "https://one/4", "https://two/1"} {
		b.seal(b.openAs(tracker.OpenRequest{Owner: "o", Webhook: tracker.Hook{URL: url, Secret: "s"}}))
	}
	room := func(atOnce, kept int, underWay ...tracker.Webhook) (hosts []string, due []tracker.Webhook) {
		t.Helper()
		due = testenv.Must(tracker.DueWebhooks(t.Context(), b.pool, tracker.WebhookRoom{
			AtOnce: atOnce, PerHost: 10, Kept: kept, UnderWay: underWay,
		}))(t)
		for i := range due {
			hosts = append(hosts, due[i].Host)
		}
		slices.Sort(hosts)
		return hosts, due
	}
	if got, _ := room(5, 0); len(got) != 5 {
		t.Errorf("with none kept: %v", got)
	}
	got, due := room(5, 2)
	testenv.Same(t, fmt.Sprint(got), "[one one two]", "with two kept of five")
	due = slices.DeleteFunc(due, func(w tracker.Webhook) bool { return w.Host == "two" })
	if got, _ := room(4, 2, due...); fmt.Sprint(got) != "[two]" {
		t.Errorf("with two of one in progress, and as many kept: %v", got)
	}
	if got, _ := room(1, 1); len(got) != 1 {
		t.Errorf("with all kept: %v", got)
	}
}

// A host is the same however its usual port, its dot and its letters are written.
func TestHostsOfWebhooks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for url, host := range map[string]string{
		"https://h/x": "h", "https://h:443/x:443": "h", "HTTPS://H.:443?a": "h", "https://h.": "h", "https://h:": "h",
		"http://h:80#x": "h", "http://h.": "h", "http://h:443/": "h:443", "https://h:80": "h:80",
		"https://h.:8443/": "h:8443", "https://a.h:1443": "a.h:1443", "https://10.0.0.1:443": "10.0.0.1",
		"https://[::1]:443": "[::1]", "https://[::443]": "[::443]",
	} {
		id := b.openAs(tracker.OpenRequest{Owner: "o", Webhook: tracker.Hook{URL: url, Secret: "s"}})
		var got string
		const sql = `SELECT webhook_host FROM tracker_service WHERE batch_id = $1`
		testenv.NoError(t, b.pool.QueryRow(t.Context(), sql, id).Scan(&got))
		testenv.Same(t, got, host, "%s", url)
	}
}
