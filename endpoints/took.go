package endpoints

import (
	"math"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// maxTook is the longest that a chunk can be said to have taken; what is longer is no time of a chunk.
const maxTook = 365 * 24 * time.Hour

// formatTook writes a time as HeaderTook has it: in milliseconds, with up to three decimals.
func formatTook(d time.Duration) string {
	return strconv.FormatFloat(float64(max(d, 0).Microseconds())/1e3, 'f', -1, 64)
}

// parseTook reads HeaderTook. It is 0 when it is missing, or no time: what only says how long something took is no
// reason to refuse a reply.
func parseTook(value string) time.Duration {
	ms, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(ms) || ms < 0 || ms > float64(maxTook.Milliseconds()) {
		return 0
	}
	return time.Duration(math.Round(ms * float64(time.Millisecond)))
}

// start notes that the work on the chunk begins now, unless it has begun already, in a stage before.
func (a *answers) start() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.begun.IsZero() {
		a.begun = time.Now()
	}
}

// setTook says in the final message how long the chunk took, if anybody has begun to work on it. Called with mu held.
func (a *answers) setTook(h nats.Header) {
	if !a.begun.IsZero() {
		h[HeaderTook] = []string{formatTook(time.Since(a.begun))}
	}
}

// setBegun hands on when the work on a suspended chunk began.
func (a *answers) setBegun(h nats.Header) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.begun.IsZero() {
		h[headerFlowBegun] = []string{strconv.FormatInt(a.begun.UnixMilli(), 10)}
	}
}

// resume takes over what setBegun has handed on. The clock there may have been another one.
func (a *answers) resume(h nats.Header) {
	ms, err := strconv.ParseInt(h.Get(headerFlowBegun), 10, 64)
	if begun := time.UnixMilli(ms); err == nil && begun.Before(time.Now()) {
		a.begun = begun
	}
}
