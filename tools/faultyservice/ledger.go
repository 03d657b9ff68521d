package faultyservice

import (
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/wire"
)

type Fault string

// The faults of a service. A liar's faults are its lies.
const (
	FaultNone     Fault = ""
	FaultPoison   Fault = "poison"
	FaultThrottle Fault = "throttle" // some items of the chunk were refused
	FaultOutage   Fault = "outage"
)

// Entry is a chunk that a service received, noted before it is handled.
type Entry struct {
	Run        uuid.UUID
	Slice      uuid.UUID
	Generation int
	Ordinals   []int
	Fault      Fault
}

func entryOf(m *wire.Meta, ordinals []int, fault Fault) Entry {
	return Entry{Run: m.Run, Slice: m.Slice, Generation: m.Generation, Ordinals: ordinals, Fault: fault}
}

// Ledger records the work of services, outside the system under test. Its zero value is empty.
type Ledger struct {
	mu      sync.Mutex
	entries []Entry
}

func (l *Ledger) add(e Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
}

// Entries returns the chunks in the order in which they began.
func (l *Ledger) Entries() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries)
}

// Fired returns the number of chunks with a fault.
func (l *Ledger) Fired(f Fault) (n int) {
	for _, e := range l.Entries() {
		if e.Fault == f {
			n++
		}
	}
	return n
}

// Times returns how often each item of a run's generation was executed, by ordinal.
func (l *Ledger) Times(run uuid.UUID, generation int) map[int]int {
	times := map[int]int{}
	for _, e := range l.Entries() {
		if e.Run == run && e.Generation == generation {
			for _, ordinal := range e.Ordinals {
				times[ordinal]++
			}
		}
	}
	return times
}
