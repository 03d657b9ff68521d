package record_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/export"
)

// pattern is n bytes that are others at each place, and for each n.
func pattern(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte(fmt.Appendf(nil, "%032d", n))).Read(b)
	return b
}

// serveBytes answers each item with so many bytes as size says.
func serveBytes(t *testing.T, nc *nats.Conn, endpoint string, size func(key string) int) {
	t.Helper()
	svc, err := endpoints.New(nc, endpoints.Config{Name: "test", Version: "1.0.0", Log: zaptest.NewLogger(t)})
	testenv.NoError(t, err)
	err = endpoints.HandleEach(svc, endpoint, func(_ context.Context, in nodetest.Account) (*wire.Binary, error) {
		return &wire.Binary{ContentType: "application/pdf", Data: pattern(size(in.ID))}, nil
	})
	testenv.NoError(t, err)
	nodetest.Run(t, "service", svc.Run)
}

// result reads the result of an item, all of it.
func (b *bundle) result(t *testing.T, run workqueue.RunID, key string) (export.Result, []byte) {
	t.Helper()
	found := testenv.Must(export.New(b.Store).Result(t.Context(), export.ResultRequest{Run: run, Key: key}))(t)
	if !found.Large.Valid {
		return found, found.Body
	}
	r := testenv.Must(export.New(b.Store).OpenResult(t.Context(), found.Large.UUID))(t)
	all := testenv.Must(io.ReadAll(r))(t)
	return found, all
}

// Results around what a message holds, around a piece, and of the most bytes that there may be.
func TestResultsOfAnySize(t *testing.T) {
	t.Parallel()
	b := setup(t)
	sizes := map[string]int{
		"C0": 1, "C1": 700 << 10, "C2": 785_000, "C3": 786_432, "C4": 2_000_000, "C5": 4 * wire.DefaultPiece,
		"C6": 4*wire.DefaultPiece + 1, "C7": 4*wire.DefaultPiece - 1,
	}
	var tooLarge int64
	if !testenv.Race { // which would take a minute for them: make soak
		sizes["C8"], sizes["C9"] = wire.MaxResult, wire.MaxResult+1
		tooLarge = 1
	}
	serveBytes(t, testenv.Conn(t, b.NS), "statement", func(key string) int { return sizes[key] })
	req := nodetest.Request("statement")
	req.Steps[0].Chunk, req.Steps[0].Timeout = 3, 10*time.Minute
	run := b.Start(t, req, len(sizes))
	if done, failed := b.Outcome(t, run, 1); done != int64(len(sizes))-tooLarge || failed != tooLarge {
		t.Fatalf("done %d, failed %d of %d; want %d failed", done, failed, len(sizes), tooLarge)
	}
	for key, size := range sizes {
		if size > wire.MaxResult {
			if got := b.ErrorOf(t, run, key); !strings.HasPrefix(got,
				"result_too_large: the result has 67108865 bytes, and 67108864 are the most") {
				t.Errorf("%s failed with %q", key, got)
			}
			continue
		}
		found, all := b.result(t, run, key)
		want := pattern(size)
		if !bytes.Equal(all, want) || found.SHA256 != sha256.Sum256(want) || found.ContentType != "application/pdf" {
			t.Errorf("%s: %d bytes of %s (large %v), want %d", key, len(all), found.ContentType, found.Large.Valid, size)
		}
		testenv.Same(t, b.Number(t, `SELECT count(*) FROM run_item_parts WHERE run_id = $1 AND key = $2 AND bytes = $3
			AND content_type = 'application/pdf' AND result IS NULL`, run, key, want), 1, "%s in the view of parts", key)
		if large := size > 780<<10; found.Large.Valid && size < 700<<10 || !found.Large.Valid && large {
			t.Errorf("%s of %d bytes: large is %v", key, size, found.Large.Valid)
		}
	}
	testenv.Same(t, b.Number(t, `SELECT count(*) FROM large_result WHERE recorded_at IS NULL`), 0, "results are left open")
	b.Check(t)
}

// piecesOf are the messages of a result in pieces of a size.
func piecesOf(f *nodetest.Forger, slice workqueue.SliceID, ordinal int, data []byte, size int) (msgs []*nats.Msg) {
	whole := wire.Whole{Ordinal: ordinal, Pieces: (len(data) + size - 1) / size, Bytes: int64(len(data)),
		SHA256: sha256.Sum256(data)}
	for n := 1; n <= whole.Pieces; n++ {
		msg := f.Reply(slice, -1, string(data[(n-1)*size:min(n*size, len(data))]))
		msg.Header[wire.HeaderPiece] = []string{whole.Header(n)}
		msg.Header[wire.HeaderContentType] = []string{"application/pdf"}
		msgs = append(msgs, msg)
	}
	return msgs
}

