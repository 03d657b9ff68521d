package health

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/health"
)

// A disk is judged by what the streams on it may still grow by, and not by its size.
func TestADiskIsJudgedByWhatIsNeeded(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	streams := func(limit, used uint64) []fill {
		return []fill{{subject: "TRANCHE_WORK", what: "bytes", used: used, limit: limit, bytes: true},
			{subject: "TRANCHE_WORK", what: "messages", used: 0, limit: 1 << 40},
			{subject: accountSubject, what: "storage", used: 0, limit: 1 << 40, bytes: true}}
	}
	for name, tc := range map[string]struct {
		free, size uint64
		here       bool
		fills      []fill
		want       health.Severity
	}{
		"a small disk, almost empty":                   {855 * mib, 900 * mib, true, streams(500*mib, 0), ""},
		"a small disk, its streams full":               {350 * mib, 900 * mib, true, streams(500*mib, 500*mib), ""},
		"a small disk that the streams may fill":       {855 * mib, 900 * mib, true, streams(4<<30, 0), health.Warning},
		"also, and the streams are on another machine": {855 * mib, 900 * mib, false, streams(4<<30, 0), ""},
		"a small disk, almost full":                    {40 * mib, 900 * mib, true, nil, health.Critical},
		"a large disk, a gigabyte free":                {1000 * mib, 1 << 40, false, nil, health.Critical},
		"a large disk, five gigabytes free":            {5 << 30, 1 << 40, false, nil, health.Warning},
		"a large disk":                                 {200 << 30, 1 << 40, true, streams(4<<30, 0), ""},
	} {
		f := &facts{disk: &diskSpace{free: tc.free, size: tc.size}, fills: tc.fills,
			limits: Config{DiskFree: DefaultDiskFree, StoresStreams: tc.here}}
		var got health.Severity
		if all := f.room(); len(all) > 0 {
			got = all[0].Severity
		}
		testenv.Same(t, got, tc.want, "%s", name)
	}
}
