package flush

import (
	"testing"

	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

// Operations that cannot be read in time are read for fewer keys, and for more again when they can.
func TestReadsThatTakeTooLongGetFewerKeys(t *testing.T) {
	t.Parallel()
	f := &Flusher{busy: map[int32]int{}, slow: map[int32]int{}}
	read := func(keys int, late bool, want int) {
		t.Helper()
		w := &flight{collector: 1, claimed: collectorstore.ClaimedFlushes{Flushes: make([]collectorstore.KeyFlush, keys)}}
		f.pace(w, late)
		if got := f.room(1); got != want {
			t.Errorf("after a read for %d keys (late: %t) there is room for %d, want %d", keys, late, got, want)
		}
	}
	read(96, false, 96)
	read(96, true, 48)
	read(48, true, 24)
	f.busy[1] = 20
	if got := f.room(1); got != 4 {
		t.Errorf("beside 20 keys there is room for %d, want 4", got)
	}
	if got := f.room(2); got != 76 {
		t.Errorf("another collector has room for %d keys, want 76", got)
	}
	clear(f.busy)
	read(2, true, 1)
	read(1, true, 1)
	for _, want := range []int{2, 4, 8, 16, 32, 64, 96} {
		read(1, false, want)
	}
}
