package fetch_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/start"
)

// asked is a request for a run of one step that asks an endpoint over core NATS.
func asked() start.LoadRequest {
	req := nodetest.Small("statement")
	req.Steps[0].Kind = workqueue.KindDirect
	return req
}

// Services answer as they do for the stream, and nothing of it passes through the stream.
func TestRequestsGoOverCoreNATS(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var wrong atomic.Int64
	b.Serve(t, "statement", func(ctx context.Context, chunk *nodetest.Chunk) error {
		if chunk.Param("year") != "2026" {
			wrong.Add(1)
		}
		for n, item := range chunk.Items() {
			switch {
			case item.In.ID == "C7":
				item.Fail("no_balance", "the account has no balance")
			case item.In.ID == "C300" && chunk.Meta().Attempt == 1: // left out: it is requested again
			default:
				item.Reply(nodetest.Statement{Of: item.In.ID + strings.Repeat(".", 3000*(n%2))})
			}
		}
		return ctx.Err()
	})
	var streamed atomic.Int64
	for _, subject := range []string{wire.WorkSubject("statement"), wire.ReplySubject("statement")} {
		testenv.Must(b.NC.Subscribe(subject, func(*nats.Msg) { streamed.Add(1) }))(t)
	}
	testenv.NoError(t, b.NC.FlushTimeout(nodetest.Stuck))
	req := asked()
	req.Params = map[string]string{"year": "2026"}
	run := b.Start(t, req, 2_000)
	b.Want(t, run, 1, 1_999, 1)
	testenv.Same(t, b.ErrorOf(t, run, "C7"), "no_balance: the account has no balance", "C7 failed with")
	if n := wrong.Load(); n > 0 {
		t.Errorf("%d chunks came without the parameters", n)
	}
	testenv.NoError(t, b.NC.FlushTimeout(nodetest.Stuck))
	if n := streamed.Load(); n != 0 { // the node tries the streams when they have been silent for long, but not by these
		t.Errorf("%d messages were for the streams", n)
	}
	b.Check(t)
}

// No service listens for a while. The breaker understands, no item loses an attempt, and the run continues when one is
// there.
func TestRequestsWaitForAService(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Start(t, asked(), 2_000)
	b.Await(t, "the breaker is open", `SELECT EXISTS (SELECT FROM endpoint_pace WHERE endpoint = 'statement'
		AND breaker = 'open' AND breaker_reason LIKE '%, the last one with no_listeners')`)
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	b.WantSound(t, l, run, 2_000)
	l.WantOnce(t, run, 2_000)
}

// Chunks and items that fit no message.
func TestRequestsAreCutToFit(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.SetupWith(t, embedded.NATSConfig{MaxPayload: 64 << 10})}
	b.Serve(t, "statement", nodetest.Echo)
	req := asked()
	n := 0
	loaded := testenv.Must(b.Node.Runs().Start(t.Context(), req, func(item *start.LoadItem) error {
		if n == 300 {
			return io.EOF
		}
		item.Key, item.Line = fmt.Sprintf("C%d", n), n+1
		pad := 100
		switch {
		case n == 299:
			pad = 100 << 10
		case n%10 == 0:
			pad = 20 << 10
		}
		item.Payload = fmt.Appendf(nil, `{"id":%q,"pad":%q}`, item.Key, strings.Repeat("x", pad))
		n++
		return nil
	}))(t)
	b.Want(t, loaded.Run, 1, 299, 1)
	if got := b.ErrorOf(t, loaded.Run, "C299"); !strings.HasPrefix(got, "item_too_large: ") {
		t.Errorf("the large item failed with %q", got)
	}
	b.Check(t)
}

// PROOF: who may do what, 26. Damaged items fail alone, with the remedy; damaged parameters fail every item.
func TestDamagedItemsFailAlone(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t)}
	var runs []workqueue.RunID
	for i, req := range []start.LoadRequest{nodetest.Patient(), asked(), nodetest.Patient(), asked(), nodetest.Patient(),
		asked(), nodetest.Patient(), asked(), nodetest.Patient()} {
		if i == 1 {
			testenv.NoError(t, b.Store.SetKeys([][]byte{make([]byte, 32)}))
		}
		req.Params = map[string]string{"year": "2026"}
		runs = append(runs, testenv.Must(start.New(b.Store).Load(t.Context(), req, nodetest.Items(200)))(t).Run)
	}
	runs = append(runs[1:], runs[0]) // the last one is not encrypted
	b.Exec(t, `UPDATE work_queue SET payload = '~AAAA' WHERE item_key IN ('C7', 'C9') AND run_id = ANY ($1)`, runs[:2])
	b.Exec(t, `UPDATE batchrun SET params = (SELECT params FROM batchrun WHERE id = $2) WHERE id = ANY ($1)`, runs[2:],
		runs[0])
	for i, params := range []string{`""`, `null`, `"null"`, `{"erased":true}`} {
		b.Exec(t, `UPDATE batchrun SET params = $2 WHERE id = $1`, runs[4+i], params)
	}
	b.Serve(t, "statement", func(ctx context.Context, chunk *nodetest.Chunk) error {
		testenv.Same(t, chunk.Param("year"), "2026", "the parameter")
		return nodetest.Echo(ctx, chunk)
	})
	b.Node = b.StartNode(t)
	for i, run := range runs {
		at := min(i/2, 1)
		failed, says := []int{2, 200}[at], []string{"the payload: ", "parameters: "}[at]
		b.Want(t, run, 1, 200-failed, failed)
		testenv.Says(t, errors.New(b.ErrorOf(t, run, "C7")), "item_damaged: "+says, "the error")
		testenv.Says(t, errors.New(b.ErrorOf(t, run, "C7")), []string{"run correct", "run start"}[at], "the remedy")
	}
	testenv.Must(redo.New(b.Store).Correct(t.Context(), redo.CorrectRequest{Run: runs[0], Actor: "ann",
		Items: storetest.Corrections(`{"id":"C7"}`, "C7", "C9")}))(t)
	b.Want(t, runs[0], 2, 200, 0)
	b.Check(t)
}

