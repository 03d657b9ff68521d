package reply

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Start notes that the work on the chunk begins now, unless it has begun already, in a stage before.
func (a *Writer) Start() {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if a.begun.IsZero() {
		a.begun = time.Now()
	}
}

// setTook says in the final message how long the chunk took, if anybody has begun to work on it. Called with mu held.
func (a *Writer) setTook(h nats.Header) {
	if !a.begun.IsZero() {
		h[wire.HeaderTook] = []string{wire.FormatTook(time.Since(a.begun))}
	}
}

// SetBegun hands on when the work on a suspended chunk began.
func (a *Writer) SetBegun(h nats.Header) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if !a.begun.IsZero() {
		h[wire.HeaderFlowBegun] = []string{strconv.FormatInt(a.begun.UnixMilli(), 10)}
	}
}

// Resume takes over what setBegun has handed on. The clock there may have been another one.
func (a *Writer) Resume(h nats.Header) {
	ms, err := strconv.ParseInt(h.Get(wire.HeaderFlowBegun), 10, 64)
	if begun := time.UnixMilli(ms); err == nil && begun.Before(time.Now()) {
		a.begun = begun
	}
}
