package conformance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/tranchehq/tranche/endpoints/wire"
)

func checkList(ctx context.Context, n *node) {
	for _, count := range []int{1, 7, 300} {
		n.whole(ctx, n.sample(count))
	}
}

// whole sends a request and returns the reply, which must have a slot for each item.
func (n *node) whole(ctx context.Context, r *request) *answer {
	n.ask(ctx, r)
	return n.awaitWhole(ctx, r)
}

func (n *node) awaitWhole(ctx context.Context, r *request) *answer {
	a := must(n.answer(ctx, r, 0))
	stop(a.exactly(r))
	return a
}

func checkOrdinals(ctx context.Context, n *node) {
	var items []item
	for at, ordinal := range []int{0, 3, 8191, 8192, 1 << 20, math.MaxInt32} {
		items = append(items, n.item(at))
		items[at].ordinal = ordinal
	}
	n.whole(ctx, newRequest(items...))
}

func checkKeys(ctx context.Context, n *node) {
	keys := []string{
		`a "quoted" key`, `back\slash`, "ключ 鍵 🗝 é", "line\nfeed, tab\tand bell\a", "", "</script>&'",
		strings.Repeat("long", 100),
	}
	var items []item
	for ordinal, key := range keys {
		items = append(items, n.item(ordinal))
		items[ordinal].key = key
		if n.contract {
			items[ordinal].payload = json.RawMessage(`{"do":"info"}`)
		}
	}
	r := newRequest(items...)
	a := n.whole(ctx, r)
	if !n.contract {
		return
	}
	for ordinal, key := range keys {
		if info := readInfo(a, ordinal); info.Key != key {
			fail(fmt.Sprintf("key %q in the handler", key), "%q", info.Key)
		}
	}
}

type itemInfo struct {
	Key            string            `json:"key"`
	Params         map[string]string `json:"params"`
	IdempotencyKey string            `json:"idempotency_key"`
}

func readInfo(a *answer, ordinal int) (info itemInfo) {
	s := a.slot(ordinal)
	if json.Unmarshal(s.D, &info) != nil {
		fail(`a result with "key", "params" and "idempotency_key"`, "%s", s)
	}
	return info
}

func checkParams(ctx context.Context, n *node) {
	params := map[string]string{"year": "2026", "Straße": `"ß" \ 街`, "empty": ""}
	written := must(json.Marshal(params))
	for _, form := range []string{`{"params":%[1]s,"items":%[2]s}`, `{"items":%[2]s,"params":%[1]s}`} {
		items := n.sample(2).items
		if n.contract {
			items[0].payload = json.RawMessage(`{"do":"info"}`)
		}
		r := newRequest(items...)
		r.body = fmt.Appendf(nil, form, written, writeItems(items))
		a := n.whole(ctx, r)
		if n.contract {
			checkInfo(r, a, params)
		}
	}
}

func checkInfo(r *request, a *answer, params map[string]string) {
	info := readInfo(a, 0)
	if !maps.Equal(info.Params, params) {
		fail(fmt.Sprintf("parameters %q in the handler", params), "%q", info.Params)
	}
	want := fmt.Sprintf("%s/0/0/1/%.8x", r.header.Get("Tranche-Run"), sha256.Sum256([]byte(info.Key)))
	if info.IdempotencyKey != want {
		fail("idempotency key run/step/ordinal/generation/hash, "+want, "%q", info.IdempotencyKey)
	}
}

func checkUnknown(ctx context.Context, n *node) {
	r := n.sample(2)
	const known, newer = `{"items":[{`, `{"later":{"deep":[{"items":[]}]},"items":[{"new":[1,2],`
	r.body = bytes.Replace(r.body, []byte(known), []byte(newer), 1)
	r.body = append(bytes.TrimSuffix(r.body, []byte("}")), `,"trailer":null}`...)
	for name, value := range map[string]string{
		"Tranche-Future": "yes", "X-Other": "1", "Nats-TTL": "60s", "Tranche-Origin": "a test",
	} {
		r.header.Set(name, value)
	}
	n.whole(ctx, r)
}

func sameJSON(a, b []byte) bool {
	var left, right any
	return json.Unmarshal(a, &left) == nil && json.Unmarshal(b, &right) == nil && reflect.DeepEqual(left, right)
}

func checkZstd(ctx context.Context, n *node) {
	for _, how := range []func([]byte) []byte{compress, compressStream} {
		r := n.sample(100)
		r.body = how(r.body)
		r.header.Set(wire.HeaderEncoding, "zstd")
		n.whole(ctx, r)
	}
}

