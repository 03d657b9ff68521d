package trackers_test

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/access/natsaccess"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

// overNATS serves b over NATS by two listeners, as two nodes would, and returns a client.
func (b *bench) overNATS() (*trackerclient.Client, *nats.Conn) {
	b.Helper()
	server := testenv.NATS(b)
	for range 2 {
		node := testenv.Conn(b, server)
		listener, err := trackers.Listen(node, b.service)
		if err == nil {
			err = node.FlushTimeout(soon) // Listen waits for the server for a moment only
		}
		testenv.NoError(b, err)
		b.Cleanup(func() {
			if err := listener.Close(b.Context()); err != nil {
				b.Log(err) // its context ended with the test
			}
		})
	}
	nc := testenv.Conn(b, server)
	return testenv.Must(trackerclient.New(nc, trackerclient.Config{Actor: "billing", Timeout: soon}))(b), nc
}

// The whole way of a batch over NATS: many callers acknowledge its items one by one, and one is told of the end.
func TestOverNATS(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	client, _ := b.overNATS()
	ctx := t.Context()
	set := trackerclient.BatchSettings{Owner: "billing", Key: "nov", OpenIdle: "2h"}
	batch, err := client.Open(ctx, set)
	if err != nil || batch.Existing {
		t.Fatal(batch, err)
	}
	if again, err := client.Open(ctx, set); err != nil || again.ID != batch.ID || !again.Existing {
		t.Error(again, err)
	}
	const items = 8192 + 40
	added, err := client.Add(ctx, batch.ID, items, "first")
	if err != nil || added.Groups != 2 || added.LastID != batch.ID+":1:39" {
		t.Fatal(added, err)
	}
	again, err := client.Add(ctx, batch.ID, items, "first")
	if err != nil || !again.Existing || again.FirstID != added.FirstID {
		t.Error(again, err)
	}
	if sealed, err := client.Seal(ctx, batch.ID); err != nil || sealed.Completed {
		t.Error(sealed, err)
	}
	ids := slices.Collect(added.IDs())
	if len(ids) != items || ids[items-1].String() != added.LastID {
		t.Fatalf("%d ids", len(ids))
	}
	bulk := testenv.Must(client.Acknowledge(ctx, trackerclient.Acknowledgement{Ranges: []string{batch.ID + ":0"}}))(t)
	testenv.MustSame(t, bulk.Newly, 8192, "%v", bulk)
	testenv.SameList(t, testenv.Must(client.Missing(ctx, batch.ID, "", 10))(t).Ranges, []string{"1:0-39"}, "missing")
	_, err = client.Fail(ctx, "", ids[8192])
	testenv.Says(t, err, "code: it is empty", "an empty code of failed items")
	testenv.Same(t, testenv.Must(client.Fail(ctx, "REFUSED", ids[8192], ids[8193]))(t).Newly, 2, "newly failed")
	told := ackEach(t, client, ids[8194:])
	testenv.Same(t, told, 1, "callers were told of the end")
	view, err := client.Get(ctx, batch.ID, 5)
	if err != nil || view.State != "completed" || view.Done != items-2 || view.Failed != 2 || view.Codes["REFUSED"] != 2 ||
		view.CreatedBy != "billing" || view.OpenIdle != "2h0m0s" || len(view.Missing) != 0 {
		t.Errorf("%+v %v", view, err)
	}
	if page, err := client.List(ctx, trackerclient.ListRequest{Owner: "billing", State: "completed"}); err != nil ||
		len(page.Batches) != 1 || page.Batches[0].ID != batch.ID {
		t.Error(page, err)
	}
	testenv.Must(client.Delete(ctx, batch.ID))(t)
	if _, err := client.Get(ctx, batch.ID, 0); asRefused(err) == nil || asRefused(err).Code != trackerclient.CodeNoBatch {
		t.Error(err)
	}
	testenv.Same(t, b.count(`SELECT count(*) FROM audit_log WHERE actor = 'billing' AND action LIKE 'tracker_%'`), 3,
		"rows in the audit log")
}

