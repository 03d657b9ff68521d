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
)

// Fault is a way of misbehaving as the ledger counts it.
type Fault string

// The faults of a service. A liar's are its lies.
const (
	FaultNone     Fault = ""
	FaultPoison   Fault = "poison"
	FaultMemory   Fault = "memory"
	FaultThrottle Fault = "throttle" // some items of the chunk were refused
	FaultOutage   Fault = "outage"
)

// Entry is one chunk that a service was asked for, written before anything becomes of it.
type Entry struct {
	Run        uuid.UUID `json:"run"`
	Slice      uuid.UUID `json:"slice"`
	Generation int       `json:"generation"`
	Attempt    int       `json:"attempt"`
	Ordinals   []int     `json:"ordinals"`
	Fault      Fault     `json:"fault,omitempty"`
	At         time.Time `json:"at"`
}

// Ledger is what services note of their work, outside the system under test.
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

// NewLedger returns an empty ledger. It writes each entry to out as a line of JSON, in one write; nil: it does not.
func NewLedger(out io.Writer) *Ledger {
	return &Ledger{out: out, fired: map[Fault]int{}, times: map[execution]int{}}
}

// ReadLedger reads what ledgers have written, of however many processes. A last line that breaks off, of a process that
// died while it wrote, is left out.
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

// Err is what has kept the ledger from being written, nil if nothing did.
func (l *Ledger) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Entries returns the chunks in the order in which they were begun.
func (l *Ledger) Entries() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries)
}

// Fired returns how many chunks a fault has struck.
func (l *Ledger) Fired(f Fault) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fired[f]
}

// Times returns how often each item of a generation of a run was executed, by ordinal.
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
