package kernel

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/queryparam"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/workqueue/database"
)

// How many requests may be in progress that read whole runs, one page after the other, or much of one at once. Each of
// them holds a connection while it reads, so they may have these shares of what the store has, and one user half of a
// share: what is left is for all other requests, and for the node.
const (
	heavyShare = 2 // one of so many
	broadShare = 4
	// broadTimeout is how long one of the latter waits for its turn: pages ask for several of them at once.
	broadTimeout = 5 * time.Second
	// maxHeld is how many answers may be in progress at once that are held as a whole until the slowest of readers has
	// taken them, and one user half of them; the others wait for a turn, too. One may be a result of 64 MiB.
	maxHeld = 8
)

// slotsOf are those of a server. Where no one says who they are, all are one.
func slotsOf(gate *access.Gate, all int) *access.Slots {
	all = max(all, 1)
	if gate == nil {
		return access.NewSlots(all, all)
	}
	return access.NewSlots(max(all/2, 1), all)
}

// challenge tells a client how to say who it is.
const challenge = `Bearer realm="tranche"`

type deniedError struct {
	status int
	detail string
}

func (e *deniedError) Error() string { return e.detail }

// Denied is an error about what someone may not do.
func Denied(status int, detail string) error { return &deniedError{status, detail} }

// authorised lets a request in whose maker may do what it asks for. What says nowhere who may do it, no one may.
func (s *Kernel) authorised(w http.ResponseWriter, r *http.Request) {
	route := s.mux.route(r)
	noteRoute(w, route.Pattern, s.Access == nil)
	if err := checkSite(r); err != nil {
		s.Deny(w, r, err)
		return
	}
	if route.Role == "" {
		s.Deny(w, r, &deniedError{http.StatusForbidden, "no one may do this: " + Cut(r.URL.Path, MaxEchoed) +
			" does not say which role it needs, which is a mistake in this version of tranche"})
		return
	}
	if route.streamed {
		streamBody(r)
	}
	user := ""
	if s.Access != nil && route.anonymous {
		r.Header.Del(ActorHeader) // no one was asked who they are
	}
	if s.Access != nil && !route.anonymous {
		who, err := s.permitted(r, route.Role)
		if err != nil {
			s.Deny(w, r, err)
			return
		}
		if who != nil {
			ctx, done := s.Access.Admit(r.Context(), *who)
			defer done()
			allow := refuseBody(ctx, r)
			defer allow()
			r, user = madeBy(ctx, r, who), who.Name
			noteRole(w, who.Role)
			makeKnown(w)
		} else {
			r.Header.Del(ActorHeader)
		}
	}
	giveBack, err := s.takeSlot(w, r, &route, user)
	if err != nil {
		s.Deny(w, r, err)
		return
	}
	defer giveBack()
	if route.bulk > 0 {
		leave, err := s.bulk.Enter(r, route.bulk)
		if err != nil {
			s.Deny(w, r, err)
			return
		}
		defer leave()
	}
	if route.Role == access.None { // it changes nothing, and who no one knows is not told who used a key for what
		s.mux.ServeHTTP(w, r)
		return
	}
	if route.credentials {
		r = r.WithContext(database.ForCredentials(r.Context()))
	}
	s.idempotent(s.mux, w, r, route.unstored)
}

// takeSlot takes what a request needs that reads much, and counts one of a stranger's.
func (s *Kernel) takeSlot(
	w http.ResponseWriter, r *http.Request, route *Route, user string,
) (giveBack func(), err error) {
	if err := s.countStranger(w, r); err != nil {
		return nil, err
	}
	said := saidIn(r)
	switch {
	case route.heavy || route.heavyIf != "" && slices.ContainsFunc(said(route.heavyIf), isTrue):
		return s.heavy.Take(user)
	case route.broad || slices.ContainsFunc(route.broadIf, func(name string) bool { return len(said(name)) > 0 }):
		return s.broad.Await(r.Context(), user, s.Turn)
	case route.held:
		return s.held.Await(r.Context(), user, s.Turn)
	}
	return func() {}, nil
}

// saidIn returns what a query says of a parameter, in the ways of all who read it after this: they do not agree about a
// semicolon, or a name without a value.
func saidIn(r *http.Request) func(name string) []string {
	query := r.URL.Query()
	return func(name string) []string {
		said := slices.Clone(query[name])
		if value := queryparam.Get(r.URL.RawQuery, name); value != "" {
			said = append(said, value)
		}
		return said
	}
}

