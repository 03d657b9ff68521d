package access

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// ThrottleConfig limits login attempts. A zero field means its default.
type ThrottleConfig struct {
	Burst, TotalBurst int           // attempts in a burst, per address and in total
	Every, TotalEvery time.Duration // time per further attempt
}

// Defaults of ThrottleConfig, and limits per address on requests with unknown tokens or cookies and on invalid OIDC
// callbacks.
const (
	DefaultLoginBurst      = 20
	DefaultLoginTotalBurst = 100
	// DefaultLoginEvery is the time between logins of an address, DefaultLoginTotalEvery of all; 429 until then.
	DefaultLoginEvery      = 3 * time.Second
	DefaultLoginTotalEvery = 200 * time.Millisecond
	DefaultUnknownBurst    = 50
	// DefaultUnknownEvery is the time between an address's requests with an unknown token or cookie; 429 until then.
	DefaultUnknownEvery = time.Second
)

// Limits per address on beginning a login at a provider and coming back: many people may share an address.
const (
	beginBurst = 50
	// Between beginnings of logins by a provider, after 50.
	beginEvery = 200 * time.Millisecond
)

const maxAddresses = 4096

// ThrottledError is returned for too many attempts.
type ThrottledError struct {
	After   time.Duration // when to retry
	All     bool          // the total limit applies
	Caller  string        // whose requests the limit is about; empty: about logins
	Unknown bool          // about unknown tokens and cookies
}

func (e *ThrottledError) Error() string {
	if e.Caller != "" {
		return fmt.Sprintf("too many requests from %s; retry in %d s, or request more at a time "+
			"(limit: serve --max-request-rate)", e.Caller, e.Seconds())
	}
	whose := "from this address"
	if e.All {
		whose = "in all"
	}
	if e.Unknown {
		return fmt.Sprintf("there are too many requests %s with tokens or logins that no one knows; try again in %d s, with "+
			"a token that is good: tranche token list", whose, e.Seconds())
	}
	return fmt.Sprintf("there are too many logins %s; try again in %d s", whose, e.Seconds())
}

// Seconds is After in whole seconds, at least 1.
func (e *ThrottledError) Seconds() int { return int(max(1, math.Ceil(e.After.Seconds()))) }

// throttle counts all attempts, because a success tells a guesser as much as a failure.
type throttle struct {
	config ThrottleConfig
	all    *rate.Limiter // nil: no total limit

	mu    sync.Mutex
	per   map[any]*rate.Limiter // by netip.Prefix, or the name of a caller
	begun map[netip.Prefix]int  // attempts whose end decides whether they count
}

func newThrottle(c ThrottleConfig) *throttle {
	c.Burst = cmp.Or(max(c.Burst, 0), DefaultLoginBurst)
	c.TotalBurst = cmp.Or(max(c.TotalBurst, 0), DefaultLoginTotalBurst)
	c.Every = cmp.Or(max(c.Every, 0), DefaultLoginEvery)
	c.TotalEvery = cmp.Or(max(c.TotalEvery, 0), DefaultLoginTotalEvery)
	return &throttle{config: c, all: rate.NewLimiter(rate.Every(c.TotalEvery), c.TotalBurst),
		per: map[any]*rate.Limiter{}, begun: map[netip.Prefix]int{}}
}

// newAddressThrottle has no total limit.
func newAddressThrottle(burst int, every time.Duration) *throttle {
	t := newThrottle(ThrottleConfig{Burst: burst, Every: every})
	t.all = nil
	return t
}

func (t *throttle) over(address netip.Addr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.none(address)
}

// begin reserves an attempt until its end decides whether it counts, or returns a ThrottledError.
func (t *throttle) begin(address netip.Addr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.none(address); err != nil {
		return err
	}
	t.begun[NetworkOf(address)]++
	return nil
}

// none returns a ThrottledError for an address with as many attempts in progress as it has left.
func (t *throttle) none(address netip.Addr) error {
	if missing := 1 + float64(t.begun[NetworkOf(address)]) - t.of(NetworkOf(address)).Tokens(); missing > 0 {
		return &ThrottledError{After: time.Duration(missing * float64(t.config.Every)), Unknown: true}
	}
	return nil
}

func (t *throttle) end(address netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	network := NetworkOf(address)
	if t.begun[network]--; t.begun[network] <= 0 {
		delete(t.begun, network)
	}
}

func (t *throttle) try(address netip.Addr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	// First, so that an address over its limit does not use up the total.
	if after := take(t.of(NetworkOf(address))); after > 0 {
		return &ThrottledError{After: after}
	}
	if t.all == nil {
		return nil
	}
	if after := take(t.all); after > 0 {
		return &ThrottledError{After: after, All: true}
	}
	return nil
}

// take takes one attempt, or returns how long to wait.
func take(l *rate.Limiter) time.Duration {
	r := l.Reserve()
	after := r.Delay()
	if after > 0 {
		r.Cancel()
	}
	return after
}

func (t *throttle) of(whose any) *rate.Limiter {
	l := t.per[whose]
	if l == nil {
		t.makeRoom()
		l = rate.NewLimiter(rate.Every(t.config.Every), t.config.Burst)
		t.per[whose] = l
	}
	return l
}

// DefaultRequestRate is how many reads, and as many changes, a caller may make in a second.
const DefaultRequestRate = 1000

// burstSeconds is how many seconds of a caller's budget accumulate: pages and programs start with many requests.
const burstSeconds = 5

// TryRequest counts a request of a caller, or of an address if the caller is unknown, or returns a ThrottledError.
func (g *Gate) TryRequest(caller string, address netip.Addr, change bool) error {
	t, whose, name := g.reads, any(caller), caller
	if change {
		t = g.changes
	}
	if caller == "" {
		whose, name = NetworkOf(address), "this address"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if after := take(t.of(whose)); after > 0 {
		return &ThrottledError{After: after, Caller: name}
	}
	return nil
}

// NetworkOf returns the prefix that counts as one address: in IPv6, where senders have many, a /64.
func NetworkOf(address netip.Addr) netip.Prefix {
	address = address.Unmap()
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	network, err := address.Prefix(bits)
	if err != nil {
		network = netip.Prefix{} // unknown addresses share one limit
	}
	return network
}

// makeRoom drops those with a full budget or, if none is full, an arbitrary one.
func (t *throttle) makeRoom() {
	if len(t.per) < maxAddresses {
		return
	}
	for whose, l := range t.per {
		if l.Tokens() >= float64(t.config.Burst) {
			delete(t.per, whose)
		}
	}
	for whose := range t.per {
		if len(t.per) < maxAddresses {
			return
		}
		delete(t.per, whose)
	}
}