// What services get wrong about pieces costs the item at hand an attempt, and leaves nothing behind.
func TestPiecesThatAreNotRight(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f, slices := b.Forge(t, 10, 10)
	slice := slices[0].ID
	data := pattern(10_000)
	swap := func(what, by string) func([]*nats.Msg) []*nats.Msg {
		return func(msgs []*nats.Msg) []*nats.Msg {
			for _, m := range msgs {
				m.Header[wire.HeaderPiece][0] = strings.Replace(m.Header[wire.HeaderPiece][0], what, by, 1)
			}
			return msgs
		}
	}
	hash := sha256.Sum256(data)
	hexa := hex.EncodeToString(hash[:])
	twice := func(m []*nats.Msg) []*nats.Msg { return append(slicesOf(m, 2, 1, 3, 1, 2), m[3], m[0]) }
	for _, msgs := range [][]*nats.Msg{
		twice(piecesOf(f, slice, 0, data, 3000)),                                // in any order, and again
		swap(hexa, strings.Repeat("ab", 32))(piecesOf(f, slice, 1, data, 3000)), // another hash
		swap(" 10000 ", " 9999 ")(piecesOf(f, slice, 2, data, 3000)),            // too many bytes
		swap(" 10000 ", " 10001 ")(piecesOf(f, slice, 3, data, 3000)),           // too few
		piecesOf(f, slice, 4, data, 3000)[1:],                                   // one is lost
		piecesOf(f, slice, 77, data, 5000),                                      // was not requested
		piecesOf(f, workqueue.NewSliceID(), 5, data, 5000),                      // of a slice that is none
	} {
		f.Publish(t, msgs...)
	}
	wrong := piecesOf(f, slice, 6, data, 10_000) // of another endpoint
	wrong[0].Subject = wire.ReplySubject("other")
	f.Publish(t, wrong...)
	f.Publish(t, f.Reply(slice, 10, nodetest.Body(5, 6, 7, 8, 9)))
	b.WantDrained(t)
	_, all := b.result(t, f.Run, "C0")
	if !bytes.Equal(all, data) {
		t.Errorf("ordinal 0 has %d bytes, want those that were sent", len(all))
	}
	for ordinal, want := range map[int]string{1: "result_damaged: the SHA-256", 2: "result_damaged: the pieces",
		3: "result_damaged: the pieces"} {
		got := b.text(t, `SELECT coalesce(string_agg(error_code || ': ' || error_message, '; '), '') FROM work_error
			WHERE ordinal = `+strconv.Itoa(ordinal))
		if !strings.HasPrefix(got, want) {
			t.Errorf("ordinal %d: retried for %q, want %q", ordinal, got, want)
		}
	}
	if got := b.Reasons(t); got["foreign_ordinal"] != 2 || got["wrong_endpoint"] != 1 || len(got) != 2 {
		t.Errorf("quarantined: %v", got)
	}
	if s := b.Node.Stats(); s.Stale < 2 {
		t.Errorf("%d stale messages, want those of the unknown slice at least", s.Stale)
	}
	// The slice waits for the lost piece: that is what is left of it.
	testenv.Same(t, b.text(t, `SELECT bit_count(remaining)::text FROM work_slice WHERE state = 'sent' AND id = '`+
		slice.String()+`'`), "1", "items the slice waits for")
	testenv.Same(t, b.Number(t, `SELECT count(*) FROM large_result WHERE recorded_at IS NULL`), 4, "results are open")
	// Its time is over: what has come goes, and a piece that comes after all changes nothing.
	b.Exec(t, `UPDATE work_slice SET deadline = tranche_now() - interval '1 hour', delivered_at = created_at
		WHERE state = 'sent' AND id = '`+slice.String()+`'`)
	nodetest.Until(t, "what no one will record is deleted", func() bool {
		return b.Number(t, `SELECT count(*) FROM large_result WHERE recorded_at IS NULL`) == 0
	})
	testenv.Same(t, b.Number(t, `SELECT count(*) FROM work_piece`), 4, "pieces are left")
	stale := b.Node.Stats().Stale
	f.Publish(t, piecesOf(f, slice, 4, data, 3000)[0]) // the lost one
	f.Publish(t, piecesOf(f, slice, 0, data, 3000)...) // and all of what was recorded
	b.WantDrained(t)
	if s := b.Node.Stats().Stale; s < stale+5 {
		t.Errorf("%d late pieces are stale, want 5", s-stale)
	}
	testenv.Same(t, b.Number(t, `SELECT count(*) FROM large_result`), 1, "results are kept")
}

// slicesOf are some of the messages, by their numbers.
func slicesOf(msgs []*nats.Msg, numbers ...int) (some []*nats.Msg) {
	for _, n := range numbers {
		some = append(some, msgs[n])
	}
	return some
}

func (b *bundle) text(t *testing.T, sql string) (s string) {
	t.Helper()
	testenv.NoError(t, b.Pool.QueryRow(t.Context(), sql).Scan(&s))
	return s
}