// isTrue reads a parameter in the way of whoever reads it after this; what neither can read is refused there.
func isTrue(value string) bool {
	is, err := strconv.ParseBool(value)
	return err == nil && is
}

// madeBy makes a request one of someone's. What the client says of itself is not believed.
func madeBy(ctx context.Context, r *http.Request, who *access.Principal) *http.Request {
	r = r.WithContext(ctx)
	r.Header = r.Header.Clone()
	r.Header.Set(ActorHeader, who.Name)
	r.Header.Del("Authorization") // nothing behind this needs it
	return r
}

// permitted returns who asks, when they may; nil for no one, where no one is needed.
func (s *Kernel) permitted(r *http.Request, needed access.Role) (*access.Principal, error) {
	who, err := s.whoAsks(r)
	switch {
	case err == nil:
	case needed != access.None:
		return nil, err
	case refused(err):
		return nil, nil //nolint:nilnil // what needs no one gets no one
	default: // it is there for everybody, and tells them what is wrong
		return nil, nil //nolint:nilnil // as above
	}
	if !who.Role.Allows(needed) {
		return nil, &deniedError{http.StatusForbidden, "this needs the role " + string(needed) + ", and " + who.Name +
			" has the role " + string(who.Role) + "; an admin makes tokens: tranche token create --role " + string(needed)}
	}
	if err := checkCookieUse(r, &who); err != nil {
		return nil, err
	}
	return &who, nil
}

// whoAsks finds out who makes a request: by its token, or else by its cookie.
func (s *Kernel) whoAsks(r *http.Request) (access.Principal, error) {
	if header := r.Header.Get("Authorization"); header != "" {
		scheme, secret, _ := strings.Cut(header, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return access.Principal{}, &deniedError{http.StatusUnauthorized,
				"the header Authorization must be Bearer and a token"}
		}
		return s.Access.Token(r.Context(), s.CallerAddress(r), strings.TrimSpace(secret))
	}
	if cookie, err := r.Cookie(s.CookieName()); err == nil && cookie.Value != "" {
		return s.Access.Session(r.Context(), s.CallerAddress(r), cookie.Value)
	}
	return access.Principal{}, access.ErrNobody
}

// refused reports whether an error says that someone is no one, and not that it could not be found out.
func refused(err error) bool {
	_, secret := errors.AsType[*access.RefusedError](err)
	_, denied := errors.AsType[*deniedError](err)
	return secret || denied || errors.Is(err, access.ErrNobody)
}

// checkSite refuses what a page of another site makes a browser ask for: it could not read the answer, but it could
// keep the server busy, and learn from how long that takes. A link to here is fine.
func checkSite(r *http.Request) error {
	site := r.Header.Get("Sec-Fetch-Site")
	foreign := site == "cross-site" || site == "same-site" // the same host, but another port, may be someone else
	link := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
		r.Header.Get("Sec-Fetch-Dest") == "document"
	if foreign && belowPrefix(r.URL.Path) && !link {
		return &deniedError{http.StatusForbidden, "a page of another origin may not use this API"}
	}
	return nil
}

// checkCookieUse refuses a change by a cookie alone, unless the browser says that it comes from a page of ours. Those
// of other origins have been refused by then; this is about clients that do not say where a request comes from.
func checkCookieUse(r *http.Request, who *access.Principal) error {
	if !who.Session || r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil
	}
	site := r.Header.Get("Sec-Fetch-Site")
	if site == "same-origin" || site == "" && r.Header.Get("Origin") != "" {
		return nil
	}
	return &deniedError{http.StatusForbidden, "a change by cookie is for the pages of this server only; " +
		"send a token in the header Authorization: Bearer"}
}

// Deny answers a request that was not let in.
func (s *Kernel) Deny(w http.ResponseWriter, r *http.Request, err error) {
	p := s.Problem(r.Context(), err)
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close") // the server would wait for the rest of the body else
	}
	maps.Copy(w.Header(), problemHeaders(p, err))
	SendProblem(w, p)
}

// busyRetry is when to try again what others keep from being done, in seconds.
const busyRetry = 5

