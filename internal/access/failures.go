package access

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

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
