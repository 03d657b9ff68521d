package apicore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
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
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

// Limits on concurrent requests that read whole runs, page by page, or much of one run. Each holds a
// connection while it reads. So they get these shares of the store's connections, and one user half a share; the rest
// is for other requests and for the node.
const (
	heavyShare = 2 // 1/N of the connections
	broadShare = 4
	// broadTimeout is how long a broad request waits for its turn: pages send several concurrently.
	broadTimeout = 5 * time.Second
	// maxHeld limits the answers that are entirely in memory until a slow reader has taken them; one user gets half.
	// Others wait for a turn. An answer may be a result of 64 MiB.
	maxHeld = 8
)

// slotsOf returns the slots of a server. Without authentication all callers are one user.
func slotsOf(gate *access.Gate, all int) *access.Slots {
	all = max(all, 1)
	if gate == nil {
		return access.NewSlots(all, all)
	}
	return access.NewSlots(max(all/2, 1), all)
}

const challenge = `Bearer realm="tranche"`

type deniedError struct {
	status int
	detail string
}

func (e *deniedError) Error() string { return e.detail }

// Denied returns an error for a caller that lacks permission.
func Denied(status int, detail string) error { return &deniedError{status, detail} }

// authorized serves a request if its caller has the route's role. A route without a role is closed to all.
func (s *Core) authorized(w http.ResponseWriter, r *http.Request) {
	route := s.mux.route(r)
	timed := timedOf(w)
	timed.route, timed.role = route.Pattern, map[bool]access.Role{true: access.Admin}[s.Access == nil]
	if err := checkSite(r); err != nil {
		s.Deny(w, r, err)
		return
	}
	if route.Role == "" {
		s.Deny(w, r, &deniedError{http.StatusForbidden, "no one may do this: " + Echo(r.URL.Path) +
			" does not say which role it needs, which is a mistake in this version of tranche"})
		return
	}
	if route.streamed != nil {
		timed.body.until = time.Time{}
	}
	user := ""
	if s.Access != nil && route.anonymous {
		r.Header.Del(ActorHeader) // no caller was identified
	}
	if s.Access != nil && !route.anonymous {
		who, scoped, err := s.permitted(w, r, &route)
		if err != nil {
			s.Deny(w, r, err)
			return
		}
		if r = r.WithContext(scoped); who != nil {
			ctx, done := s.Access.Admit(r.Context(), *who)
			defer done()
			allow := timed.body.refuse(ctx)
			defer allow()
			r, user = r.WithContext(ctx), who.Name
			r.Header = r.Header.Clone()
			r.Header.Set(ActorHeader, user)
			r.Header.Del("Authorization") // not needed further on
			timed.role, timed.known = who.Role, true
		} else {
			r.Header.Del(ActorHeader)
		}
	} else if !route.anonymous {
		scoped, err := s.limitToNamespaces(r, &route, nil)
		if err != nil {
			s.Deny(w, r, err)
			return
		}
		r = r.WithContext(scoped)
	}
	r = s.withOrigin(w, r)
	leave, err := admitted(s, w, r, &route, user)
	if err != nil {
		s.Deny(w, r, err)
		return
	}
	defer leave()
	if route.Role == access.None { // a read; anonymous callers must not learn who used a key for what
		s.mux.ServeHTTP(w, r)
		return
	}
	if route.credentials {
		r = r.WithContext(database.ForCredentials(r.Context()))
	}
	s.idempotent(s.mux, w, r, route.unstored)
}

// admitted applies the limits on rates, slots and bulk data to a request. leave ends an admitted one.
func admitted(s *Core, w http.ResponseWriter, r *http.Request, route *Route, user string) (leave func(), err error) {
	if s.Access != nil && user == "" && belowPrefix(r.URL.Path) { // not pages and probes
		if err := s.Access.TryRequest("", s.CallerAddress(r), r.Method != http.MethodGet); err != nil {
			return nil, err
		}
	}
	giveBack, err := s.takeSlot(w, r, route, user)
	if err != nil || route.bulk == 0 {
		return giveBack, err
	}
	leaveBulk, err := s.bulk.Enter(r, route.bulk)
	if err != nil {
		giveBack()
		return nil, err
	}
	return func() { leaveBulk(); giveBack() }, nil
}

