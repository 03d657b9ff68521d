package systest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/export"
)

const largeResult = 5*wire.DefaultPiece + 1000

// bytesOf is the large result of an item.
func bytesOf(key string) []byte {
	return []byte(strings.Repeat(key+"|", largeResult/len(key))[:largeResult])
}

// Streams have three copies. One node is killed when it has kept pieces of results and recorded none of them, another
// when it has recorded something and told nobody. A third ends the run: each result is there once and is right, and
// nothing that they had begun is left, in the database or in a stream.
func TestNodesAreKilledBetweenPieces(t *testing.T) {
	t.Parallel()
	cluster := testenv.NATSCluster(t)
	w := setup(t)
	w.servers, w.items = strings.Join(cluster.URLs(), ","), 20
	svc, err := endpoints.New(testenv.Dial(t, w.servers), endpoints.Config{Name: "pages", Version: "1.0.0"})
	if err == nil {
		err = endpoints.HandleEach(svc, "statement", func(_ context.Context, in account) (*wire.Binary, error) {
			return &wire.Binary{ContentType: "application/pdf", Data: bytesOf(in.ID)}, nil
		}, endpoints.Concurrency(4))
	}
	if err != nil {
		t.Fatal(err)
	}
	serving, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- svc.Run(serving) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the service: %v", err)
		}
	})
	run := w.loadStep(workqueue.StepSpec{Endpoint: "statement", StepSettings: workqueue.StepSettings{Chunk: 5,
		MaxAttempts: 3}})
	for _, point := range []string{fault.PiecesKept, fault.RecordCommitted} {
		node := w.start("node", faultsVariable+"="+point+"=kill", sessionVariable+"=10s")
		w.wantKilled(node)
		if !strings.Contains(node.said.String(), "fault fired: "+point) {
			t.Fatalf("%s did not fire", point)
		}
		kept := w.number(`SELECT count(*) FROM work_piece`)
		recorded := w.number(`SELECT count(*) FROM work_large WHERE recorded_at IS NOT NULL`)
		t.Logf("at %s: %d pieces were kept, %d results recorded, %d items done", point, kept, recorded, w.done(run))
		if kept == 0 || recorded > 0 && point == fault.PiecesKept || w.done(run) == w.items {
			t.Fatal("the node was not killed in the middle of it")
		}
	}
	w.start("node", sessionVariable+"=1m")
	w.wantLarge(run)
	w.wantNoRest()
}

// wantLarge waits until the run is complete, and compares the results.
func (w *world) wantLarge(run workqueue.RunID) {
	w.Helper()
	w.complete(run)
	kept := export.New(w.store)
	for i := range w.items {
		key := fmt.Sprint("C", i)
		found, err := kept.Result(w.Context(), export.ResultRequest{Run: run, Key: key})
		if err != nil || !found.Large.Valid {
			w.Fatalf("%s: large %v, %v", key, found.Large.Valid, err)
		}
		all, err := kept.OpenResult(w.Context(), found.Large.UUID)
		if err != nil {
			w.Fatal(err)
		}
		hash := sha256.New()
		if _, err := io.Copy(hash, all); err != nil {
			w.Fatal(err)
		}
		if want := sha256.Sum256(bytesOf(key)); found.SHA256 != want || string(hash.Sum(nil)) != string(want[:]) {
			w.Errorf("%s is not what the service sent", key)
		}
	}
}

// wantNoRest waits until nothing is left that belongs to no result.
func (w *world) wantNoRest() {
	w.Helper()
	w.until("nothing is open", func() bool {
		return w.number(`SELECT count(*) FROM work_large WHERE recorded_at IS NULL`) == 0
	})
	if large, pieces := w.number(`SELECT count(*) FROM work_large`), w.number(`SELECT count(*) FROM work_piece`); large !=
		w.items || pieces != 6*w.items {
		w.Errorf("%d results have %d pieces; want %d of 6 each", large, pieces, w.items)
	}
	js, err := jetstream.New(testenv.Dial(w.T, w.servers))
	if err != nil {
		w.Fatal(err)
	}
	replies, err := js.Stream(w.Context(), wire.StreamReply)
	if err != nil {
		w.Fatal(err)
	}
	w.until("no reply is left", func() bool {
		info, err := replies.Info(w.Context())
		if err == nil && info.Config.Replicas != 3 {
			w.Fatalf("replies have %d copies", info.Config.Replicas)
		}
		return err == nil && info.State.Msgs == 0 // a cluster that has much to do may not answer at once
	})
	work, err := js.Stream(w.Context(), wire.StreamWork)
	if err != nil {
		w.Fatal(err)
	}
	w.until("no request is left", func() bool {
		left, all := uint64(0), work.ListConsumers(w.Context())
		for c := range all.Info() {
			left += c.NumPending + uint64(c.NumAckPending)
		}
		return all.Err() == nil && left == 0
	})
}
