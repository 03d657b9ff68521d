package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
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
		return fmt.Sprintf("there are too many requests of %s; try again in %d s, or ask for more in one request "+
			"(serve --max-request-rate says how many a second are allowed)", e.Caller, e.Seconds())
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
	if c.Burst <= 0 {
		c.Burst = DefaultLoginBurst
	}
	if c.TotalBurst <= 0 {
		c.TotalBurst = DefaultLoginTotalBurst
	}
	if c.Every <= 0 {
		c.Every = DefaultLoginEvery
	}
	if c.TotalEvery <= 0 {
		c.TotalEvery = DefaultLoginTotalEvery
	}
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
	if after := take(t.of(NetworkOf(address))); after > 0 { // first, so that an address over its limit does not use up the total
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

// burstSeconds is for how long a caller's budget gathers: a page or a program that starts asks for much together.
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

// makeRoom drops those with a full budget or, if there are none, an arbitrary one.
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

// How failed logins are written to the audit log: the first immediately, the following ones summed up in a few rows
// per pause, so that attacks cannot flood it.
const (
	failurePause = time.Minute
	failureTime  = 5 * time.Second // for PostgreSQL to store them
	maxFailures  = 20              // rows per pause
	maxFailing   = 1000            // distinct addresses and ways per pause
)

// Ways to log in.
const (
	byToken    = "token"
	byCookie   = "cookie"
	byProvider = "provider"
)

type failing struct {
	network netip.Prefix
	way     string
}

type failures struct {
	mu      sync.Mutex
	by      map[failing]*identity.FailedLogin
	waiting bool // a write is scheduled
	written time.Time
}

func (g *Gate) failed(address netip.Addr, way, why string) {
	g.failures.mu.Lock()
	defer g.failures.mu.Unlock()
	f := &g.failures
	key := failing{NetworkOf(address), way}
	if f.by[key] == nil && len(f.by) >= maxFailing {
		key = failing{}
	}
	now := time.Now()
	sum := f.by[key]
	if sum == nil {
		sum = &identity.FailedLogin{Way: key.way, First: now}
		if key.network.IsValid() {
			sum.Address = key.network.String()
			if key.network.IsSingleIP() {
				sum.Address = key.network.Addr().String()
			}
		}
		f.by[key] = sum
	}
	sum.Count++
	sum.Last, sum.Why = now, why
	g.writeLater()
}

func (g *Gate) throttled(address netip.Addr, way string, err error) error {
	if err != nil {
		g.failed(address, way, "there were too many before it, so it was not looked into")
	}
	return err
}

// FailedProvider records a failed login by the provider.
func (g *Gate) FailedProvider(address netip.Addr, err error) {
	if denied, ok := errors.AsType[*DeniedError](err); ok {
		g.failed(address, byProvider, denied.Why)
	}
}

// writeFailures writes the pending failures: the most frequent ones, and the rest as one row.
func (g *Gate) writeFailures() {
	f := &g.failures
	f.mu.Lock()
	all := make([]identity.FailedLogin, 0, len(f.by))
	for _, sum := range f.by {
		all = append(all, *sum)
	}
	taken := f.by
	f.by = map[failing]*identity.FailedLogin{}
	f.waiting, f.written = false, time.Now()
	f.mu.Unlock()
	slices.SortFunc(all, func(a, b identity.FailedLogin) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Way, b.Way))
	})
	if len(all) > maxFailures {
		rest := identity.FailedLogin{First: all[maxFailures-1].First}
		for _, one := range all[maxFailures-1:] {
			rest.Count += one.Count
			if one.First.Before(rest.First) {
				rest.First = one.First
			}
			if one.Last.After(rest.Last) {
				rest.Last = one.Last
			}
		}
		all = append(all[:maxFailures-1], rest)
	}
	ctx, cancel := context.WithTimeout(database.ForCredentials(context.Background()), failureTime)
	defer cancel()
	if err := g.store.NoteFailedLogins(ctx, all); err != nil {
		g.log.Warn("logins failed, which the audit log could not be told yet", zap.Int("rows", len(all)), zap.Error(err))
		g.putBack(taken)
	}
}

func (g *Gate) putBack(taken map[failing]*identity.FailedLogin) {
	f := &g.failures
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, sum := range taken {
		if f.by[key] == nil && len(f.by) >= maxFailing {
			key = failing{}
		}
		since := f.by[key]
		if since == nil {
			since = &identity.FailedLogin{Way: key.way, First: sum.First}
			if key != (failing{}) {
				since.Address = sum.Address
			}
			f.by[key] = since
		}
		since.Count += sum.Count
		if sum.First.Before(since.First) {
			since.First = sum.First
		}
		if sum.Last.After(since.Last) {
			since.Last, since.Why = sum.Last, sum.Why
		}
	}
	g.writeLater()
}

// writeLater schedules a write at the end of the pause. The caller holds the lock.
func (g *Gate) writeLater() {
	f := &g.failures
	if !f.waiting {
		f.waiting = true
		time.AfterFunc(max(0, failurePause-time.Since(f.written)), g.writeFailures)
	}
}