func (s *Core) takeSlot(
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

// saidIn returns a query parameter as all later readers parse it: they disagree about semicolons and names without a
// value.
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

func isTrue(value string) bool {
	is, err := strconv.ParseBool(value)
	return err == nil && is
}

// RequestHeader has the ID of a request, for the audit log: the caller's, or one that the server makes.
const RequestHeader = "X-Request-Id"

// maxRequestID limits a caller's ID of a request.
const maxRequestID = 64

func (s *Core) withOrigin(w http.ResponseWriter, r *http.Request) *http.Request {
	var o workqueue.Origin
	if who, ok := access.From(r.Context()); ok {
		o = who.Origin()
	}
	o.Request = r.Header.Get(RequestHeader)
	if odd := func(c rune) bool { return c < '!' || c > '~' }; o.Request == "" || len(o.Request) > maxRequestID ||
		strings.ContainsFunc(o.Request, odd) {
		o.Request = rand.Text()[:12]
	}
	w.Header().Set(RequestHeader, o.Request)
	if address := s.CallerAddress(r); address.IsValid() {
		o.Address = address.String()
	}
	caller := Cut(r.Header.Get(ActorHeader), MaxActorBytes)
	timedOf(w).caller = caller
	ctx := context.WithValue(workqueue.WithOrigin(r.Context(), o), requestKey{}, r)
	return r.WithContext(context.WithValue(ctx, callerKey{}, caller))
}

type callerKey struct{}

// noteRead counts a read of payloads or results in the audit log.
func (s *Core) noteRead(ctx context.Context, op *huma.Operation, in any) {
	if !RouteOf(op).readsItems {
		return
	}
	caller, _ := ctx.Value(callerKey{}).(string)
	run := ""
	if of, ok := in.(interface{ run() workqueue.RunID }); ok {
		run = of.run().String()
	}
	s.reads.Read(caller, op.OperationID, run)
}

// noteRefused counts a refused request in the audit log.
func (s *Core) noteRefused(t *timedWriter, r *http.Request) {
	if t.status == http.StatusUnauthorized || t.status == http.StatusForbidden {
		s.refusals.Refused(s.CallerAddress(r), t.caller, cmp.Or(t.route, noRoute), strconv.Itoa(t.status))
	}
}

// permitted returns the caller if permitted, and the context of the request; no caller for an anonymous one of a public
// route.
func (s *Core) permitted(
	w http.ResponseWriter, r *http.Request, route *Route,
) (*access.Principal, context.Context, error) {
	who, err := s.whoAsks(r)
	if err != nil {
		if route.Role == access.None { // what needs no one gets no one
			err = nil
		}
		return nil, r.Context(), err
	}
	timedOf(w).caller = who.Name
	scoped := r.Context()
	if err = s.Access.TryRequest(who.Name, s.CallerAddress(r), r.Method != http.MethodGet); err == nil {
		scoped, err = s.limitToNamespaces(r, route, &who) // asks the database
	}
	if err == nil {
		err = checkCookieUse(r, &who)
	}
	return &who, scoped, err
}

func (s *Core) whoAsks(r *http.Request) (access.Principal, error) {
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
	if address, _ := addressIn(r.RemoteAddr); isAmong(s.config.TrustedProxies, address) { // it is not the caller
		return access.Principal{}, access.ErrNobody
	}
	return s.config.Certificates.Caller(r.TLS)
}

// checkSite refuses requests that a page of another site makes a browser send. That page could not read the answer,
// but could keep the server busy and learn from its timing. Following a link to this server is fine.
func checkSite(r *http.Request) error {
	site := r.Header.Get("Sec-Fetch-Site")
	foreign := site == "cross-site" || site == "same-site"            // the same host, but maybe another owner's port
	if origin := r.Header.Get("Origin"); site == "" && origin != "" { // an old browser
		from, err := url.Parse(origin)
		foreign = err != nil || from.Host != r.Host
	}
	link := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
		r.Header.Get("Sec-Fetch-Dest") == "document"
	if foreign && belowPrefix(r.URL.Path) && !link {
		return &deniedError{http.StatusForbidden, "a page of another origin may not use this API"}
	}
	return nil
}

// checkCookieUse refuses a change authenticated by a cookie alone, unless the browser says that it comes from this
// server's pages. Other origins are refused before; this covers clients that do not state the origin.
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

// Deny answers a request that was not permitted.
func (s *Core) Deny(w http.ResponseWriter, r *http.Request, err error) {
	p := s.Problem(r.Context(), err)
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close") // else the server would wait for the rest of the body
	}
	maps.Copy(w.Header(), problemHeaders(p, err))
	SendProblem(w, p)
}

