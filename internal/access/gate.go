package access

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// How long what is known of a secret is trusted, and how often and how patiently it is asked for again. Together they
// stay within RevocationTime: the last question is out when uncheckedTime is over, and has recheckTime for its answer.
const (
	// A token or session that was found good is asked for again with the next request.
	trustTime = 1500 * time.Millisecond
	// Between two looks whether requests in progress may go on; and after one without an answer.
	recheckPause  = 1500 * time.Millisecond
	recheckTime   = time.Second            // for one answer
	retryPause    = 500 * time.Millisecond // after one that did not come
	uncheckedTime = 4 * time.Second        // without an answer, after which requests are ended
	// PostgreSQL's answer about a token; then 503.
	lookupTime = 3 * time.Second
)

// maxLookups bounds how many unknown secrets are looked up at once: guesses are not to use up the connections.
const maxLookups = 4

// How unknown secrets are looked up of addresses that are over their limit: one at a time, for all such addresses. So
// who has a good one gets in, also here for the first time, and made-up ones cost one connection at most.
const (
	turnTime = time.Second // how long one waits for its turn
	maxTurns = 64          // that wait at once
)

// maxTrusted bounds the memory of what was looked up lately.
const maxTrusted = 4096

// Defaults of Config.
const (
	DefaultSessionLife = 12 * time.Hour
	DefaultSessionIdle = time.Hour
)

// Store is what a gate keeps in the database.
type Store interface {
	TokenCredential(ctx context.Context, hash [32]byte) (identity.Credential, error)
	SessionCredential(ctx context.Context, hash [32]byte, idle time.Duration) (identity.Credential, error)
	StandingCredentials(ctx context.Context, hashes [][]byte, idle time.Duration) ([][]byte, error)
	NoteUse(ctx context.Context, hashes [][]byte) error
	BeginWebSession(ctx context.Context, n identity.NewWebSession) (identity.Credential, error)
	EndWebSession(ctx context.Context, hash [32]byte) error
	NoteFailedLogins(ctx context.Context, all []identity.FailedLogin) error
}

// Config is the settings of a Gate. A zero field means its default.
type Config struct {
	Log         *zap.Logger   // nil: none
	SessionLife time.Duration // of a browser's login, whatever happens
	SessionIdle time.Duration // without a request, and without a page that is open
	Throttle    ThrottleConfig
	// UnknownBurst and UnknownEvery bound what an address may ask with tokens and cookies that no one knows.
	UnknownBurst int
	UnknownEvery time.Duration
}

// Gate knows who is behind a secret, and ends what those do who are not wanted any more.
type Gate struct {
	store    Store
	log      *zap.Logger
	config   Config
	throttle *throttle
	unknown  *throttle // of tokens, cookies and ways back from a provider that are not good
	begins   *throttle // of logins by a provider
	ways     *throttle // back from a provider that are
	failures failures
	lookups  chan struct{} // one for each that is in progress
	turns    chan struct{} // one for each that waits for its turn, or has it
	turn     chan struct{} // has one while someone has it

	mu      sync.Mutex
	trusted map[[sha256.Size]byte]Principal
	known   map[[sha256.Size]byte]struct{} // that were good when they were asked for last
	under   underWay
}

// New returns a gate. It needs no closing: it is at rest while no request is in progress.
func New(store Store, config Config) (*Gate, error) {
	if store == nil {
		return nil, errors.New("access: a store is needed")
	}
	if config.SessionLife < 0 || config.SessionIdle < 0 {
		return nil, errors.New("access: a session's life and idle time must not be negative")
	}
	config.SessionLife = cmp.Or(config.SessionLife, DefaultSessionLife)
	config.SessionIdle = cmp.Or(config.SessionIdle, DefaultSessionIdle)
	if config.Log == nil {
		config.Log = zap.NewNop()
	}
	config.UnknownBurst = cmp.Or(config.UnknownBurst, DefaultUnknownBurst)
	config.UnknownEvery = cmp.Or(config.UnknownEvery, DefaultUnknownEvery)
	return &Gate{
		unknown: newAddressThrottle(config.UnknownBurst, config.UnknownEvery),
		begins:  newAddressThrottle(beginBurst, beginEvery),
		ways: newAddressThrottle(cmp.Or(config.Throttle.Burst, beginBurst),
			cmp.Or(config.Throttle.Every, beginEvery)),
		failures: failures{by: map[failing]*identity.FailedLogin{}}, known: map[[sha256.Size]byte]struct{}{},
		store: store, log: config.Log, config: config, throttle: newThrottle(config.Throttle),
		lookups: make(chan struct{}, maxLookups), turns: make(chan struct{}, maxTurns), turn: make(chan struct{}, 1),
		trusted: map[[sha256.Size]byte]Principal{}, under: underWay{by: map[[sha256.Size]byte]*watched{}},
	}, nil
}