// ackEach acknowledges each item twice, all at the same time, and returns how many calls were told of the end.
func ackEach(t *testing.T, client *trackerclient.Client, ids []bitfield.ItemID) int64 {
	t.Helper()
	var told, newly atomic.Int64
	var all sync.WaitGroup
	for _, id := range slices.Concat(ids, ids) {
		all.Go(func() {
			acked, err := client.Ack(t.Context(), id)
			testenv.Same(t, err, nil, "an acknowledgement")
			newly.Add(acked.Newly)
			if acked.Completed(id.Batch) {
				told.Add(1)
			}
		})
	}
	all.Wait()
	testenv.Same(t, newly.Load(), int64(len(ids)), "items newly acknowledged")
	return told.Load()
}

// What cannot be read is refused with its place, and answered in any case.
func TestRequestsThatAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	client, nc := b.overNATS()
	for _, c := range []struct{ subject, body, want string }{
		{"open", `{`, `"code":"bad_request"`},
		{"open", `{"owner":"o","color":"red"}`, `unknown member \"color\"`},
		{"open", `{"owner":7}`, `"place":"owner"`},
		{"open", `{"owner":"o"} {}`, "after top-level value"},
		{"open", "{\"owner\":\"o\xff\"}", "invalid UTF-8"},
		{"open", ``, `"place":"owner"`},
		{"add", `{"batch":"x","items":1}`, `"code":"bad_id","message":"\"x\" is not an id of a batch`},
		{"add", `{"batch":"x","items":1.5}`, `"place":"items"`},
		{"ack", `{"ids":["x"]}`, `"place":"ids[0]","value":"x"`},
		{"groups", `{"batch":"0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58"}`, `"code":"no_such_batch"`},
		{"list", `{"state":"tired"}`, `"place":"state"`},
		{"list", `{"limit":-1}`, `"place":"limit"`},
		{"list", `{"owner":"\u0000"}`, `"place":"owner"`},
		{"missing", `{"batch":"0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58","after":"x"}`, `"place":"after"`},
		{"dance", `{}`, `there is no operation \"dance\"`},
	} {
		answer, err := nc.RequestWithContext(t.Context(), trackerclient.SubjectPrefix+c.subject, []byte(c.body))
		if err != nil {
			t.Errorf("%s %s: %v; want %s", c.subject, c.body, err, c.want)
		} else if !strings.Contains(string(answer.Data), c.want) {
			t.Errorf("%s %s: %s; want %s", c.subject, c.body, answer.Data, c.want)
		}
	}
	// PostgreSQL is unavailable: that is said, and may be retried.
	b.pool.Close()
	_, err := client.Open(t.Context(), trackerclient.BatchSettings{Owner: "o"})
	if bad, ok := errors.AsType[*trackerclient.Error](err); !ok || !bad.Temporary() {
		t.Errorf("%v; want an error that may pass", err)
	}
}

// With the configuration of docs/security.md the application may ask, the node answers it, and a service may not ask.
func TestWithTheDocumentedPermissions(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	system := testenv.Must(natsaccess.New(natsaccess.Roles{Trackers: []string{"web"},
		Services: []natsaccess.Grant{{Name: "accounts", To: []string{"accounts"}}}}))(t)
	config := system.Conf(nil)
	for _, m := range regexp.MustCompile(`password: \$(\w+)`).FindAllStringSubmatch(config, -1) {
		config = m[1] + ": secret\n" + config
	}
	server := testenv.NATSByConfig(t, config)
	conn := func(user string) *nats.Conn {
		return testenv.Dial(t, server.URL(), nats.UserInfo(user, "secret"))
	}
	node := conn("node")
	listener, err := trackers.Listen(node, b.service)
	if err == nil {
		err = node.FlushTimeout(soon) // Listen waits for the server for a moment only
	}
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close(t.Context()) })
	for user, may := range map[string]bool{"web": true, "accounts": false} {
		patience := map[bool]time.Duration{true: soon, false: 200 * time.Millisecond}[may]
		client := testenv.Must(trackerclient.New(conn(user), trackerclient.Config{Timeout: patience}))(t)
		_, err := client.Open(t.Context(), trackerclient.BatchSettings{Owner: user})
		testenv.Same(t, err == nil, may, "%s may open a batch: %v", user, err)
	}
	testenv.Same(t, b.count(`SELECT count(*) FROM tracker_service`), 1, "batches were opened")
}

