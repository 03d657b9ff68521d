package orchestrator_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/results"
)

// pattern is n bytes that are others at each place.
func pattern(n int) []byte {
	b := make([]byte, n)
	state := uint32(n) + 1
	for i := range b {
		state = state*1664525 + 1013904223
		b[i] = byte(state >> 24)
	}
	return b
}

// serveBytes answers each item with so many bytes as size says.
func serveBytes(t *testing.T, nc *nats.Conn, endpoint string, size func(key string) int) {
	t.Helper()
	svc, err := endpoints.New(nc, endpoints.Config{Name: "test", Version: "1.0.0", Log: zaptest.NewLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	err = endpoints.HandleEach(svc, endpoint, func(_ context.Context, in account) (*wire.Binary, error) {
		return &wire.Binary{ContentType: "application/pdf", Data: pattern(size(in.ID))}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	run(t, "service", svc.Run)
}

// result reads the result of an item, all of it.
func (b *bundle) result(t *testing.T, run workqueue.RunID, key string) (results.Result, []byte) {
	t.Helper()
	found, err := results.New(b.store).Result(t.Context(), results.Request{Run: run, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	if !found.Large.Valid {
		return found, found.Body
	}
	r, err := results.New(b.store).Open(t.Context(), found.Large.UUID)
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return found, all
}

// inline is the most bytes of a PDF that fit a message of the SDK's, as the test finds it out.
func (b *bundle) large(t *testing.T, run workqueue.RunID) (n int) {
	t.Helper()
	return b.number(t, `SELECT count(*) FROM work_large WHERE run_id = '`+run.String()+`' AND recorded_at IS NOT NULL`)
}

// Results around what a message holds, around a piece, and of the most bytes that there may be.
func TestResultsOfAnySize(t *testing.T) {
	t.Parallel()
	b := setup(t)
	sizes := map[string]int{
		"C0": 1, "C1": 700 << 10, "C2": 785_000, "C3": 786_432, "C4": 2_000_000, "C5": 4 * wire.DefaultPiece,
		"C6": 4*wire.DefaultPiece + 1, "C7": 4*wire.DefaultPiece - 1, "C8": wire.MaxResult, "C9": wire.MaxResult + 1,
	}
	serveBytes(t, testenv.Conn(t, b.ns), "statement", func(key string) int { return sizes[key] })
	req := request("statement")
	req.Steps[0].Chunk = 3
	run := b.start(t, req, len(sizes))
	if done, failed := b.outcome(t, run, 1); done != 9 || failed != 1 {
		t.Fatalf("done %d, failed %d; want 9 and 1", done, failed)
	}
	for key, size := range sizes {
		if size > wire.MaxResult {
			if got := b.errorOf(t, run, key); !strings.HasPrefix(got,
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
		if large := size > 780<<10; found.Large.Valid && size < 700<<10 || !found.Large.Valid && large {
			t.Errorf("%s of %d bytes: large is %v", key, size, found.Large.Valid)
		}
	}
	if open := b.number(t, `SELECT count(*) FROM work_large WHERE recorded_at IS NULL`); open != 0 {
		t.Errorf("%d results are left open", open)
	}
	b.check(t)
}
