package record

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// world is PostgreSQL as a recorder sees it, and JetStream's replies, in a bubble.
type world struct {
	*Recorder
	refuses string // the service whose replies PostgreSQL refuses
	away    bool   // PostgreSQL cannot be reached
	verdict settle.Verdict
	commits [][]string // the services of each
	aside   []string   // reasons of messages in quarantine
	settled []string   // the outcome of each message: service and how
	takes   time.Duration
}

func (w *world) Record(_ context.Context, batch []core.Recording) (out settle.Recorded, apart bool, err error) {
	if w.away {
		return out, false, errors.New("no connection")
	}
	var of []string
	for i := range batch {
		if of = append(of, batch[i].Service); batch[i].Service == w.refuses {
			return out, len(batch) > 1, &pgconn.PgError{Code: "22021"}
		}
		out.Verdicts = append(out.Verdicts, w.verdict)
	}
	w.commits = append(w.commits, of)
	<-time.After(w.takes)
	return out, false, nil
}

// unreadableReplies is the world as far as replies cannot be read.
type unreadableReplies struct{ *world }

func (w unreadableReplies) Record(context.Context, []settle.Answer) (out settle.Recorded, err error) {
	if w.away {
		return out, errors.New("no connection")
	}
	return out, nil
}

func (w *world) Quarantine(_ context.Context, m deadletter.Quarantined) error {
	w.aside = append(w.aside, m.Reason)
	return nil
}

func (w *world) GivenUp(context.Context, *settle.Answer, uuid.UUID) error {
	return errors.New("no connection")
}

func (w *world) Seen(settle.Recorded, time.Time) {}

type message struct {
	jetstream.Msg

	of   *nats.Msg
	to   *world
	from string
}

func (m message) Data() []byte         { return m.of.Data }
func (m message) Headers() nats.Header { return m.of.Header }
func (m message) Subject() string      { return m.of.Subject }

func (m message) Metadata() (*jetstream.MsgMetadata, error) { return &jetstream.MsgMetadata{}, nil }

func (m message) Ack() error { return m.end("acknowledged") }

func (m message) NakWithDelay(time.Duration) error { return m.end("given back") }

func (m message) end(how string) error {
	m.to.settled = append(m.to.settled, m.from+" "+how)
	return nil
}

// silent is JetStream, which does not say when a consumer was made.
type silent struct{ jetstream.JetStream }

func (silent) Consumer(context.Context, string, string) (jetstream.Consumer, error) {
	return nil, jetstream.ErrNoStreamResponse
}

func (w *world) reply(service, body string) core.Message {
	meta := wire.Meta{Run: uuid.New(), Slice: uuid.New(), Attempt: 1, Generation: 1, Mode: wire.ModeBatch}
	h := meta.Reply()
	h[wire.HeaderService], h[wire.HeaderFinal] = []string{service}, []string{"0"}
	return core.Message{Msg: message{of: &nats.Msg{Subject: wire.ReplySubject("e"), Header: h, Data: []byte(body)}, to: w,
		from: service}}
}

// What is committed is acknowledged. What PostgreSQL refuses, what cannot be read, and what was not requested is put
// aside, and keeps no other; while PostgreSQL is unavailable, everything is given back, and no more is read.
func TestWhatBecomesOfReplies(t *testing.T) {
	t.Parallel()
	const empty, failed = `{"slots":[]}`, `{"slots":[],"error":{"code":"too_many_deliveries","retry":true}}`
	for name, tc := range map[string]struct {
		world   world
		bodies  []string // of services a, b, …
		settled string
		commits int
		aside   string
		away    bool
	}{
		"all are taken": {world{}, []string{empty, empty, empty}, "a acknowledged, b acknowledged, c acknowledged", 1, "",
			false},
		"one is refused": {world{refuses: "b"}, []string{empty, empty, empty},
			"a acknowledged, b acknowledged, c acknowledged", 2, "refused", false},
		"one is unreadable": {world{}, []string{empty, "{"}, "a acknowledged, b acknowledged", 1, wire.ReasonJSON, false},
		"no PostgreSQL": {world{away: true}, []string{empty, empty, "{"}, "a given back, b given back, c given back", 0, "",
			true},
		"of another endpoint": {world{verdict: settle.Verdict{Endpoint: "other"}}, []string{empty}, "a acknowledged", 1,
			"wrong_endpoint", false},
		"of items that were not requested": {world{verdict: settle.Verdict{Foreign: []workqueue.Ordinal{7}}},
			[]string{empty}, "a acknowledged", 1, "foreign_ordinal", false},
		"abandoned, without a letter": {world{}, []string{failed}, "a given back", 1, "", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &tc.world
			w.Recorder = New(&core.Core{Log: zaptest.NewLogger(t), Meter: core.NoMeter{}, JS: silent{}}, nil, w, w,
				Config{RecordBatch: 4, Recorders: 2})
			w.outcomes, w.failures, w.unreadable = w, unreadableReplies{w}, w
			var batch []core.Message
			for i, body := range tc.bodies {
				batch = append(batch, w.reply(string(rune('a'+i)), body))
			}
			w.recordBatch(t.Context(), batch)
			slices.Sort(w.settled)
			if got := strings.Join(w.settled, ", "); got != tc.settled || len(w.commits) != tc.commits ||
				strings.Join(w.aside, ", ") != tc.aside || (len(w.unrecorded) > 0) != tc.away {
				t.Errorf("%s: %s, in %d commits; quarantined for %v; told that PostgreSQL is unavailable: %t", name, got,
					len(w.commits), w.aside, len(w.unrecorded) > 0)
			}
		})
	}
}

// After a slow commit replies gather for the next one, until the last one has come that may come soon.
func TestRepliesGatherWhileMoreMayCome(t *testing.T) {
	t.Parallel()
	const slow, never = 3 * quickCommit, time.Hour
	for _, tc := range []struct{ sent, comes, took time.Duration }{
		{0, 0, slow}, {time.Second, never, slow}, {0, never, 2*slow - quickCommit}, {0, slow + 1, slow + 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &world{takes: slow}
			w.Recorder = New(&core.Core{Log: zaptest.NewLogger(t), Meter: core.NoMeter{}, JS: silent{}}, nil, w, w,
				Config{RecordBatch: 4, Recorders: 2})
			w.outcomes = w
			w.node.Awaited.Sent("another")
			<-time.After(tc.sent)
			time.AfterFunc(tc.comes, func() { w.node.Awaited.Came("another") })
			begun := time.Now()
			w.commit(t.Context(), []core.Message{w.reply("a", `{"slots":[]}`)})
			testenv.Same(t, time.Since(begun), tc.took, "a commit and the gathering, %+v", tc)
		})
	}
}