// What was idle for too long expires, what ended long ago is deleted, and both only by the leader.
func TestTheLeaderEndsWhatEverybodyForgot(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.open(trackerclient.BatchSettings{}, 2*bitfield.Size)
	old := b.lease()
	b.resign(old)
	lease, reap := b.lease(), trackers.Reaper(b.db, zap.NewNop())
	for _, want := range []struct{ live, ended, groups int }{{0, 1, 2}, {0, 0, 0}} {
		b.exec(`UPDATE tracker_service SET active_at = active_at - interval '9 days', reap_at = tranche_now(),
			expired_at = expired_at - interval '9 days'`)
		b.exec(`UPDATE tracker_batch SET active_at = active_at - interval '9 days'`)
		before := b.count(`SELECT count(*) FROM tracker_service WHERE expired_at IS NULL`)
		_, err := reap(t.Context(), old)
		testenv.Is(t, err, workqueue.ErrNotLeader, "by one who leads no longer")
		testenv.Same(t, b.count(`SELECT count(*) FROM tracker_service WHERE expired_at IS NULL`), before,
			"one who leads no longer ended it")
		testenv.Must(reap(t.Context(), lease))(t)
		live := b.count(`SELECT count(*) FROM tracker_service WHERE expired_at IS NULL`)
		ended := b.count(`SELECT count(*) FROM tracker_service WHERE batch_id = $1 AND expired_at IS NOT NULL`, id)
		if groups := b.count(`SELECT count(*) FROM tracker_group`); live != want.live || ended != want.ended ||
			groups != want.groups {
			t.Errorf("%d are live, %d ended, with %d groups; want %+v", live, ended, groups, want)
		}
	}
}

// A call that meets an add or an ack of a billion items waits for longer than one statement may wait for a lock.
func TestCallsWaitForLargeOnes(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ctx, id := t.Context(), b.open(trackerclient.BatchSettings{}, 1)
	config := b.pool.Config().Copy()
	config.ConnConfig.RuntimeParams["lock_timeout"] = "2000" // a dozen of them are more than we may be stalled
	config.ConnConfig.RuntimeParams["application_name"] = "impatient"
	pool := testenv.Must(pgxpool.NewWithConfig(ctx, config))(t)
	defer pool.Close()
	holder := testenv.Must(b.pool.Begin(ctx))(t)
	defer func() { _ = holder.Rollback(context.Background()) }()
	testenv.Must(holder.Exec(ctx, `SELECT FROM tracker_batch WHERE id = $1 FOR UPDATE`, id))(t)
	sealed := make(chan error, 1)
	go func() {
		service := trackers.New(database.New(pool), trackers.Config{})
		_, err := service.Seal(ctx, trackerclient.BatchRequest{Batch: id.String()}, ann)
		sealed <- err
	}()
	attempts := map[string]bool{}
	testenv.Until(t, soon, "it begins again", func() bool {
		var began string
		testenv.NoError(t, b.pool.QueryRow(ctx, `SELECT coalesce(max(xact_start)::text, '') FROM pg_stat_activity
			WHERE application_name = 'impatient' AND wait_event_type = 'Lock'`).Scan(&began))
		if began != "" {
			attempts[began] = true
		}
		return len(attempts) == 2
	})
	testenv.NoError(t, holder.Rollback(ctx))
	testenv.NoError(t, <-sealed)
}