func checkZstdFrames(ctx context.Context, n *node) {
	r := n.sample(100)
	third := len(r.body) / 3
	r.body = bytes.Join([][]byte{
		compress(r.body[:third]), compressStream(r.body[third : 2*third]), compress(r.body[2*third:]),
	}, nil)
	r.header.Set(wire.HeaderEncoding, "zstd")
	n.whole(ctx, r)
}

func checkZstdBomb(ctx context.Context, n *node) {
	r := n.sample(1)
	r.body = compressStream(append(bytes.Repeat([]byte(" "), 17<<20), r.body...))
	r.header.Set(wire.HeaderEncoding, "zstd")
	n.refused(ctx, r)
}

// compress returns data as one frame with its content size.
func compress(data []byte) []byte {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err) // the options are constants
	}
	defer func() { _ = encoder.Close() }() // it writes nowhere
	return encoder.EncodeAll(data, nil)
}

// compressStream returns data as one frame without its content size, like streaming encoders.
func compressStream(data []byte) []byte {
	var out bytes.Buffer
	encoder, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<16),
		zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		panic(err) // the options are constants
	}
	half := len(data) / 2
	for _, part := range [][]byte{data[:half], data[half:]} {
		_, _ = encoder.Write(part) // a buffer accepts everything
		_ = encoder.Flush()
	}
	_ = encoder.Close()
	return out.Bytes()
}

// decompress returns what is readable.
func decompress(data []byte) []byte {
	decoder, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil
	}
	defer decoder.Close()
	out, _ := io.ReadAll(io.LimitReader(decoder, 64<<20)) // missing data shows up in the answer
	return out
}

func checkBig(ctx context.Context, n *node) {
	const count = 25
	size := int(n.nc.MaxPayload()) / 10
	var list []order
	for range count {
		list = append(list, order{"do": "big", "n": size})
	}
	r := orders(list...)
	a := n.whole(ctx, r)
	for ordinal := range count {
		s := a.slot(ordinal)
		if len(s.D) != size+2 {
			fail(fmt.Sprintf("a text of %d characters", size), "%s", s)
		}
	}
	oneFinal(a)
}

// checkPieces requests a long text, bytes in several pieces, and small results. Services without pieces must say so.
func checkPieces(ctx context.Context, n *node) {
	text, size := int(n.nc.MaxPayload()), 2*int(n.nc.MaxPayload())+1
	r := orders(order{"do": "echo", "value": 1}, order{"do": "big", "n": text},
		order{"do": "bytes", "n": size, "type": "application/pdf"}, order{"do": "echo", "value": 3})
	a := n.whole(ctx, r)
	slots := a.slots()
	for _, m := range a.messages {
		if wire.HeaderSize(m.header)+len(m.data) > int(n.nc.MaxPayload()) || m.piece == nil && wire.IsPiece(m.header) {
			_, err := wire.ParsePiece(m.subject, m.header, m.data)
			fail("pieces that a node can read", "%v", err)
		}
	}
	if s := slots[1]; !noPieces(s) && string(s.D) != `"`+strings.Repeat("x", text)+`"` {
		fail(fmt.Sprintf("the text of %d bytes as application/json, or the error result_too_large", text+2),
			"%s", s)
	}
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i)
	}
	s := slots[2]
	right := s.B != nil && *s.B == base64.StdEncoding.EncodeToString(want) && s.T == "application/pdf"
	if !noPieces(s) && !right {
		fail(fmt.Sprintf("%d bytes of application/pdf, or the error result_too_large", size), "%s", s)
	}
	oneFinal(a)
}

// noPieces reports whether a slot says that the service does not send pieces.
func noPieces(s slot) bool { return s.E != nil && s.E.Code == wire.CodeResultTooLarge && !s.E.Retry }

func checkTooLarge(ctx context.Context, n *node) {
	n.more = 4 * patience // it makes 64 MiB on a possibly busy machine
	defer func() { n.more = 0 }()
	a := n.obeyed(ctx, order{"do": "echo", "value": 1}, order{"do": "big", "n": wire.MaxResult},
		order{"do": "echo", "value": 3})
	s := a.slot(1)
	if !noPieces(s) {
		fail("the error result_too_large, not to be retried", "%s", s)
	}
	if a.sent() != 3 {
		fail("slots for the other items anyway", "%s", a)
	}
}
