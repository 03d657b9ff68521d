package faultyservice

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/wire"
)

type Fault string

// The faults of a service. A liar's faults are its lies.
const (
	FaultNone     Fault = ""
	FaultPoison   Fault = "poison"
	FaultMemory   Fault = "memory"
	FaultThrottle Fault = "throttle" // some items of the chunk were refused
	FaultOutage   Fault = "outage"
)

// Entry is a chunk that a service received, written before it is handled.
type Entry struct {
	Run        uuid.UUID `json:"run"`
	Slice      uuid.UUID `json:"slice"`
	Generation int       `json:"generation"`
	Attempt    int       `json:"attempt"`
	Ordinals   []int     `json:"ordinals"`
	Fault      Fault     `json:"fault,omitempty"`
	At         time.Time `json:"at"`
}

func entryOf(m *wire.Meta, ordinals []int, fault Fault) Entry {
	return Entry{Run: m.Run, Slice: m.Slice, Generation: m.Generation, Attempt: m.Attempt, Ordinals: ordinals,
		Fault: fault, At: time.Now()}
}

// Ledger records the work of services, outside the system under test.
type Ledger struct {
	mu      sync.Mutex
	out     io.Writer
	err     error
	entries []Entry
	fired   map[Fault]int
	times   map[execution]int
}

type execution struct {
	run                 uuid.UUID
	ordinal, generation int
}

// NewLedger returns an empty ledger that writes each entry to out as a line of JSON, in one write. out may be nil.
func NewLedger(out io.Writer) *Ledger {
	return &Ledger{out: out, fired: map[Fault]int{}, times: map[execution]int{}}
}

// ReadLedger reads the ledgers of any processes. An incomplete last line, of a process that died, is ignored.
func ReadLedger(in io.Reader) (*Ledger, error) {
	l := NewLedger(nil)
	for lines := json.NewDecoder(in); ; {
		var e Entry
		err := lines.Decode(&e)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return l, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the ledger after %d entries: %w", len(l.entries), err)
		}
		l.add(e)
	}
}

func (l *Ledger) add(e Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
	l.fired[e.Fault]++
	for _, ordinal := range e.Ordinals {
		l.times[execution{e.Run, ordinal, e.Generation}]++
	}
	if l.out == nil || l.err != nil {
		return
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = l.out.Write(append(line, '\n'))
	}
	l.err = err
}

// Err returns the first write error.
func (l *Ledger) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Entries returns the chunks in the order in which they began.
func (l *Ledger) Entries() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries)
}

// Fired returns the number of chunks with a fault.
func (l *Ledger) Fired(f Fault) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fired[f]
}

// Times returns how often each item of a run's generation was executed, by ordinal.
func (l *Ledger) Times(run uuid.UUID, generation int) map[int]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	times := map[int]int{}
	for e, n := range l.times {
		if e.run == run && e.generation == generation {
			times[e.ordinal] = n
		}
	}
	return times
}
