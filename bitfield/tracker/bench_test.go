package tracker_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// itemsVariable is the size of the large batch; docs/trackers.md has figures of 100 million.
const itemsVariable = "TRANCHE_TRACKER_ITEMS"

func largeItems(b *testing.B) int64 {
	b.Helper()
	text := os.Getenv(itemsVariable)
	if text == "" {
		return 1_000_000
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		b.Fatalf("%s: %v", itemsVariable, err)
	}
	return n
}

// BenchmarkLargeBatch takes a batch from open to deleted, once, and reports each part.
func BenchmarkLargeBatch(b *testing.B) {
	n := largeItems(b)
	b.Run(fmt.Sprintf("items=%d", n), func(b *testing.B) {
		s := setup(b)
		part := func(name string, f func()) time.Duration {
			start := time.Now()
			f()
			took := time.Since(start)
			b.ReportMetric(float64(took.Microseconds())/1000, name+"-ms")
			return took
		}
		for b.Loop() {
			id := s.open()
			part("add", func() {
				testenv.Must(s.add(id, n, "all"))(b)
			})
			part("add-again", func() { _, _ = s.add(id, n, "all") })
			size := s.count(`SELECT pg_total_relation_size('tracker_group')`)
			b.ReportMetric(float64(size)/float64(n), "bytes/item")
			part("get", func() { s.get(id) })
			part("seal", func() { s.seal(id) })
			part("missing", func() {
				if _, _, err := tracker.Missing(b.Context(), s.pool, id, tracker.Position{}, 1000); err != nil {
					b.Fatal(err)
				}
			})
			groups := int((n + 8191) / 8192)
			took := part("ack-all", func() {
				s.ack(whole(id, 0, groups-2))
			})
			b.ReportMetric(float64(n)/took.Seconds(), "items/s-ack-all")
			part("last-ack", func() {
				if got := s.ack(all(id)); !got[0].Completed {
					b.Fatal("the last ack did not complete it")
				}
			})
			size = s.count(`SELECT pg_total_relation_size('tracker_group')`)
			b.ReportMetric(float64(size)/float64(n), "bytes/item-acked")
			testenv.NoError(b, s.tryDelete(id))
			part("purge", func() {
				for s.purge(1000) > 0 { // in transactions like the leader's, without its pauses
				}
			})
			var mem runtime.MemStats
			runtime.ReadMemStats(&mem)
			b.ReportMetric(float64(mem.HeapSys)/1e6, "client-MB")
		}
	})
}

// BenchmarkAck acknowledges items of a small batch, and of a large one: the cost is the same.
func BenchmarkAck(b *testing.B) {
	s := setup(b)
	ids := map[int64]uuid.UUID{}
	for _, n := range []int64{8192, 10 * 8192, largeItems(b)} {
		ids[n] = s.open(n)
		s.seal(ids[n])
	}
	s.exec(`VACUUM ANALYZE tracker_group`)
	for n, id := range ids {
		groups := int((n + 8191) / 8192)
		// place spreads acks over groups, and makes no duplicate for as long as that is possible.
		place := func(i int) (group, index int) { return i * 7919 % groups, i / groups % 8192 }
		var next atomic.Int64
		run := func(name string, perCall int, call func(from int) []tracker.ItemsAck) {
			b.Run(fmt.Sprintf("%s/items=%d", name, n), func(b *testing.B) {
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if _, err := s.tryAck(call(int(next.Add(int64(perCall))) - perCall)...); err != nil {
							b.Error(err)
							return
						}
					}
				})
				b.ReportMetric(float64(perCall*b.N)/b.Elapsed().Seconds(), "acks/s")
			})
		}
		one := func(i int) tracker.ItemsAck {
			group, index := place(i)
			return items(id, some(group, index))
		}
		run("one", 1, func(from int) []tracker.ItemsAck { return []tracker.ItemsAck{one(from)} })
		run("100 callers merged", 100, func(from int) []tracker.ItemsAck {
			calls := make([]tracker.ItemsAck, 100)
			for i := range calls {
				calls[i] = one(from + i)
			}
			return calls
		})
		run("chunk of 500", 500, func(from int) []tracker.ItemsAck {
			a := tracker.Ack{Group: from / 500 % groups}
			for i := range 500 {
				a.Mask.Add((from/500/groups*500 + i) % 8192)
			}
			return []tracker.ItemsAck{items(id, a)}
		})
	}
}

// BenchmarkAckScattered acknowledges one item of every group in one call, as someone with ids in no order would.
func BenchmarkAckScattered(b *testing.B) {
	n := largeItems(b)
	groups := min(int((n+8191)/8192), tracker.MaxAckGroups)
	b.Run(fmt.Sprintf("groups=%d", groups), func(b *testing.B) {
		s := setup(b)
		id := s.open(n)
		next := 0
		for b.Loop() {
			a := tracker.ItemsAck{Batch: id, Items: make([]tracker.Ack, groups)}
			for g := range groups {
				a.Items[g] = some(g, next%8000)
			}
			next++
			s.ack(a)
		}
		b.ReportMetric(float64(groups*b.N)/b.Elapsed().Seconds(), "acks/s")
	})
}
