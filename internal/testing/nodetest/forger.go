package nodetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// Forger sends replies that the SDK never would.
type Forger struct {
	JS  jetstream.JetStream
	Run workqueue.RunID
}

// Sent waits until this many requests of a run are in flight, and returns their slices, the oldest first.
func (b *Bundle) Sent(t *testing.T, run workqueue.RunID, want int) []workqueue.Slice {
	t.Helper()
	var found []workqueue.Slice
	Until(t, "the requests are sent", func() bool {
		rows, err := b.Pool.Query(t.Context(), `SELECT id, block FROM work_slice WHERE run_id = $1 AND state = 'sent'
			ORDER BY created_at, id`, run)
		testenv.NoError(t, err)
		found = found[:0]
		for rows.Next() {
			s := workqueue.Slice{Run: run}
			testenv.NoError(t, rows.Scan(&s.ID, &s.Block))
			found = append(found, s)
		}
		return rows.Err() == nil && len(found) == want
	})
	return found
}

func (b *Bundle) Items(t *testing.T, id workqueue.SliceID) []int {
	t.Helper()
	var all []int
	err := b.Pool.QueryRow(t.Context(), `SELECT array_agg(block * 8192 + bit ORDER BY bit)
		FROM work_slice, generate_series(0, 8191) bit WHERE id = $1 AND get_bit(mask, bit) = 1`, id).Scan(&all)
	testenv.NoError(t, err)
	return all
}

// Body returns a reply that answers each item with its own key.
func Body(items ...int) string {
	var slots []string
	for _, i := range items {
		slots = append(slots, fmt.Sprintf(`{"i":%d,"d":{"of":"C%d"}}`, i, i))
	}
	return `{"slots":[` + strings.Join(slots, ",") + `]}`
}

// Reply returns a message of a reply to a slice.
func (f *Forger) Reply(slice workqueue.SliceID, final int, body string) *nats.Msg {
	msg := nats.NewMsg(wire.ReplySubject("statement"))
	msg.Header = nats.Header{
		wire.HeaderVersion: {wire.ProtocolVersion}, wire.HeaderRun: {f.Run.String()},
		wire.HeaderStep: {"0"}, wire.HeaderSlice: {slice.String()}, wire.HeaderAttempt: {"1"},
		wire.HeaderGeneration: {"1"}, wire.HeaderMode: {"batch"}, wire.HeaderService: {"forger"},
	}
	if final >= 0 {
		msg.Header[wire.HeaderFinal] = []string{fmt.Sprint(final)}
	}
	msg.Data = []byte(body)
	return msg
}

func (f *Forger) Publish(t *testing.T, msgs ...*nats.Msg) {
	t.Helper()
	for _, msg := range msgs {
		testenv.Must(f.JS.PublishMsg(t.Context(), msg))(t)
	}
}

// Forge starts a run without a service, and waits until its requests are in the stream.
func (b *Bundle) Forge(t *testing.T, chunk, n int) (*Forger, []workqueue.Slice) {
	t.Helper()
	req := Patient()
	req.Steps[0].Chunk, req.Steps[0].InFlight = chunk, 100
	f := &Forger{JS: b.JS(t), Run: b.Start(t, req, n)}
	return f, b.Sent(t, f.Run, n/chunk)
}

// Reasons counts the messages in quarantine by reason. Only a redelivered one may be there twice.
func (b *Bundle) Reasons(t *testing.T) map[string]int {
	t.Helper()
	twice := b.Number(t, `SELECT count(*) - count(DISTINCT (subject, headers, body)) FROM quarantine`)
	if n := b.Again(t); int64(twice) > n {
		t.Errorf("%d messages were quarantined again, and %d delivered again", twice, n)
	}
	rows, err := b.Pool.Query(t.Context(), `SELECT reason, count(DISTINCT (subject, headers, body)) FROM quarantine
		GROUP BY reason`)
	testenv.NoError(t, err)
	counts := map[string]int{}
	var reason string
	var n int
	for rows.Next() {
		testenv.NoError(t, rows.Scan(&reason, &n))
		counts[reason] = n
	}
	return counts
}

// WantDrained waits until the consumer has processed every reply, including unreadable ones.
func (b *Bundle) WantDrained(t *testing.T) {
	t.Helper()
	js := b.JS(t)
	Until(t, "all replies are consumed", func() bool {
		stream, err := js.Stream(t.Context(), wire.StreamReply)
		return err == nil && stream.CachedInfo().State.Msgs == 0
	})
}

// Again returns the number of redeliveries of replies.
func (b *Bundle) Again(t *testing.T) int64 {
	t.Helper()
	recorder := testenv.Must(b.JS(t).Consumer(t.Context(), wire.StreamReply, wire.RecorderConsumer))(t)
	delivered := recorder.CachedInfo().Delivered
	return int64(delivered.Consumer) - int64(delivered.Stream)
}
