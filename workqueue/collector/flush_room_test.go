package collector_test

import (
	"testing"

	"github.com/tranchehq/tranche/workqueue/collector"
)

// However many keys others have in progress, a collector with few of its own finds room, and no place is given twice.
func TestFlushRoomIsKeptForOthers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ all, own, want int }{
		{0, 0, 96},
		{40, 40, 56},
		{95, 95, 1},
		{96, 96, 0},
		{100, 4, 0},
		{96, 0, 4},
		{98, 2, 2},
		{126, 0, 2},
		{128, 0, 0},
		{128, 128, 0},
	} {
		if got := collector.FlushRoom(tc.all, tc.own); max(got, 0) != max(tc.want, 0) {
			t.Errorf("room beside %d keys, %d of them its own: %d, want %d", tc.all, tc.own, got, tc.want)
		}
	}
}
