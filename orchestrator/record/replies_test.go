package record_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

// A service that goes wrong in every way there is, and strangers who write to its reply subject: each message is put
// aside with its reason, and the consumer continues. The slice of an unreadable reply comes again immediately, in
// halves; what others say about a slice changes nothing. The honest replies that come last count.
func TestRepliesThatCannotBeTaken(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f, slices := b.Forge(t, 10, 40)
	other, others := b.Forge(t, 10, 20)
	bomb := func() string {
		var out bytes.Buffer
		w := testenv.Must(zstd.NewWriter(&out))(t)
		zeros := make([]byte, 1<<20)
		for range 2 * wire.DefaultMaxBody >> 20 {
			testenv.Must(w.Write(zeros))(t)
		}
		testenv.NoError(t, w.Close())
		return out.String()
	}()
	s := slices[0].ID
	items := b.Items(t, s)
	with := func(msg *nats.Msg, header, value string) *nats.Msg {
		msg.Header[header] = []string{value}
		return msg
	}
	elsewhere := f.Reply(slices[1].ID, 10, nodetest.Body(b.Items(t, slices[1].ID)...))
	broken := f.Reply(slices[1].ID, 10, "{{{ not JSON")
	elsewhere.Subject, broken.Subject = wire.ReplySubject("invoice"), wire.ReplySubject("invoice")
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	many := strings.TrimSuffix(strings.Repeat(`{"i":1,"d":1},`, 9000), ",")
	wrong := map[string]*nats.Msg{
		"garbage":         f.Reply(s, 10, "\x00\xff{{{ not JSON"),
		"empty":           f.Reply(s, 10, ""),
		"truncated":       f.Reply(s, 10, nodetest.Body(items...)[:100]),
		"deeply nested":   f.Reply(s, 10, `{"slots":[{"i":0,"d":`+deep+`}]}`),
		"bomb":            with(f.Reply(s, 10, bomb), wire.HeaderEncoding, "zstd"),
		"not zstd":        with(f.Reply(s, 10, nodetest.Body(items...)), wire.HeaderEncoding, "zstd"),
		"other encoding":  with(f.Reply(s, 10, nodetest.Body(items...)), wire.HeaderEncoding, "br"),
		"other version":   with(f.Reply(s, 10, nodetest.Body(items...)), wire.HeaderVersion, "2"),
		"no slice":        with(f.Reply(s, 10, nodetest.Body(items...)), wire.HeaderSlice, "x"),
		"too many slots":  f.Reply(s, 9000, `{"slots":[`+many+`]}`),
		"negative":        f.Reply(s, 1, `{"slots":[{"i":-1,"d":1}]}`),
		"huge ordinal":    f.Reply(s, 1, `{"slots":[{"i":99999999999999999999,"d":1}]}`),
		"foreign ordinal": f.Reply(slices[1].ID, -1, nodetest.Body(b.Items(t, slices[2].ID)...)),
		"other endpoint":  elsewhere,
		"garbage from it": broken,
	}
	for name, msg := range wrong {
		msg.Header["X-Test"] = []string{name + " \xff"}
		f.Publish(t, msg)
	}
	unknown := f.Reply(workqueue.SliceID(uuid.New()), 10, nodetest.Body(items...)) // stale, not quarantined
	// Another run's slice, answered under this run's name: the slice decides.
	f.Publish(t, unknown, f.Reply(others[0].ID, 10, nodetest.Body(b.Items(t, others[0].ID)...)))
	b.WantDrained(t)
	aside, reasons := 0, b.Reasons(t)
	for _, n := range reasons {
		aside += n
	}
	if aside != len(wrong) || reasons["foreign_ordinal"] != 1 || reasons["wrong_endpoint"] != 1 {
		t.Errorf("%d were quarantined for reasons %v; want %d", aside, reasons, len(wrong))
	}
	if n, again := b.Node.Stats().Stale, b.Again(t); n < 1 || n > 1+again {
		t.Errorf("%d stale replies, %d came again; want the one of an unknown slice", n, again)
	}
	b.Check(t)
	for _, now := range b.Sent(t, f.Run, 5) { // three untouched ones and two halves
		items := b.Items(t, now.ID)
		doubled := append(append([]int{}, items...), items...)
		f.Publish(t, f.Reply(now.ID, len(doubled), nodetest.Body(doubled...)))
	}
	other.Publish(t, other.Reply(others[1].ID, 10, nodetest.Body(b.Items(t, others[1].ID)...)))
	for _, run := range []workqueue.RunID{f.Run, other.Run} {
		_, failed := b.Outcome(t, run, 1)
		testenv.Same(t, failed, 0, "items that failed")
	}
	b.WantRight(t, f.Run, 40)
	b.WantRight(t, other.Run, 20)
	b.WantDrained(t) // a reply is counted before it is acknowledged
	testenv.Same(t, b.Node.Stats().Duplicates, 40, "doubled slots")
	b.Check(t)
}

// Items of a third of max_payload, replies as large, one item that fits in no message.
func TestMessagesOverMaxPayload(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	b := &bundle{nodetest.SetupWith(t, embedded.NATSConfig{MaxPayload: limit})}
	var mu sync.Mutex
	most := 0
	b.Serve(t, "statement", func(_ context.Context, chunk *nodetest.Chunk) error {
		mu.Lock()
		most = max(most, len(chunk.Items()))
		mu.Unlock()
		for _, item := range chunk.Items() {
			item.Reply(nodetest.Statement{Of: item.In.ID})
		}
		return nil
	})
	const count, giant = 60, 17
	source := nodetest.Items(count)
	n := 0
	req := nodetest.Patient()
	loaded := testenv.Must(b.Node.Runs().Start(t.Context(), req, func(item *start.LoadItem) error {
		err := source(item)
		size := limit / 3
		if n == giant {
			size = 2 * limit
		}
		item.Payload = fmt.Appendf(nil, `{"id":%q}`, strings.Repeat("x", size))
		n++
		return err
	}))(t)
	b.Want(t, loaded.Run, 1, count-1, 1)
	var ordinal int
	var code, message string
	err := b.Pool.QueryRow(t.Context(), `SELECT ordinal, error_code, error_message FROM work_result
		WHERE error_code IS NOT NULL`).Scan(&ordinal, &code, &message)
	if err != nil || ordinal != giant || code != "item_too_large" || !strings.Contains(message, "65536") {
		t.Errorf("item %d failed with %s: %s (%v)", ordinal, code, message, err)
	}
	testenv.Same(t, b.Number(t, `SELECT count(*) FROM work_result p JOIN work_queue q USING (run_id, ordinal)
		WHERE convert_from(p.result, 'utf8')::json->>'of' = q.payload::json->>'id'`), count-1, "right results")
	mu.Lock()
	if most > 2 {
		t.Errorf("a request held %d items of a third of max_payload", most)
	}
	mu.Unlock()
	if b.Node.Stats().Splits == 0 {
		t.Error("no slice was cut: the requests were not too large")
	}
	testenv.Same(t, b.Node.Stats().Expired, 0, "slices had to wait for their deadline")
	b.Check(t)
}
