package access

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// How long a verified credential is trusted, and how it is rechecked. Together they stay within RevocationTime: the
// last check is in flight when uncheckedTime expires, and has recheckTime for its answer.
const (
	// A valid token or session is checked again with the next request.
	trustTime = 1500 * time.Millisecond
	// Between two checks whether requests in progress may continue; shorter after one without an answer.
	recheckPause  = 1500 * time.Millisecond
	recheckTime   = time.Second            // for one answer
	retryPause    = 500 * time.Millisecond // after a missing answer
	uncheckedTime = 4 * time.Second        // without an answer, after which requests are ended
	// PostgreSQL's answer about a token; then 503.
	lookupTime = 3 * time.Second
)

// maxLookups limits concurrent lookups of unknown credentials, so that guesses cannot use up the connections.
const maxLookups = 4

// How unknown credentials are looked up for addresses over their limit: one at a time for all such addresses. So the
// holder of a valid one gets in, even for the first time, and invented ones use at most one connection.
const (
	turnTime = time.Second // how long to wait for a turn
	maxTurns = 64          // concurrent waiters
)

const maxTrusted = 4096

// Defaults of Config.
const (
	DefaultSessionLife = 12 * time.Hour
	DefaultSessionIdle = time.Hour
)

// Store is what a Gate needs of the database.
type Store interface {
	TokenCredential(ctx context.Context, hash [32]byte) (identity.Credential, error)
	SessionCredential(ctx context.Context, hash [32]byte, idle time.Duration) (identity.Credential, error)
	StandingCredentials(ctx context.Context, hashes [][]byte, idle time.Duration) ([][]byte, error)
	NoteUse(ctx context.Context, hashes [][]byte) error
	BeginWebSession(ctx context.Context, n identity.NewWebSession) (identity.Credential, error)
	EndWebSession(ctx context.Context, hash [32]byte) error
	counter
}

// Config configures a Gate. A zero field means its default.
type Config struct {
	Log      *zap.Logger // nil: none
	Throttle ThrottleConfig
	// UnknownBurst and UnknownEvery limit an address's requests with unknown tokens and cookies.
	UnknownBurst int
	UnknownEvery time.Duration
	RequestRate  int // reads, and as many changes, of a caller in a second; 0: DefaultRequestRate
}

// Gate authenticates callers and ends the requests of revoked ones.
type Gate struct {
	store    Store
	log      *zap.Logger
	config   Config
	throttle *throttle
	unknown  *throttle // invalid tokens, cookies and OIDC callbacks
	begins   *throttle // logins started at a provider
	ways     *throttle // valid OIDC callbacks
	reads    *throttle // requests by caller or address
	changes  *throttle
	failures *Tally
	lookups  chan struct{} // one per lookup in progress
	turns    chan struct{} // one per waiter or holder of the turn
	turn     chan struct{} // full while the turn is held

	mu      sync.Mutex
	trusted map[[sha256.Size]byte]Principal
	known   map[[sha256.Size]byte]struct{} // valid at their last check
	under   underWay
}

// New returns a Gate. It needs no closing: without requests in progress it is idle.
func New(store Store, config Config) (*Gate, error) {
	if store == nil {
		return nil, errors.New("access: a store is needed")
	}
	if config.RequestRate < 0 {
		return nil, errors.New("access: the rate of requests must not be negative")
	}
	config.Log = cmp.Or(config.Log, zap.NewNop())
	config.UnknownBurst = cmp.Or(config.UnknownBurst, DefaultUnknownBurst)
	config.UnknownEvery = cmp.Or(config.UnknownEvery, DefaultUnknownEvery)
	requests := func() *throttle {
		rate := cmp.Or(config.RequestRate, DefaultRequestRate)
		return newAddressThrottle(burstSeconds*rate, time.Second/time.Duration(rate))
	}
	return &Gate{
		reads: requests(), changes: requests(),
		unknown: newAddressThrottle(config.UnknownBurst, config.UnknownEvery),
		begins:  newAddressThrottle(beginBurst, beginEvery),
		ways: newAddressThrottle(cmp.Or(config.Throttle.Burst, beginBurst),
			cmp.Or(config.Throttle.Every, beginEvery)),
		failures: newTally(store, config.Log, maxRows), known: map[[sha256.Size]byte]struct{}{},
		store: store, log: config.Log, config: config, throttle: newThrottle(config.Throttle),
		lookups: make(chan struct{}, maxLookups), turns: make(chan struct{}, maxTurns), turn: make(chan struct{}, 1),
		trusted: map[[sha256.Size]byte]Principal{}, under: underWay{by: map[[sha256.Size]byte]*watched{}},
	}, nil
}

// Token returns the holder of a token, sent from an address. The error is a RefusedError for an invalid token, a
// ThrottledError for too many from the address, and any other if the check failed.
func (g *Gate) Token(ctx context.Context, address netip.Addr, secret string) (Principal, error) {
	return g.asked(ctx, address, byToken, HashOf(secret), WellFormed(secret), func() (Principal, error) {
		return g.token(ctx, address, secret)
	})
}

func (g *Gate) token(ctx context.Context, address netip.Addr, secret string) (p Principal, err error) {
	if err = error(&RefusedError{}); WellFormed(secret) {
		p, err = g.who(ctx, address, HashOf(secret), false, g.store.TokenCredential)
	}
	g.noteUnknown(address, byToken, err)
	return p, err
}

