package orchestrator

import (
	"testing"
	"time"
)

func TestAlarms(t *testing.T) {
	t.Parallel()
	var a alarms
	now := time.Unix(1000, 0)
	if a.next(now) != 0 {
		t.Error("there is one from the beginning")
	}
	a.set(now, []time.Duration{2 * time.Second, time.Second, time.Second + time.Millisecond, time.Hour})
	if len(a.at) != 2 {
		t.Errorf("%d are kept; want 2: two are about the same, one is too far away", len(a.at))
	}
	for _, want := range []time.Duration{time.Second, 2 * time.Second} {
		wait := a.next(now)
		if due := now.Add(wait).Sub(time.Unix(1000, 0)); due < want || due > want+alarmTick {
			t.Errorf("the next goes off at %s; want %s", due, want)
		}
		now = now.Add(wait)
	}
	if a.next(now) != 0 || len(a.at) != 0 {
		t.Errorf("%v are kept that have passed", a.at)
	}
}
