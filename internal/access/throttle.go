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

// ThrottleConfig bounds how often someone tries to log in. A zero field means its default.
type ThrottleConfig struct {
	Burst, TotalBurst int           // tries at once, of one address and of all
	Every, TotalEvery time.Duration // how long until there is one more
}

// Defaults of ThrottleConfig, and of what else one address may try: requests with a token or a cookie that no one
// knows, and ways back from a provider of identities that are not good.
const (
	DefaultLoginBurst      = 20
	DefaultLoginTotalBurst = 100
	// Until an address, and everybody together, have one more login; 429 until then.
	DefaultLoginEvery      = 3 * time.Second
	DefaultLoginTotalEvery = 200 * time.Millisecond
	DefaultUnknownBurst    = 50
	// Until an address has one more request with a token or a cookie that no one knows; 429 until then.
	DefaultUnknownEvery = time.Second
)

// How often one address may begin to log in by a provider of identities, and come back from it: many people may share
// one.
const (
	beginBurst = 50
	// An address may begin a login by a provider again, 50 at once.
	beginEvery = 200 * time.Millisecond
)

// maxAddresses bounds the memory of who tried.
const maxAddresses = 4096

// ThrottledError is returned to who tries too often.
type ThrottledError struct {
	After   time.Duration // when to try again
	All     bool          // it is too often in all, whoever they are
	Unknown bool          // it is about tokens and cookies that no one knows
}

func (e *ThrottledError) Error() string {
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

// Seconds is when to try again, in whole seconds.
func (e *ThrottledError) Seconds() int { return int(max(1, math.Ceil(e.After.Seconds()))) }

// throttle counts tries, whether they succeed or not: a success tells who guesses as much.
type throttle struct {
	config ThrottleConfig
	all    *rate.Limiter // nil: there is no bound but that of each address

	mu    sync.Mutex
	per   map[netip.Prefix]*rate.Limiter
	begun map[netip.Prefix]int // tries of which it shows only at their end whether they count
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
		per: map[netip.Prefix]*rate.Limiter{}, begun: map[netip.Prefix]int{}}
}

// newAddressThrottle has no bound but that of each address.
func newAddressThrottle(burst int, every time.Duration) *throttle {
	t := newThrottle(ThrottleConfig{Burst: burst, Every: every})
	t.all = nil
	return t
}

// over returns a ThrottledError for an address that has no try left. It counts none.
func (t *throttle) over(address netip.Addr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.none(address)
}

// begin counts a try until its end, when it shows whether it counts permanently; or it returns a ThrottledError.
func (t *throttle) begin(address netip.Addr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.none(address); err != nil {
		return err
	}
	t.begun[NetworkOf(address)]++
	return nil
}

// none returns a ThrottledError for an address that has as many tries in progress as it has left.
func (t *throttle) none(address netip.Addr) error {
	if missing := 1 + float64(t.begun[NetworkOf(address)]) - t.of(address).Tokens(); missing > 0 {
		return &ThrottledError{After: time.Duration(missing * float64(t.config.Every)), Unknown: true}
	}
	return nil
}

// end is the end of a try that has begun.
func (t *throttle) end(address netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	network := NetworkOf(address)
	if t.begun[network]--; t.begun[network] <= 0 {
		delete(t.begun, network)
	}
}

// try counts a try, or returns a ThrottledError.
func (t *throttle) try(address netip.Addr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if after := take(t.of(address)); after > 0 { // first: who is over it must not use up what is for all
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

// take takes one try, and returns how long to wait when there is none.
func take(l *rate.Limiter) time.Duration {
	r := l.Reserve()
	after := r.Delay()
	if after > 0 {
		r.Cancel()
	}
	return after
}

// of is the limiter of an address; of a network, with IPv6, where one household has a /64.
func (t *throttle) of(address netip.Addr) *rate.Limiter {
	network := NetworkOf(address)
	l := t.per[network]
	if l == nil {
		t.makeRoom()
		l = rate.NewLimiter(rate.Every(t.config.Every), t.config.Burst)
		t.per[network] = l
	}
	return l
}

// NetworkOf is what counts as one address: of IPv6, whose senders have as many as they like, a network of 64 bits.
func NetworkOf(address netip.Addr) netip.Prefix {
	address = address.Unmap()
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	network, err := address.Prefix(bits)
	if err != nil {
		network = netip.Prefix{} // no one knows where they come from: they share one
	}
	return network
}

// makeRoom forgets those that have all their tries back, and someone else when there are none.
func (t *throttle) makeRoom() {
	if len(t.per) < maxAddresses {
		return
	}
	for network, l := range t.per {
		if l.Tokens() >= float64(t.config.Burst) {
			delete(t.per, network)
		}
	}
	for network := range t.per {
		if len(t.per) < maxAddresses {
			return
		}
		delete(t.per, network)
	}
}

// How failed logins come into the audit log: the first of a while at once, those that follow summed up, in a few rows
// each time, whatever an attacker does.
const (
	failurePause = time.Minute
	failureTime  = 5 * time.Second // for PostgreSQL to take them
	maxFailures  = 20              // rows of a pause
	maxFailing   = 1000            // addresses and ways that are told apart meanwhile
)

// Ways to log in that fail.
const (
	byToken    = "token"
	byCookie   = "cookie"
	byProvider = "provider"
)

// failing tells failed logins apart that are counted on their own; the zero one is all others.
type failing struct {
	network netip.Prefix
	way     string
}

// failures are the logins that failed and are not in the audit log yet.
type failures struct {
	mu      sync.Mutex
	by      map[failing]*identity.FailedLogin
	waiting bool // for the next time that they are written
	written time.Time
}

// failed notes a login that failed, by whatever way.
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

// throttled notes a try that there were too many before, and returns err; nil when there were not.
func (g *Gate) throttled(address netip.Addr, way string, err error) error {
	if err != nil {
		g.failed(address, way, "there were too many before it, so it was not looked into")
	}
	return err
}

// FailedProvider notes a login by the provider of identities that failed.
func (g *Gate) FailedProvider(address netip.Addr, err error) {
	if denied, ok := errors.AsType[*DeniedError](err); ok {
		g.failed(address, byProvider, denied.Why)
	}
}

// writeFailures writes what there is: those with the most failures, and the others as one.
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

// putBack has failures written the next time that were not.
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

// writeLater has the failures written when their pause is over. The caller has their lock.
func (g *Gate) writeLater() {
	f := &g.failures
	if !f.waiting {
		f.waiting = true
		time.AfterFunc(max(0, failurePause-time.Since(f.written)), g.writeFailures)
	}
}
