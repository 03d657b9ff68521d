package trackers_test

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/endpoints/fanout"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/workqueue/database"
	trackerstore "github.com/tranchehq/tranche/workqueue/tracker"
)

// BenchmarkAck acknowledges single items of a batch of a million, in no order, by many callers at once: straight at the
// store, with a transaction each; by the service, which combines them; and over NATS.
func BenchmarkAck(b *testing.B) {
	const items = 1_000_000
	store := database.New(testenv.Pool(b))
	combined, err := trackers.New(trackerstore.New(store), trackers.Config{})
	if err != nil {
		b.Fatal(err)
	}
	server := testenv.NATS(b)
	listener, err := trackers.Listen(testenv.Conn(b, server), combined, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = listener.Close(context.Background()) }()
	ways := []struct {
		name    string
		callers int
		ack     func(ctx context.Context, nc *nats.Conn, id bitfield.ItemID) error
	}{
		{"each its own transaction", 64, func(ctx context.Context, _ *nats.Conn, id bitfield.ItemID) error {
			ack := service.BatchAck{Batch: id.Batch}
			ack.Items = append(ack.Items, tracker.Ack{Group: id.Group, Mask: bitfield.Of(id.Index)})
			_, err := trackerstore.New(store).AckTrackers(ctx, []service.BatchAck{ack})
			return err
		}},
		{"combined, 1 caller", 1, viaService(combined)},
		{"combined, 64 callers", 64, viaService(combined)},
		{"combined, 1024 callers", 1024, viaService(combined)},
		{"over NATS, 1024 callers", 1024, func(ctx context.Context, nc *nats.Conn, id bitfield.ItemID) error {
			client, err := fanout.New(nc, fanout.Config{})
			if err == nil {
				_, err = client.Ack(ctx, id)
			}
			return err
		}},
	}
	for _, way := range ways {
		b.Run(way.name, func(b *testing.B) {
			opened, err := combined.Open(b.Context(), fanout.BatchSettings{Owner: "bench"}, "bench")
			if err != nil {
				b.Fatal(err)
			}
			id := uuid.MustParse(opened.ID)
			if _, err := combined.Add(b.Context(), id, fanout.GroupSettings{Items: items}); err != nil {
				b.Fatal(err)
			}
			nc := testenv.Conn(b, server)
			order := rand.Perm(items)
			var next atomic.Int64
			b.SetParallelism(max(1, way.callers/2)) // times GOMAXPROCS, 2 where this was measured
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					n := order[next.Add(1)%items]
					if err := way.ack(b.Context(), nc, bitfield.ItemID{Batch: id, Group: n / 8192, Index: n % 8192}); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "acks/s")
		})
	}
}

func viaService(s *trackers.Service) func(context.Context, *nats.Conn, bitfield.ItemID) error {
	return func(ctx context.Context, _ *nats.Conn, id bitfield.ItemID) error {
		_, err := s.Ack(ctx, nil, fanout.Acknowledgement{IDs: []string{id.String()}})
		return err
	}
}