const busyRetry = 5 // Retry-After of a busy server, in seconds

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
		return http.StatusServiceUnavailable, "the request was interrupted: PostgreSQL does not say whether it may continue"
	}
	if errors.Is(err, access.ErrNobody) {
		return http.StatusUnauthorized, "this server needs a login; " + howToLogIn
	}
	return 0, ""
}

const howToLogIn = "send a token in the header Authorization: Bearer (--token-file or TRANCHE_TOKEN on the command " +
	"line), or log in at /login; an admin makes tokens: tranche token create"

// CallerAddress returns the address of the caller. A trusted proxy gives it as the last part of X-Forwarded-For;
// earlier parts come from the caller and are ignored. If unreadable, it is the proxy's address.
func (s *Core) CallerAddress(r *http.Request) netip.Addr {
	address, _ := addressIn(r.RemoteAddr) // invalid addresses share one throttle
	if chain := r.Header.Values("X-Forwarded-For"); len(chain) > 0 && isAmong(s.config.TrustedProxies, address) {
		last := chain[len(chain)-1]
		if from, ok := addressIn(strings.TrimSpace(last[strings.LastIndexByte(last, ',')+1:])); ok {
			return from
		}
	}
	return address
}

func isAmong(networks []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(address) })
}

func addressIn(text string) (netip.Addr, bool) {
	if with, err := netip.ParseAddrPort(text); err == nil {
		return with.Addr().Unmap(), true
	}
	address, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return address.Unmap(), err == nil
}

// Names of the session cookie. With TLS its prefix makes browsers accept it from this very host only.
const (
	sessionCookie       = "tranche_session"
	secureSessionCookie = "__Host-" + sessionCookie
)

// CookieName returns the name of the session cookie.
func (s *Core) CookieName() string {
	if s.config.SecureCookies {
		return secureSessionCookie
	}
	return sessionCookie
}

// maxStrangers limits the unauthenticated requests in progress per address, or per /64 network in IPv6: logins,
// pages, and rests of refused bodies. Over HTTP/2 a browser loads more than a hundred dashboard files concurrently,
// and several people may share an address.
const maxStrangers = 512

// countStranger counts a request without a known caller until it ends, or returns a BusyError if its address has too
// many. Without authentication none are counted.
func (s *Core) countStranger(w http.ResponseWriter, r *http.Request) error {
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

// isProbe reports whether a request is a health check. It holds almost nothing, and the monitoring may share an
// address with unauthenticated callers.
func isProbe(r *http.Request) bool {
	return (r.URL.Path == "/healthz" || r.URL.Path == "/readyz") && r.ContentLength == 0
}

func (t *timedWriter) left() {
	if t.leave != nil {
		t.leave()
	}
}
