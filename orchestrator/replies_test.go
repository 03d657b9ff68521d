package orchestrator_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Every message of every reply comes ten times, in any order, some of them late.
func TestRepliesTenTimesInAnyOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.startNode(t)
	f, slices := b.forge(t, 50, 1000)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var msgs []*nats.Msg
	for _, s := range slices {
		items := b.items(t, s.ID)
		for range 10 {
			msgs = append(msgs, f.reply(s.ID, -1, body(items[:20]...)), f.reply(s.ID, len(items), body(items[20:]...)))
		}
	}
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(msgs), func(i, j int) { msgs[i], msgs[j] = msgs[j], msgs[i] })
	f.publish(t, msgs...)
	if done, failed := b.outcome(t, f.run, 1); done != 1000 || failed != 0 {
		t.Errorf("done %d, failed %d; want 1000 done", done, failed)
	}
	b.wantRight(t, f.run, 1000)
	b.wantDrained(t)
	if n := len(b.reasons(t)); n != 0 {
		t.Errorf("quarantined: %v", b.reasons(t))
	}
	b.check(t)
}

// A service that goes wrong in every way there is, and strangers who write to its reply subject: each message is put
// aside with its reason, and the consumer goes on. The slice of which a reply could not be read comes again at once, in
// halves; what others say about a slice changes nothing. The honest replies that come last count.
func TestRepliesThatCannotBeTaken(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f, slices := b.forge(t, 10, 40)
	other, others := b.forge(t, 10, 20)
	bomb := func() string {
		var out bytes.Buffer
		w, err := zstd.NewWriter(&out)
		if err != nil {
			t.Fatal(err)
		}
		zeros := make([]byte, 1<<20)
		for range 300 {
			if _, err := w.Write(zeros); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}()
	s := slices[0].ID
	items := b.items(t, s)
	with := func(msg *nats.Msg, header, value string) *nats.Msg {
		msg.Header[header] = []string{value}
		return msg
	}
	elsewhere := f.reply(slices[1].ID, 10, body(b.items(t, slices[1].ID)...))
	broken := f.reply(slices[1].ID, 10, "{{{ not JSON")
	elsewhere.Subject, broken.Subject = wire.ReplySubject("invoice"), wire.ReplySubject("invoice")
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	many := strings.TrimSuffix(strings.Repeat(`{"i":1,"d":1},`, 9000), ",")
	wrong := map[string]*nats.Msg{
		"garbage":         f.reply(s, 10, "\x00\xff{{{ not JSON"),
		"empty":           f.reply(s, 10, ""),
		"truncated":       f.reply(s, 10, body(items...)[:100]),
		"deeply nested":   f.reply(s, 10, `{"slots":[{"i":0,"d":`+deep+`}]}`),
		"bomb":            with(f.reply(s, 10, bomb), wire.HeaderEncoding, "zstd"),
		"not zstd":        with(f.reply(s, 10, body(items...)), wire.HeaderEncoding, "zstd"),
		"other encoding":  with(f.reply(s, 10, body(items...)), wire.HeaderEncoding, "br"),
		"other version":   with(f.reply(s, 10, body(items...)), wire.HeaderVersion, "2"),
		"no slice":        with(f.reply(s, 10, body(items...)), wire.HeaderSlice, "x"),
		"too many slots":  f.reply(s, 9000, `{"slots":[`+many+`]}`),
		"negative":        f.reply(s, 1, `{"slots":[{"i":-1,"d":1}]}`),
		"huge ordinal":    f.reply(s, 1, `{"slots":[{"i":99999999999999999999,"d":1}]}`),
		"foreign ordinal": f.reply(slices[1].ID, -1, body(b.items(t, slices[2].ID)...)),
		"other endpoint":  elsewhere,
		"garbage from it": broken,
	}
	for name, msg := range wrong {
		msg.Header["X-Test"] = []string{name + " \xff"}
		f.publish(t, msg)
	}
	unknown := f.reply(workqueue.SliceID(uuid.New()), 10, body(items...)) // stale, not quarantined
	// Another run's slice, answered under this run's name: the slice decides.
	f.publish(t, unknown, f.reply(others[0].ID, 10, body(b.items(t, others[0].ID)...)))
	b.wantDrained(t)
	until(t, "everything wrong is in quarantine", func() bool {
		total := 0
		for _, n := range b.reasons(t) {
			total += n
		}
		return total == len(wrong)
	})
	t.Logf("reasons %v", b.reasons(t))
	if r := b.reasons(t); r["foreign_ordinal"] != 1 || r["wrong_endpoint"] != 1 {
		t.Errorf("reasons %v", r)
	}
	if n, again := b.node.Stats().Stale, b.again(t); n < 1 || n > 1+again {
		t.Errorf("%d stale replies, %d came again; want the one of an unknown slice", n, again)
	}
	b.check(t)
	for _, now := range b.sent(t, f.run, 5) { // three untouched ones and two halves
		items := b.items(t, now.ID)
		doubled := append(append([]int{}, items...), items...)
		f.publish(t, f.reply(now.ID, len(doubled), body(doubled...)))
	}
	other.publish(t, other.reply(others[1].ID, 10, body(b.items(t, others[1].ID)...)))
	for _, run := range []workqueue.RunID{f.run, other.run} {
		if _, failed := b.outcome(t, run, 1); failed != 0 {
			t.Errorf("%d items failed", failed)
		}
	}
	b.wantRight(t, f.run, 40)
	b.wantRight(t, other.run, 20)
	until(t, "the doubled slots are counted", func() bool { return b.node.Stats().Duplicates >= 40 })
	if n := b.node.Stats().Duplicates; n != 40 {
		t.Errorf("%d doubled slots; want 40", n)
	}
	b.check(t)
}

// A reply that leaves items out, and one that comes after its deadline: the items come again in another slice.
func TestRepliesThatAreShortOrLate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f, slices := b.forge(t, 10, 20)
	short, late := slices[0].ID, slices[1].ID
	missing := b.items(t, short)[4:]
	f.publish(t, f.reply(short, 4, body(b.items(t, short)[:4]...)))
	const pass = `UPDATE work_slice SET deadline = clock_timestamp(), stream_seq = NULL WHERE id = $1`
	if _, err := b.pool.Exec(t.Context(), pass, late); err != nil {
		t.Fatal(err)
	}
	until(t, "both slices are over", func() bool {
		var open int
		err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM work_slice WHERE id = ANY($1) AND state = 'sent'`,
			[]workqueue.SliceID{short, late}).Scan(&open)
		return err == nil && open == 0
	})
	again := b.sent(t, f.run, 2)
	b.wantDrained(t) // the short reply does not come again
	before := b.node.Stats().Stale
	f.publish(t, f.reply(late, 10, body(b.items(t, late)...)))
	until(t, "the late reply is seen", func() bool { return b.node.Stats().Stale > before })
	answered := 0
	for _, s := range again {
		items := b.items(t, s.ID)
		answered += len(items)
		f.publish(t, f.reply(s.ID, len(items), body(items...)))
	}
	if answered != len(missing)+10 {
		t.Errorf("%d items came again; want %d", answered, len(missing)+10)
	}
	b.outcome(t, f.run, 1)
	b.wantRight(t, f.run, 20)
	b.check(t)
}

// Items of a third of max_payload, replies as large, one item that fits in no message.
func TestMessagesOverMaxPayload(t *testing.T) {
	t.Parallel()
	const limit = 64 << 10
	b := setupWith(t, testenv.Pool(t), embedded.NATSConfig{MaxPayload: limit})
	var mu sync.Mutex
	most := 0
	b.serve(t, "statement", func(_ context.Context, chunk *endpoints.Chunk[account, statement]) error {
		mu.Lock()
		most = max(most, len(chunk.Items()))
		mu.Unlock()
		for _, item := range chunk.Items() {
			item.Reply(statement{Of: item.In.ID})
		}
		return nil
	})
	const count, giant = 60, 17
	source := items(count)
	n := 0
	req := patient()
	req.Steps[0].Timeout = 40 * time.Second // more than it takes when a delivery is lost, or two
	loaded, err := b.node.Starts().Start(t.Context(), req, func(item *start.LoadItem) error {
		err := source(item)
		size := limit / 3
		if n == giant {
			size = 2 * limit
		}
		item.Payload = fmt.Appendf(nil, `{"id":%q}`, strings.Repeat("x", size))
		n++
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if done, failed := b.outcome(t, loaded.Run, 1); done != count-1 || failed != 1 {
		t.Errorf("done %d, failed %d; want all but one done", done, failed)
	}
	var ordinal int
	var code, message string
	err = b.pool.QueryRow(t.Context(), `SELECT ordinal, error_code, error_message FROM work_part
		WHERE error_code IS NOT NULL`).Scan(&ordinal, &code, &message)
	if err != nil || ordinal != giant || code != "item_too_large" || !strings.Contains(message, "65536") {
		t.Errorf("item %d failed with %s: %s (%v)", ordinal, code, message, err)
	}
	var right int
	err = b.pool.QueryRow(t.Context(), `SELECT count(*) FROM work_part p JOIN work_queue q USING (run_id, ordinal)
		WHERE convert_from(p.result, 'utf8')::json->>'of' = q.payload::json->>'id'`).Scan(&right)
	if err != nil || right != count-1 {
		t.Errorf("%d results are right, %v", right, err)
	}
	mu.Lock()
	if most > 2 {
		t.Errorf("a request held %d items of a third of max_payload", most)
	}
	mu.Unlock()
	if b.node.Stats().Splits == 0 {
		t.Error("no slice was cut: the requests were not too large")
	}
	if n := b.node.Stats().Expired; n != 0 {
		t.Errorf("%d slices had to wait for their deadline", n)
	}
	b.check(t)
}
