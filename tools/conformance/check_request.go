package conformance

import (
	"bytes"
	"context"
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

func checkList(ctx context.Context, n *node) error {
	for _, count := range []int{1, 7, 300} {
		stop(n.wholly(ctx, n.sample(count)))
	}
	return nil
}

// whole sends a request and returns the reply if it has a slot for each item.
func (n *node) whole(ctx context.Context, r *request) (*answer, error) {
	a := must(n.answered(ctx, r))
	return a, a.exactly(r)
}

func (n *node) wholly(ctx context.Context, r *request) error {
	_, err := n.whole(ctx, r)
	return err
}

// awaitWhole waits for the reply to a published request and checks its slots.
func (n *node) awaitWhole(ctx context.Context, r *request) error {
	a := must(n.answer(ctx, r, 0))
	return a.exactly(r)
}

func checkOrdinals(ctx context.Context, n *node) error {
	var items []item
	for at, ordinal := range []int{0, 3, 8191, 8192, 1 << 20, math.MaxInt32} {
		items = append(items, n.item(at))
		items[at].ordinal = ordinal
	}
	return n.wholly(ctx, newRequest(items...))
}

func checkKeys(ctx context.Context, n *node) error {
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
	a := must(n.answered(ctx, r))
	if err := a.exactly(r); err != nil || !n.contract {
		return err
	}
	for ordinal, key := range keys {
		info := must(readInfo(a, ordinal))
		if info.Key != key {
			return differs(fmt.Sprintf("key %q in the handler", key), "%q", info.Key)
		}
	}
	return nil
}

type itemInfo struct {
	Key            string            `json:"key"`
	Params         map[string]string `json:"params"`
	IdempotencyKey string            `json:"idempotency_key"`
}

func readInfo(a *answer, ordinal int) (itemInfo, error) {
	var info itemInfo
	s := must(a.slot(ordinal))
	if json.Unmarshal(s.D, &info) != nil {
		return info, differs(`a result with "key", "params" and "idempotency_key"`, "%s", s)
	}
	return info, nil
}

func checkParams(ctx context.Context, n *node) error {
	params := map[string]string{"year": "2026", "Straße": `"ß" \ 街`, "empty": ""}
	written := must(json.Marshal(params))
	for _, form := range []string{`{"params":%[1]s,"items":%[2]s}`, `{"items":%[2]s,"params":%[1]s}`} {
		items := n.sample(2).items
		if n.contract {
			items[0].payload = json.RawMessage(`{"do":"info"}`)
		}
		r := newRequest(items...)
		r.body = fmt.Appendf(nil, form, written, writeItems(items))
		a := must(n.whole(ctx, r))
		stop(checkInfo(n, r, a, params))
	}
	return nil
}

func checkInfo(n *node, r *request, a *answer, params map[string]string) error {
	if !n.contract {
		return nil
	}
	info := must(readInfo(a, 0))
	if !maps.Equal(info.Params, params) {
		return differs(fmt.Sprintf("parameters %q in the handler", params), "%q", info.Params)
	}
	want := r.header.Get("Tranche-Run") + "/0/0/1"
	if info.IdempotencyKey != want {
		return differs("idempotency key run/step/ordinal/generation, "+want, "%q", info.IdempotencyKey)
	}
	return nil
}

func checkUnknown(ctx context.Context, n *node) error {
	r := n.sample(2)
	const known, newer = `{"items":[{`, `{"later":{"deep":[{"items":[]}]},"items":[{"new":[1,2],`
	r.body = bytes.Replace(r.body, []byte(known), []byte(newer), 1)
	r.body = append(bytes.TrimSuffix(r.body, []byte("}")), `,"trailer":null}`...)
	for name, value := range map[string]string{
		"Tranche-Future": "yes", "X-Other": "1", "Nats-TTL": "60s", "Tranche-Origin": "a test",
	} {
		r.header.Set(name, value)
	}
	return n.wholly(ctx, r)
}

func sameJSON(a, b []byte) bool {
	var left, right any
	return json.Unmarshal(a, &left) == nil && json.Unmarshal(b, &right) == nil && reflect.DeepEqual(left, right)
}

func checkZstd(ctx context.Context, n *node) error {
	for _, how := range []func([]byte) []byte{compress, compressStream} {
		r := n.sample(100)
		r.body = how(r.body)
		r.header.Set(wire.HeaderEncoding, "zstd")
		stop(n.wholly(ctx, r))
	}
	return nil
}

func checkZstdFrames(ctx context.Context, n *node) error {
	r := n.sample(100)
	third := len(r.body) / 3
	r.body = bytes.Join([][]byte{
		compress(r.body[:third]), compressStream(r.body[third : 2*third]), compress(r.body[2*third:]),
	}, nil)
	r.header.Set(wire.HeaderEncoding, "zstd")
	return n.wholly(ctx, r)
}

func checkZstdBomb(ctx context.Context, n *node) error {
	r := n.sample(1)
	r.body = compressStream(append(bytes.Repeat([]byte(" "), 17<<20), r.body...))
	r.header.Set(wire.HeaderEncoding, "zstd")
	return n.refused(ctx, r)
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

func checkBig(ctx context.Context, n *node) error {
	const count = 25
	size := int(n.nc.MaxPayload()) / 10
	var list []order
	for range count {
		list = append(list, order{"do": "big", "n": size})
	}
	r := orders(list...)
	a := must(n.whole(ctx, r))
	for ordinal := range count {
		s := must(a.slot(ordinal))
		if len(s.D) != size+2 {
			return differs(fmt.Sprintf("a text of %d characters", size), "%s", s)
		}
	}
	return oneFinal(a)
}

// checkPieces requests a long text, bytes in several pieces, and small results. Services without pieces must say so.
func checkPieces(ctx context.Context, n *node) error {
	text, size := int(n.nc.MaxPayload()), 2*int(n.nc.MaxPayload())+1
	r := orders(order{"do": "echo", "value": 1}, order{"do": "big", "n": text},
		order{"do": "bytes", "n": size, "type": "application/pdf"}, order{"do": "echo", "value": 3})
	a := must(n.whole(ctx, r))
	slots := a.slots()
	for _, m := range a.messages {
		if wire.HeaderSize(m.header)+len(m.data) > int(n.nc.MaxPayload()) || m.piece == nil && wire.IsPiece(m.header) {
			_, err := wire.ParsePiece(m.subject, m.header, m.data)
			return differs("pieces that a node can read", "%v", err)
		}
	}
	if s := slots[1]; !noPieces(s) && string(s.D) != `"`+strings.Repeat("x", text)+`"` {
		return differs(fmt.Sprintf("the text of %d bytes as application/json, or the error result_too_large", text+2),
			"%s", s)
	}
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i)
	}
	s := slots[2]
	right := s.B != nil && *s.B == base64.StdEncoding.EncodeToString(want) && s.T == "application/pdf"
	if !noPieces(s) && !right {
		return differs(fmt.Sprintf("%d bytes of application/pdf, or the error result_too_large", size), "%s", s)
	}
	return oneFinal(a)
}

// noPieces reports whether a slot says that the service does not send pieces.
func noPieces(s slot) bool { return s.E != nil && s.E.Code == wire.CodeResultTooLarge && !s.E.Retry }

func checkTooLarge(ctx context.Context, n *node) error {
	n.more = 4 * patience //nolint:mnd // it makes 64 MiB on a possibly busy machine
	defer func() { n.more = 0 }()
	a := must(n.obeyed(ctx, order{"do": "echo", "value": 1}, order{"do": "big", "n": wire.MaxResult},
		order{"do": "echo", "value": 3}))
	s := must(a.slot(1))
	if !noPieces(s) {
		return differs("the error result_too_large, not to be retried", "%s", s)
	}
	if a.sent() != 3 {
		return differs("slots for the other items anyway", "%s", a)
	}
	return nil
}