// Session returns the user of a cookie. Errors are those of Token.
func (g *Gate) Session(ctx context.Context, address netip.Addr, cookie string) (Principal, error) {
	return g.asked(ctx, address, byCookie, HashOf(cookie), wellFormedCookie(cookie), func() (Principal, error) {
		p, err := g.who(ctx, address, HashOf(cookie), true,
			func(ctx context.Context, hash [sha256.Size]byte) (identity.Credential, error) {
				return g.store.SessionCredential(ctx, hash, DefaultSessionIdle)
			})
		g.noteUnknown(address, byCookie, err)
		return p, err
	})
}

// asked looks up a credential, within the address's limit on unknown ones. Recently valid ones are exempt: they must
// not suffer for a neighbor. Over the limit the rest of an address's requests take turns, and get a ThrottledError
// if unknown too.
func (g *Gate) asked(
	ctx context.Context, address netip.Addr, way string, hash [sha256.Size]byte, wellFormed bool,
	look func() (Principal, error),
) (Principal, error) {
	g.mu.Lock()
	_, known := g.known[hash]
	g.mu.Unlock()
	if known {
		return look()
	}
	over := g.unknown.begin(address)
	if over == nil {
		defer g.unknown.end(address)
		return look()
	}
	if !wellFormed || !g.takeTurn(ctx) {
		return Principal{}, g.throttled(address, way, over)
	}
	defer func() { <-g.turn; <-g.turns }()
	p, err := look()
	if refused, ok := errors.AsType[*RefusedError](err); ok && refused.State == "" {
		return Principal{}, over
	}
	return p, err
}

func (g *Gate) takeTurn(ctx context.Context) bool {
	select {
	case g.turns <- struct{}{}:
	default:
		return false
	}
	patience := time.NewTimer(turnTime)
	defer patience.Stop()
	select {
	case g.turn <- struct{}{}:
		return true
	case <-patience.C:
	case <-ctx.Done():
	}
	<-g.turns
	return false
}

// noteUnknown counts an invalid credential and records it in the audit log. An expired session is not a guess.
func (g *Gate) noteUnknown(address netip.Addr, way string, err error) {
	refused, ok := errors.AsType[*RefusedError](err)
	if !ok || refused.Session && refused.State == identity.TokenExpired {
		return
	}
	_ = g.unknown.try(address) // an empty bucket shows at the next request
	g.failed(address, way, refused.Error())
}

func (g *Gate) who(
	ctx context.Context, address netip.Addr, hash [sha256.Size]byte, session bool,
	look func(context.Context, [sha256.Size]byte) (identity.Credential, error),
) (p Principal, err error) {
	p, ok := g.remembered(hash)
	if !ok {
		p, err = g.find(ctx, hash, session, look)
	}
	if err := cmp.Or(err, p.from(address)); err != nil {
		return Principal{}, err
	}
	return p, nil
}

func (g *Gate) find(
	ctx context.Context, hash [sha256.Size]byte, session bool,
	look func(context.Context, [sha256.Size]byte) (identity.Credential, error),
) (Principal, error) {
	ctx, cancel := context.WithTimeout(database.ForCredentials(ctx), lookupTime)
	defer cancel()
	select {
	case g.lookups <- struct{}{}:
		defer func() { <-g.lookups }()
	case <-ctx.Done():
		return Principal{}, fmt.Errorf("look a credential up: %w", ctx.Err())
	}
	asked := time.Now()
	found, err := look(ctx, hash)
	if errors.Is(err, identity.ErrNoCredential) {
		g.noMoreKnown(hash)
		return Principal{}, &RefusedError{Session: session}
	}
	if err != nil {
		return Principal{}, err
	}
	if subtle.ConstantTimeCompare(found.Hash, hash[:]) != 1 { // does not rely on the index that found it
		return Principal{}, &RefusedError{Session: session}
	}
	p, err := principalOf(&found, session, asked)
	if err != nil {
		g.noMoreKnown(hash)
		return Principal{}, err
	}
	if found.Unnoted {
		g.note(ctx, [][]byte{hash[:]})
	}
	g.remember(&p)
	return p, nil
}

func (g *Gate) noMoreKnown(hash [sha256.Size]byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.known, hash)
}

// note records a use. A failure is only logged, because the caller is allowed either way.
func (g *Gate) note(ctx context.Context, hashes [][]byte) {
	if err := g.store.NoteUse(database.ForCredentials(ctx), hashes); err != nil && ctx.Err() == nil {
		g.log.Warn("the use of a token was not noted", zap.Error(err))
	}
}

func (g *Gate) remembered(hash [sha256.Size]byte) (Principal, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p, ok := g.trusted[hash]
	if ok && time.Since(p.checked) > trustTime {
		delete(g.trusted, hash)
		ok = false
	}
	return p, ok
}

func (g *Gate) remember(p *Principal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.trusted) >= maxTrusted {
		maps.DeleteFunc(g.trusted, func(_ [sha256.Size]byte, old Principal) bool {
			return time.Since(old.checked) > trustTime
		})
	}
	if len(g.trusted) < maxTrusted {
		g.trusted[p.hash] = *p
	}
	makeRoom(g.known)
	g.known[p.hash] = struct{}{}
}

// makeRoom removes entries of a full map, no matter which.
func makeRoom[K comparable, V any](of map[K]V) {
	for old := range of {
		if len(of) < maxTrusted {
			return
		}
		delete(of, old)
	}
}

// Forget clears the cache and rechecks immediately, because something was revoked here.
func (g *Gate) Forget() {
	g.mu.Lock()
	clear(g.trusted)
	g.under.soon(g)
	g.mu.Unlock()
}