func retryAfter(err error) int {
	if throttled, ok := errors.AsType[*access.ThrottledError](err); ok {
		return throttled.Seconds()
	}
	if _, ok := errors.AsType[*access.BusyError](err); ok {
		return busyRetry
	}
	if full, ok := errors.AsType[*trackerclient.Error](err); ok && full.Code == trackerclient.CodeBusy {
		return busyRetry
	}
	if as[*ingest.OverloadedError](err) != nil || as[*tooManyError](err) != nil ||
		as[*intake.NoRoomError](err) != nil || as[*ingest.EnrichError](err) != nil {
		return busyRetry
	}
	return 0
}

// accessProblem returns the status and the text of an error about who may do what; 0 for any other.
func accessProblem(err error) (status int, detail string) {
	if denied, ok := errors.AsType[*deniedError](err); ok {
		return denied.status, denied.detail
	}
	if bad, ok := errors.AsType[*access.RefusedError](err); ok {
		return http.StatusUnauthorized, bad.Error() + "; " + howToLogIn
	}
	if bad, ok := errors.AsType[*access.DeniedError](err); ok {
		if bad.Role {
			return http.StatusForbidden, bad.Error()
		}
		return http.StatusUnauthorized, bad.Error()
	}
	if away, ok := errors.AsType[*access.ProviderError](err); ok {
		return http.StatusServiceUnavailable, away.Error() + "; try again soon, or log in with a token"
	}
	if throttled, ok := errors.AsType[*access.ThrottledError](err); ok {
		return http.StatusTooManyRequests, throttled.Error()
	}
	if busy, ok := errors.AsType[*access.BusyError](err); ok {
		return http.StatusTooManyRequests, busy.Error()
	}
	if errors.Is(err, access.ErrRevoked) {
		return http.StatusUnauthorized, "the request was interrupted: " + access.ErrRevoked.Error()
	}
	if errors.Is(err, access.ErrUnchecked) {
		return http.StatusServiceUnavailable, "the request was interrupted: PostgreSQL does not say whether it may go on"
	}
	if errors.Is(err, access.ErrNobody) {
		return http.StatusUnauthorized, "this server needs a login; " + howToLogIn
	}
	return 0, ""
}

const howToLogIn = "send a token in the header Authorization: Bearer (--token-file or TRANCHE_TOKEN on the command " +
	"line), or log in at /login; an admin makes tokens: tranche token create"

// CallerAddress is where a request comes from. A proxy of ours says so in the last part of X-Forwarded-For; those
// before it are whatever the caller sent. When it cannot be read, it is the proxy's own.
func (s *Kernel) CallerAddress(r *http.Request) netip.Addr {
	address, _ := addressIn(r.RemoteAddr) // what is none shares its tries with others like it
	ours := func(p netip.Prefix) bool { return p.Contains(address) }
	if chain := r.Header.Values("X-Forwarded-For"); len(chain) > 0 && slices.ContainsFunc(s.config.TrustedProxies, ours) {
		last := chain[len(chain)-1]
		if from, ok := addressIn(strings.TrimSpace(last[strings.LastIndexByte(last, ',')+1:])); ok {
			return from
		}
	}
	return address
}

func addressIn(text string) (netip.Addr, bool) {
	if with, err := netip.ParseAddrPort(text); err == nil {
		return with.Addr().Unmap(), true
	}
	address, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return address.Unmap(), err == nil
}

// Names of the cookie of a browser that has logged in. With TLS it has the prefix by which browsers take it from this
// very host only.
const (
	sessionCookie       = "tranche_session"
	secureSessionCookie = "__Host-" + sessionCookie
)

// CookieName is that of the cookie of a browser that has logged in.
func (s *Kernel) CookieName() string {
	if s.config.SecureCookies {
		return secureSessionCookie
	}
	return sessionCookie
}

// Members of an operation's metadata.
const (
	MetaRole       = "role"     // an access.Role: who may. Without it no one may
	MetaScansRun   = "heavy"    // true: few at once
	metaScansRunIf = "heavy if" // a string: few at once of those in which this parameter is true
	metaReadsMany  = "broad"    // true: few at once, and the others wait for a while
	metaBroadIf    = "broad if" // []string: so when one of these parameters is there
	metaHeld       = "held"     // true: its answer may be large and is held as a whole; few at once, and the others wait
	metaCredent    = "credent"  // true: it is about who may do what, and goes on while all else is stalled
	metaBulk       = "bulk"     // an int64: its body, of so many bytes, is held as a whole, and few are at once
	MetaStreamed   = "streamed" // an *huma.RequestBody that is read as it comes, and may take as long as it keeps coming
	metaUnstored   = "unstored" // true: its answer holds a secret, and is kept nowhere
)

