package natscluster

import (
	"slices"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue"
)

const (
	paceItems = 100_000
	// slowdown is how much longer a run may take on streams of three replicas than on streams of one.
	slowdown = 3
	// rounds are made of each, of which the best counts: what else the machine does comes and goes.
	rounds = 3
)

// A run on streams of three replicas is not much slower than on those of one, and nothing is delivered twice.
func keepsThePace(t *testing.T, cluster *servers, binary, script string) {
	t.Helper()
	took := map[int]map[string]time.Duration{}
	for _, replicas := range []int{1, 3} {
		t.Run(map[int]string{1: "R1", 3: "R3"}[replicas], func(t *testing.T) {
			w := newWorld(t, cluster, binary, script, replicas)
			took[replicas] = map[string]time.Duration{}
			for _, endpoint := range kinds() {
				var times []time.Duration
				for range rounds {
					run := w.start(endpoint, paceItems, 0)
					if extra := w.wantSound(run, endpoint, paceItems); extra != 0 {
						t.Errorf("%d items were executed again", extra)
					}
					times = append(times, w.took(run))
				}
				t.Logf("%s: %v", endpoint, times)
				took[replicas][endpoint] = slices.Min(times)
			}
			w.wantDoctor()
			w.wantNothingAgain()
			if replicas == 3 {
				w.wantReplicas(3)
			}
		})
	}
	for _, endpoint := range kinds() {
		one, three := took[1][endpoint], took[3][endpoint]
		t.Logf("%s: %d items at R1 in %v, at R3 in %v", endpoint, paceItems, one, three)
		if three > slowdown*one {
			t.Errorf("%s: R3 took %v, which is more than %d times the %v of R1", endpoint, three, slowdown, one)
		}
	}
}

// took is how long a run took, from its items being there to its last outcome.
func (w *world) took(run workqueue.RunID) time.Duration {
	w.Helper()
	return time.Duration(w.number(`SELECT (extract(epoch FROM finished_at - started_at) * 1e6)::bigint FROM batchrun
		WHERE id = $1`, run)) * time.Microsecond
}

// wantNothingAgain asks JetStream whether a message was delivered more than once, and the services of the Go SDK.
func (w *world) wantNothingAgain() {
	w.Helper()
	js := w.js()
	for _, c := range [][2]string{{wire.StreamWork, statement}, {wire.StreamWork, interest},
		{wire.StreamReply, wire.RecorderConsumer}} {
		consumer, err := js.Consumer(w.Context(), c[0], c[1])
		if err != nil {
			w.Fatal(err)
		}
		info := consumer.CachedInfo()
		replies, err := js.Stream(w.Context(), c[0])
		if err != nil {
			w.Fatal(err)
		}
		w.Logf("consumer %s: %d deliveries, %d delivered again", c[1], info.Delivered.Consumer, info.NumRedelivered)
		late := w.watch.Longest() > stream.RecorderAckWait/2 // then what recorders have comes to them again
		if c[0] == wire.StreamReply && !late && info.Delivered.Consumer != replies.CachedInfo().State.LastSeq {
			w.Errorf("%d messages of %s were delivered %d times", replies.CachedInfo().State.LastSeq, c[0],
				info.Delivered.Consumer)
		}
	}
	listeners, err := wire.Discover(w.Context(), w.nc, time.Second)
	if err != nil {
		w.Fatal(err)
	}
	for _, l := range listeners {
		if l.Redelivered != 0 {
			w.Errorf("%s of %s was handed %d requests again", l.Instance, l.Endpoint, l.Redelivered)
		}
	}
}

// wantReplicas holds the streams against what was asked for.
func (w *world) wantReplicas(n int) {
	w.Helper()
	list := w.js().ListStreams(w.Context())
	seen := 0
	for info := range list.Info() {
		if seen++; info.Config.Replicas != n {
			w.Errorf("stream %s has %d replicas; want %d", info.Config.Name, info.Config.Replicas, n)
		}
	}
	if err := list.Err(); err != nil || seen == 0 {
		w.Errorf("%d streams, %v", seen, err)
	}
}