// Token returns who has the token with this secret, which came from an address. The error is a RefusedError when no one
// may use it, a ThrottledError when there were too many of them from there, and any other when it could not be found
// out.
func (g *Gate) Token(ctx context.Context, address netip.Addr, secret string) (Principal, error) {
	return g.asked(ctx, address, byToken, HashOf(secret), WellFormed(secret), func() (Principal, error) {
		return g.token(ctx, address, secret)
	})
}

func (g *Gate) token(ctx context.Context, address netip.Addr, secret string) (p Principal, err error) {
	if err = error(&RefusedError{}); WellFormed(secret) {
		p, err = g.who(ctx, HashOf(secret), false, g.store.TokenCredential)
	}
	g.noteUnknown(address, byToken, err)
	return p, err
}

// Session returns whose browser has this cookie. Errors are those of Token.
func (g *Gate) Session(ctx context.Context, address netip.Addr, cookie string) (Principal, error) {
	return g.asked(ctx, address, byCookie, HashOf(cookie), wellFormedCookie(cookie), func() (Principal, error) {
		p, err := g.who(ctx, HashOf(cookie), true,
			func(ctx context.Context, hash [sha256.Size]byte) (identity.Credential, error) {
				return g.store.SessionCredential(ctx, hash, g.config.SessionIdle)
			})
		g.noteUnknown(address, byCookie, err)
		return p, err
	})
}

// asked lets an address look up secrets until too many of its were not known. It costs those nothing whose secret was
// good lately: they are not to suffer for a neighbour. The others from there take turns, and are told that there were
// too many when it is not known either.
func (g *Gate) asked(
	ctx context.Context, address netip.Addr, way string, hash [sha256.Size]byte, wellFormed bool,
	look func() (Principal, error),
) (Principal, error) {
	if g.isKnown(hash) {
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
	defer g.endTurn()
	p, err := look()
	if refused, ok := errors.AsType[*RefusedError](err); ok && refused.State == "" {
		return Principal{}, over
	}
	return p, err
}

func (g *Gate) isKnown(hash [sha256.Size]byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, known := g.known[hash]
	return known
}

// takeTurn waits for a turn, and reports whether it came in time.
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

func (g *Gate) endTurn() {
	<-g.turn
	<-g.turns
}

// noteUnknown counts a secret that is of no use, and tells the audit log of it. A session that is over in its time is
// no one's guess.
func (g *Gate) noteUnknown(address netip.Addr, way string, err error) {
	refused, ok := errors.AsType[*RefusedError](err)
	if !ok || refused.Session && refused.State == identity.TokenExpired {
		return
	}
	_ = g.unknown.try(address) // whether there was one left is seen the next time
	g.failed(address, way, refused.Error())
}

func (g *Gate) who(
	ctx context.Context, hash [sha256.Size]byte, session bool,
	look func(context.Context, [sha256.Size]byte) (identity.Credential, error),
) (Principal, error) {
	if p, ok := g.remembered(hash); ok {
		return p, nil
	}
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
	if subtle.ConstantTimeCompare(found.Hash, hash[:]) != 1 { // an index found it; this does not rest on that
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

// note notes a use. Who may do something may do it anyway when that fails.
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
		for hash, old := range g.trusted {
			if time.Since(old.checked) > trustTime {
				delete(g.trusted, hash)
			}
		}
	}
	if len(g.trusted) < maxTrusted {
		g.trusted[p.hash] = *p
	}
	for old := range g.known {
		if len(g.known) < maxTrusted {
			break
		}
		delete(g.known, old)
	}
	g.known[p.hash] = struct{}{}
}

// Forget has everything asked for again at once: something was revoked here.
func (g *Gate) Forget() {
	g.mu.Lock()
	clear(g.trusted)
	g.under.soon(g)
	g.mu.Unlock()
}