// listens reports whether a service listens for requests over core NATS. The server says at once when none does, and a
// service drops what does not say who asks.
func (b *bundle) listens(t *testing.T, endpoint string) bool {
	t.Helper()
	answers := testenv.Must(b.NC.SubscribeSync(b.NC.NewInbox()))(t)
	defer func() { _ = answers.Unsubscribe() }()
	err := b.NC.PublishRequest(wire.DirectSubject(endpoint), answers.Subject, nil)
	if err == nil {
		err = b.NC.FlushTimeout(nodetest.Stuck)
	}
	n, _, closed := answers.Pending()
	return err == nil && closed == nil && n == 0
}

// What was on its way when NATS went down, and is lost, is asked again long before its time is over.
func TestRequestsSurviveARestartOfNATS(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.OwnServer(t, embedded.NATSConfig{})}
	nc, toNATS := testenv.DialThrough(t, b.NS)
	b.Node = b.Join(t, b.Store, nc, nodetest.Config(t)).Node
	swallowed := make(chan *nats.Msg, 16)
	silent, err := b.NC.ChanQueueSubscribe(wire.DirectSubject("statement"), "tranche", swallowed)
	if err == nil {
		err = b.NC.FlushTimeout(nodetest.Stuck)
	}
	testenv.NoError(t, err)
	req := asked()
	req.Steps[0].Timeout = 10 * time.Minute
	run := b.Start(t, req, 1000)
	for range 10 { // all is on its way
		<-swallowed
	}
	testenv.NoError(t, silent.Unsubscribe())
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	nodetest.Until(t, "a service listens", func() bool { return b.listens(t, "statement") })
	toNATS.Cut() // it asks again soon after it is back: not before the service is
	testenv.NoError(t, b.Own.Restart(t.Context()))
	nodetest.Until(t, "the service listens again", func() bool { return b.listens(t, "statement") })
	toNATS.Heal()
	b.WantSound(t, l, run, 1000)
	if s := b.Node.Stats(); s.Republished != 10 || s.FetchesFailed > 0 {
		t.Errorf("%d requests were sent again, want 10; %d chunks failed", s.Republished, s.FetchesFailed)
	}
}

// directly answers requests over core NATS by hand. answer gets the ordinals that are asked for, and says with how many
// slots in all and in which bodies they are answered; the last one is the final message.
func (b *bundle) directly(t *testing.T, answer func(asked []int) (final int, bodies []string)) {
	t.Helper()
	_, err := b.NC.QueueSubscribe(wire.DirectSubject("statement"), "tranche", func(msg *nats.Msg) {
		var request struct {
			Items []struct {
				I int `json:"i"`
			} `json:"items"`
		}
		if err := json.Unmarshal(msg.Data, &request); err != nil {
			t.Errorf("the request cannot be read: %v", err)
			return
		}
		asked := make([]int, len(request.Items))
		for i := range asked {
			asked[i] = request.Items[i].I
		}
		slice := uuid.MustParse(msg.Header.Get(wire.HeaderSlice))
		run := uuid.MustParse(msg.Header.Get(wire.HeaderRun))
		f := nodetest.Forger{Run: workqueue.RunID(run)}
		final, bodies := answer(asked)
		for i, text := range bodies {
			n := -1
			if i == len(bodies)-1 {
				n = final
			}
			reply := f.Reply(workqueue.SliceID(slice), n, text)
			reply.Subject = msg.Header.Get(wire.HeaderReplyTo)
			testenv.Same(t, b.NC.PublishMsg(reply), nil, "a reply")
		}
	})
	if err == nil {
		err = b.NC.FlushTimeout(nodetest.Stuck)
	}
	testenv.NoError(t, err)
}