// ByAnyone says that an operation is open to those who have not logged in.
func ByAnyone(op huma.Operation) huma.Operation { return noted(op, MetaRole, access.None) }

func byViewer(op huma.Operation) huma.Operation { return noted(op, MetaRole, access.Viewer) }

// ByOperator says that an operation changes what operators may change.
func ByOperator(op huma.Operation) huma.Operation { return noted(op, MetaRole, access.Operator) }

// ByAdmin says that an operation is for admins.
func ByAdmin(op huma.Operation) huma.Operation { return noted(op, MetaRole, access.Admin) }

// ScansRun says that an operation reads a whole run or more: only a few of them are done at once.
func ScansRun(op huma.Operation) huma.Operation { return noted(op, MetaScansRun, true) }

// ScansRunIf says that an operation is heavy when a parameter of it is true, and broad otherwise.
func ScansRunIf(parameter string, op huma.Operation) huma.Operation {
	return noted(ReadsMany(op), metaScansRunIf, parameter)
}

// ReadsMany says that an operation reads much of a run at once: only a few of them are done at once.
func ReadsMany(op huma.Operation) huma.Operation { return noted(op, metaReadsMany, true) }

// BroadIf says that an operation is broad when one of some parameters is there: it looks through everything then.
func BroadIf(op huma.Operation, parameters ...string) huma.Operation {
	return noted(op, metaBroadIf, parameters)
}

// Held says that the answer of an operation may be large, and is held as a whole for as long as its reader takes: only
// a few of them are in progress at once.
func Held(op huma.Operation) huma.Operation { return noted(op, metaHeld, true) }

// AboutCredentials says that an operation has connections of its own to the database.
func AboutCredentials(op huma.Operation) huma.Operation { return noted(op, metaCredent, true) }

// Streamed says that the body of an operation is read as it comes, and describes it. Others must be there within a
// time. huma must not know of it, or would hold it as a whole.
func Streamed(op huma.Operation, body *huma.RequestBody) huma.Operation {
	return noted(op, MetaStreamed, body)
}

// Unstored says that the answer of an operation holds a secret.
func Unstored(op huma.Operation) huma.Operation { return noted(op, metaUnstored, true) }

// IsSet reports whether an operation was marked so.
func IsSet(op *huma.Operation, name string) bool {
	set, _ := op.Metadata[name].(bool)
	return set
}

func noted(op huma.Operation, name string, value any) huma.Operation {
	op.Metadata = maps.Clone(op.Metadata)
	if op.Metadata == nil {
		op.Metadata = map[string]any{}
	}
	op.Metadata[name] = value
	return op
}

// maxStrangers is how many requests may be in progress at once that come from one address, which of IPv6 is a network
// of 64 bits, and of which it is not known who makes them: logins, pages, and the rest of bodies that were refused.
// Over HTTP/2 a browser asks for all files of the dashboard at once, more than a hundred, and several people may share
// one.
const maxStrangers = 512

// countStranger counts a request, until it has ended, unless it is known who makes it. It returns a BusyError when too
// many come from there already. Where no one says who they are, none is a stranger.
func (s *Kernel) countStranger(w http.ResponseWriter, r *http.Request) error {
	timed, ok := w.(*timedWriter)
	if s.Access == nil || !ok || timed.known || timed.leave != nil || isProbe(r) {
		return nil
	}
	leave, err := s.Unauthenticated.Take(access.NetworkOf(s.CallerAddress(r)).String())
	if busy, ok := errors.AsType[*access.BusyError](err); ok {
		busy.Unauthenticated = true
		return busy
	}
	timed.leave = leave
	return nil
}

// isProbe says whether someone only looks how the node is. Such a request has next to nothing to hold, and who watches
// over the node may share the address of strangers.
func isProbe(r *http.Request) bool {
	return (r.URL.Path == "/healthz" || r.URL.Path == "/readyz") && r.ContentLength == 0
}

// makeKnown says that it is known who makes a request.
func makeKnown(w http.ResponseWriter) {
	if timed, ok := w.(*timedWriter); ok {
		timed.known = true
	}
}

// left says that a request has ended.
func (t *timedWriter) left() {
	if t.leave != nil {
		t.leave()
	}
}
