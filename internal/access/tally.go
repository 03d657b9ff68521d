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

// The first event is written to the audit log immediately, later ones are summed up in a few rows per pause, so that
// attacks cannot flood it.
const (
	tallyPause = time.Minute
	tallyTime  = 5 * time.Second // for PostgreSQL to store them
	maxTallied = 1000            // kinds per pause
	maxRows    = 20              // of failed logins and refused requests per pause
)

// Ways to log in.
const (
	byToken    = "token"
	byCookie   = "cookie"
	byProvider = "provider"
)

// counter writes an audit entry for each count.
type counter interface {
	NoteCounted(ctx context.Context, all []identity.Counted) error
}

// Tally counts events for the audit log.
type Tally struct {
	store counter
	log   *zap.Logger
	rows  int // per pause

	writing sync.Mutex // one write at a time, so that Close returns after the last
	mu      sync.Mutex
	by      map[identity.CountedKind]*identity.Counted
	waiting bool // a write is scheduled
	closed  bool // none is scheduled any more
	written time.Time
}

// NewRefusals returns a Tally of refused requests, in few rows.
func NewRefusals(store identity.Store, log *zap.Logger) *Tally { return newTally(store, log, maxRows) }

// NewReads returns a Tally of reads, each caller and run with a row.
func NewReads(store identity.Store, log *zap.Logger) *Tally { return newTally(store, log, maxTallied) }

func newTally(store counter, log *zap.Logger, rows int) *Tally {
	return &Tally{store: store, log: log, rows: rows, by: map[identity.CountedKind]*identity.Counted{}}
}

// Refused counts a request that was answered with a status of 401 or 403. Without a caller it is anonymous.
func (t *Tally) Refused(address netip.Addr, caller, route, status string) {
	t.count(identity.CountedKind{Action: "request_refused", Actor: caller, Address: networkText(address), Subject: route,
		By: status}, "")
}

// Read counts a read of payloads or results. The run, if there is one, is the subject: such rows are no action on it.
func (t *Tally) Read(caller, operation, run string) {
	t.count(identity.CountedKind{Action: "read", Actor: caller, By: operation, Subject: run}, "")
}

func networkText(address netip.Addr) string {
	network := NetworkOf(address)
	switch {
	case !network.IsValid():
		return ""
	case network.IsSingleIP():
		return network.Addr().String()
	default:
		return network.String()
	}
}

func (t *Tally) count(kind identity.CountedKind, why string) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.add(&identity.Counted{CountedKind: kind, Why: why, Count: 1, First: now, Last: now})
	t.writeLater()
}

// add adds a count. The caller holds the lock.
func (t *Tally) add(one *identity.Counted) {
	kind := one.CountedKind
	if t.by[kind] == nil && len(t.by) >= maxTallied {
		kind = identity.CountedKind{Action: kind.Action}
	}
	sum := t.by[kind]
	if sum == nil {
		sum = &identity.Counted{CountedKind: kind, First: one.First}
		t.by[kind] = sum
	}
	sum.Count += one.Count
	if one.First.Before(sum.First) {
		sum.First = one.First
	}
	if !one.Last.Before(sum.Last) {
		sum.Last, sum.Why = one.Last, one.Why
	}
}

// Close writes the pending counts. Counts that could not be written are lost.
func (t *Tally) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.write()
}

// write writes the pending counts: the greatest ones, and the rest as one row.
func (t *Tally) write() {
	t.writing.Lock()
	defer t.writing.Unlock()
	t.mu.Lock()
	all := make([]identity.Counted, 0, len(t.by))
	for _, sum := range t.by {
		all = append(all, *sum)
	}
	clear(t.by)
	t.waiting, t.written = false, time.Now()
	t.mu.Unlock()
	if len(all) == 0 {
		return
	}
	slices.SortFunc(all, func(a, b identity.Counted) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Address, b.Address), cmp.Compare(a.By, b.By))
	})
	rows := all
	if len(all) > t.rows {
		rest := Tally{by: map[identity.CountedKind]*identity.Counted{}}
		for i := range all[t.rows-1:] {
			one := all[t.rows-1+i]
			one.CountedKind, one.Why = identity.CountedKind{Action: one.Action}, ""
			rest.add(&one)
		}
		rows = all[: t.rows-1 : t.rows-1]
		for _, sum := range rest.by {
			rows = append(rows, *sum)
		}
	}
	ctx, cancel := context.WithTimeout(database.ForCredentials(context.Background()), tallyTime)
	defer cancel()
	if err := t.store.NoteCounted(ctx, rows); err != nil {
		t.log.Warn("counts could not be written to the audit log; will retry", zap.Int("rows", len(rows)), zap.Error(err))
		t.mu.Lock()
		defer t.mu.Unlock()
		for i := range all {
			t.add(&all[i])
		}
		t.writeLater()
	}
}

// writeLater schedules a write at the end of the pause. The caller holds the lock.
func (t *Tally) writeLater() {
	if !t.waiting && !t.closed {
		t.waiting = true
		time.AfterFunc(max(0, tallyPause-time.Since(t.written)), t.write)
	}
}

func (g *Gate) failed(address netip.Addr, way, why string) {
	g.failures.count(identity.CountedKind{Action: "login_failed", Address: networkText(address), By: way}, why)
}

// Close writes the pending counts of failed logins.
func (g *Gate) Close() { g.failures.Close() }

func (g *Gate) throttled(address netip.Addr, way string, err error) error {
	if err != nil {
		g.failed(address, way, "throttled: too many attempts before it, so it was not checked")
	}
	return err
}

// FailedProvider records a failed login by the provider.
func (g *Gate) FailedProvider(address netip.Addr, err error) {
	if denied, ok := errors.AsType[*DeniedError](err); ok {
		g.failed(address, byProvider, denied.Why)
	}
}