// Of a request that was sent again a second reply comes. Its messages do not stand for those of the first that are
// still to come: nothing is taken for left out.
func TestDoubledRepliesOverCoreNATS(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.directly(t, func(asked []int) (int, []string) {
		half := len(asked) / 2
		first, second := nodetest.Body(asked[:half]...), nodetest.Body(asked[half:]...)
		empty := `{"slots":[]}`
		final := []string{first, first, nodetest.Body(100_000), empty, first, second}
		return len(asked) + 1, append(final, empty)
	})
	req := asked()
	req.Steps[0].MaxAttempts = 1
	run := b.Start(t, req, 1000)
	b.Want(t, run, 1, 1000, 0)
	b.Check(t)
}

// Replies that come faster than they can be recorded are let go when they are too many, and requested again later; no
// item is blamed.
func TestTooManyRepliesOverCoreNATS(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t)}
	cfg, nc := nodetest.Config(t), testenv.Conn(t, b.NS)
	cfg.ReplyBacklog, cfg.RecordBatch = 4<<20, 1
	b.Node = b.Join(t, b.Store, nc, cfg).Node
	held := testenv.Must(b.Pool.Begin(t.Context()))(t)
	defer held.Rollback(t.Context()) //nolint:errcheck // it is over
	testenv.Must(held.Exec(t.Context(), `LOCK TABLE work_result IN SHARE MODE`))(t)
	const items, size = 180, 90 << 10
	pad := strings.Repeat("x", size)
	b.directly(t, func(asked []int) (int, []string) {
		var bodies []string
		for _, i := range asked {
			bodies = append(bodies, strings.Replace(nodetest.Body(i), `"of":"`, `"of":"`+pad, 1))
		}
		return len(asked), bodies
	})
	req := asked()
	req.Steps[0].MaxAttempts, req.Steps[0].Chunk = 1, items
	req.Steps[0].Timeout = time.Minute // it is the room that is to run out, and not the time
	run := b.Start(t, req, items)
	// The recorders and what waits for them hold about 4 MiB, the backlog as much again; the node is sent 16.
	nodetest.Until(t, "as many replies are held as may be, and the others have come", func() bool {
		return b.Node.Stats().Replies > 40 && nc.Stats().InBytes > items*size
	})
	testenv.NoError(t, held.Rollback(t.Context()))
	b.Want(t, run, 1, items, 0)
	if b.Number(t, `SELECT count(*) FROM work_slice WHERE run_id = $1 AND error_code = 'overloaded'`, run) == 0 {
		t.Errorf("nothing was dropped: %s", b.Dump(t, run))
	}
	b.Check(t)
}

// A few items of a block have parts that are far larger than those of the others, for whose mean chunks are cut. The
// node cuts what it cannot hold together, and every item is done once, when all have come to the barrier.
func TestChunksOfUnevenParts(t *testing.T) {
	t.Parallel()
	const n = 4000
	large := bytes.Repeat([]byte("x"), 2<<20)
	var most, drawn, composed, early atomic.Int64
	b := setupLocal(t, map[string]fetch.Fetcher{
		"draw": fetch.Each(func(_ context.Context, item *fetch.Item) (fetch.Part, error) {
			drawn.Add(1)
			if item.Ordinal < 30 {
				return fetch.Part{Data: large, ContentType: "text/plain"}, nil
			}
			return fetch.Part{Data: []byte("1")}, nil
		}),
		"bind": fetch.Func(func(_ context.Context, req *fetch.Request) (slots []fetch.Slot, _ error) {
			if drawn.Load() < n {
				early.Add(1)
			}
			var held int64
			for i := range req.Items {
				held += int64(len(req.Items[i].Parts["draw"].Data))
				slots = append(slots, fetch.Slot{Ordinal: req.Items[i].Ordinal, Data: []byte("2")})
			}
			composed.Add(int64(len(slots)))
			for was := most.Load(); held > was && !most.CompareAndSwap(was, held); was = most.Load() {
			}
			return slots, nil
		}),
	})
	req := local("draw")
	bind := local("bind").Steps[0]
	bind.Needs, bind.Inputs, bind.Barrier, bind.Chunk = []int{0}, []int{0}, true, 8192
	req.Steps = append(req.Steps, bind)
	run := b.Start(t, req, n)
	b.Want(t, run, 1, n, 0)
	if most.Load() > 32<<20 || composed.Load() != n {
		t.Errorf("a chunk had %d MiB of parts; %d items were composed", most.Load()>>20, composed.Load())
	}
	if early.Load() > 0 {
		t.Errorf("%d chunks began before the barrier was passed", early.Load())
	}
	if b.Node.Stats().Splits == 0 {
		t.Error("nothing was cut")
	}
	if chunk := b.Number(t, `SELECT coalesce(max(bit_count(mask)), 0) FROM work_slice WHERE run_id = $1 AND step = 1
		AND state = 'split'`, run); chunk <= 30 {
		t.Errorf("the chunk that was cut had %d items", chunk)
	}
	b.Check(t)
}
