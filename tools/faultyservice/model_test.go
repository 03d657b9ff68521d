package faultyservice

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// Two chunks on one server take twice as long while both are there.
func TestClockIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClock((&Load{Servers: 1}).slowdown)
		begun := time.Now()
		var ends [2]time.Duration
		var both sync.WaitGroup
		both.Go(func() {
			if err := c.work(t.Context(), time.Second); err != nil {
				t.Error(err)
			}
			ends[0] = time.Since(begun)
		})
		synctest.Wait()
		time.Sleep(500 * time.Millisecond) //nolint:forbidigo // the bubble's own time
		both.Go(func() {
			if err := c.work(t.Context(), time.Second); err != nil {
				t.Error(err)
			}
			ends[1] = time.Since(begun)
		})
		both.Wait()
		// Alone for 0.5 s, then half as fast until the first has its second, then alone again.
		for i, want := range []time.Duration{1500 * time.Millisecond, 2 * time.Second} {
			if off := (ends[i] - want).Abs(); off > time.Microsecond {
				t.Errorf("chunk %d ended after %s; want %s", i, ends[i], want)
			}
		}
	})
}

func TestLedgerIsReadBack(t *testing.T) {
	t.Parallel()
	var file bytes.Buffer
	run := uuid.New()
	l := NewLedger(&file)
	l.add(Entry{Run: run, Generation: 1, Ordinals: []int{1, 2}, Fault: FaultPoison})
	l.add(Entry{Run: run, Generation: 1, Ordinals: []int{2}})
	back := testenv.Must(ReadLedger(strings.NewReader(file.String() + `{"run":"0`)))(t) // a process died here
	if times := back.Times(run, 1); times[1] != 1 || times[2] != 2 || back.Fired(FaultPoison) != 1 {
		t.Errorf("read back %v, %d times poison", times, back.Fired(FaultPoison))
	}
	if l.Err() != nil || len(back.Entries()) != 2 {
		t.Errorf("error %v, %d entries", l.Err(), len(back.Entries()))
	}
}
