package serve

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestWatchdogLeavesPullsAlone(t *testing.T) {
	t.Parallel()
	start := time.Now()
	waiting := func(change func(*jetstream.ConsumerInfo)) *jetstream.ConsumerInfo {
		info := &jetstream.ConsumerInfo{NumPending: 3, Config: jetstream.ConsumerConfig{MaxAckPending: 10}}
		change(info)
		return info
	}
	none := func(*jetstream.ConsumerInfo) {}
	for name, tc := range map[string]struct {
		info    *jetstream.ConsumerInfo
		between func(*watchdog)
		bites   bool
	}{
		"stalled":        {waiting(none), func(*watchdog) {}, true},
		"nothing waits":  {waiting(func(i *jetstream.ConsumerInfo) { i.NumPending = 0 }), func(*watchdog) {}, false},
		"paused":         {waiting(func(i *jetstream.ConsumerInfo) { i.Paused = true }), func(*watchdog) {}, false},
		"enough is out":  {waiting(func(i *jetstream.ConsumerInfo) { i.NumAckPending = 10 }), func(*watchdog) {}, false},
		"something came": {waiting(none), func(w *watchdog) { w.came.Add(1) }, false},
		"no pull":        {waiting(none), func(w *watchdog) { w.closed() }, false},
		"a new pull":     {waiting(none), func(w *watchdog) { w.opened() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWatchdog()
			w.opened()
			w.look(start, tc.info)
			tc.between(w)
			w.look(start.Add(stallTimeout), tc.info)
			testenv.Same(t, len(w.stalled) == 1, tc.bites, "it bites")
		})
	}
}
