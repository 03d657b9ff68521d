package httpfetch

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	// longestRest bounds how long a host may have itself left alone by one answer.
	longestRest = 5 * time.Minute
	// shortRest is how long a request waits by itself until its host wants it again. For longer ones the items are given
	// back.
	shortRest = 2 * time.Second
)

// rests are the times until which hosts want to be left alone.
type rests struct {
	mu    sync.Mutex
	hosts map[string]time.Time // by what paces their steps
}

func (r *rests) until(paceKey string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	until := r.hosts[paceKey]
	if !until.IsZero() && time.Now().After(until) {
		delete(r.hosts, paceKey)
		return time.Time{}
	}
	return until
}

func (r *rests) set(paceKey string, rest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hosts == nil {
		r.hosts = map[string]time.Time{}
	}
	if until := time.Now().Add(min(rest, longestRest)); until.After(r.hosts[paceKey]) {
		r.hosts[paceKey] = until
	}
}

// retryAfter reads how long a service wants to be left alone: seconds, or a date by the service's clock.
func retryAfter(h http.Header, now time.Time) (rest time.Duration, said bool) {
	text := h.Get("Retry-After")
	if text == "" {
		return 0, false
	}
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(seconds) * time.Second, true // out of range it is the largest
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return max(0, at.Sub(now)), true
}
