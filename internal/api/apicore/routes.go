package apicore

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/workqueue/database"
)

// Route is a route of the server and the role it requires. The marks of an operation are those of its route.
type Route struct {
	Pattern string      // as in http.ServeMux
	Role    access.Role // empty: closed to all
	Scope   RoleScope   // in which namespaces the caller needs it

	kind string // of the object in the path, with OfObject

	heavy       bool
	heavyIf     string   // a parameter that makes it heavy; empty: none
	broad       bool     // reads much; others wait
	broadIf     []string // parameters that make it broad
	held        bool     // the answer may be large and is held whole; others wait
	credentials bool     // about access; works even while everything else is stalled
	readsItems  bool     // shows payloads or results, which the audit log counts
	fourEyes    string   // the kind of act that --four-eyes names; empty: none
	preview     func(ctx context.Context, in any) (json.RawMessage, error)
	bulk        int64             // bytes of a body held whole; 0: not held
	streamed    *huma.RequestBody // read as a stream, without a time limit while bytes arrive
	unstored    bool              // the answer holds a secret
	anonymous   bool              // the caller is not looked up
	anyHost     bool              // probes and scrapes use addresses that are not configured
}

// RouteMux is a mux that remembers its patterns.
type RouteMux struct {
	*http.ServeMux

	patterns []string
	routes   map[string]Route
}

// NewRouteMux returns an empty mux.
func NewRouteMux() *RouteMux { return &RouteMux{ServeMux: http.NewServeMux()} }

// HandleFunc adds a route.
func (m *RouteMux) HandleFunc(pattern string, handle func(http.ResponseWriter, *http.Request)) {
	m.patterns = append(m.patterns, pattern)
	m.ServeMux.HandleFunc(pattern, handle)
}

// plainRoutes are the routes that are not operations, with their roles. Any other such route is closed.
func plainRoutes() []Route {
	routes := []Route{
		{Pattern: "GET /healthz", Role: access.None, anonymous: true, anyHost: true},
		{Pattern: "GET /readyz", Role: access.None, anyHost: true},
		{Pattern: "GET /metrics", Role: access.Viewer, anyHost: true},
		{Pattern: "GET " + SchemaPath, Role: access.None, anonymous: true},
		{Pattern: "GET " + OIDCLogin, Role: access.None, anonymous: true},
		{Pattern: "GET " + OIDCCallback, Role: access.None, anonymous: true},
		{Pattern: CatchAll, Role: access.None, anonymous: true}, // pages; nothing below Prefix
	}
	for _, described := range []string{"openapi.json", "openapi.yaml", "openapi-3.0.json", "openapi-3.0.yaml",
		"schemas/{schema}"} {
		routes = append(routes, Route{Pattern: "GET " + Prefix + "/" + described, Role: access.Watcher, Scope: Anywhere})
	}
	return routes
}

// Assign sets the route of each pattern, once all are registered.
func (m *RouteMux) Assign(described *huma.OpenAPI) {
	m.routes = map[string]Route{}
	for _, pattern := range m.patterns {
		m.routes[pattern] = Route{Pattern: pattern}
	}
	known := plainRoutes()
	for path, item := range described.Paths {
		for _, op := range DescribedOf(item) {
			r := *RouteOf(op)
			r.Pattern = op.Method + " " + Prefix + path
			parts := strings.SplitN(path, "/", 4)
			if r.kind = owned[strings.Join(parts[:min(len(parts), 3)], "/")]; r.kind != "" {
				r.Scope = OfObject
			}
			known = append(known, r)
		}
	}
	for _, r := range known {
		if _, ok := m.routes[r.Pattern]; ok {
			m.routes[r.Pattern] = r
		}
	}
}

func (m *RouteMux) route(r *http.Request) Route {
	_, pattern := m.Handler(r)
	if pattern == CatchAll && belowPrefix(r.URL.Path) {
		return Route{Pattern: pattern, Role: access.Watcher, Scope: Anywhere} // hides which paths exist
	}
	return m.routes[pattern]
}

func belowPrefix(path string) bool { return path == Prefix || strings.HasPrefix(path, Prefix+"/") }

// Bounded reports whether the route's concurrency is limited.
func (r *Route) Bounded() bool { return r.heavy || r.broad || r.held }

// Routes lists all routes.
func (s *Core) Routes() []Route {
	return slices.SortedFunc(maps.Values(s.mux.routes), func(a, b Route) int {
		return strings.Compare(a.Pattern, b.Pattern)
	})
}

// DescribedOf lists the operations of a path.
func DescribedOf(item *huma.PathItem) (all []*huma.Operation) {
	for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Delete, item.Patch} {
		if op != nil {
			all = append(all, op)
		}
	}
	return all
}

// Paths for OIDC: where a login begins, and the redirect URI.
const (
	OIDCLogin    = "/auth/oidc/login"
	OIDCCallback = "/auth/oidc/callback"
)

// SchemaPath is the path of the JSON Schemas of documents.
const SchemaPath = "/schemas/{file}"

// CatchAll is the pattern that matches everything else.
const CatchAll = "/"

// WrongMethod answers a request whose path exists with other methods only.
func WrongMethod(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) bool {
	var takes []string
	for _, method := range []string{
		http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern != CatchAll && pattern != "" {
			takes = append(takes, method)
		}
	}
	if len(takes) == 0 {
		return false
	}
	w.Header().Set("Allow", strings.Join(takes, ", "))
	WriteProblem(w, http.StatusMethodNotAllowed, Echo(r.URL.Path)+" takes "+strings.Join(takes, " and ")+
		", not "+Echo(r.Method))
	return true
}

// lookTimeout is how long a read waits for a closed connection to be reopened.
const lookTimeout = time.Second

// Guard wraps the mux: it refuses foreign hosts and origins and callers without permission, and limits silence.
func (s *Core) Guard(mux *RouteMux) http.Handler {
	s.mux = mux
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		WriteProblem(w, http.StatusForbidden, "a page of another origin may not change anything here")
	}))
	protected := origins.Handler(http.HandlerFunc(s.authorized))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.active.Add(1)
		defer s.active.Done()
		timed, r := s.timed(w, r)
		if s.config.Meter != nil {
			defer timed.measure(s.config.Meter)
		}
		defer timed.left()
		defer s.noteRefused(timed, r)
		patience := database.OperatorTimeout
		if r.Method == http.MethodGet {
			patience = lookTimeout
		}
		s.admit(timed, r.WithContext(database.Patiently(r.Context(), patience)), protected)
		if !timed.body.whole && s.countStranger(timed, r) != nil {
			timed.body.drain = 0
		}
		timed.finish() // not after a panic, which must end the connection
	})
}

// admit checks that the request names one of the server's hosts, unless its route takes any, and has a clean path.
// The mux would redirect a request for a run without a name to the operation on all runs.
func (s *Core) admit(w http.ResponseWriter, r *http.Request, protected http.Handler) {
	named := func(host string) bool { return strings.EqualFold(host, hostOnly(r.Host)) }
	if route := s.mux.route(r); !route.anyHost && !slices.ContainsFunc(s.config.Hosts, named) {
		WriteProblem(w, http.StatusForbidden, "the host "+Echo(r.Host)+" is not one of this server's; "+
			"use 127.0.0.1 or localhost, or name it with --allow-host")
		return
	}
	at := r.URL.EscapedPath()
	if belowPrefix(r.URL.Path) && !belowPrefix(at) { // the mux would serve it, and nothing else would know it
		WriteProblem(w, http.StatusNotFound, Echo(at)+" is not a path: write "+Prefix+" without escapes")
		return
	}
	if belowPrefix(at) && path.Clean(at) != at {
		WriteProblem(w, http.StatusNotFound, Echo(at)+" is not a path: a part of it is empty, . or ..; "+
			"write a name that is . or .. as %2E or %2E%2E")
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if s.config.SecureCookies && hostOnly(r.Host) != "localhost" { // a host has other servers on other ports
		w.Header().Set("Strict-Transport-Security", "max-age=31536000")
	}
	protected.ServeHTTP(w, r)
}

func hostOnly(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	if len(host) > 2 && host[0] == '[' {
		return host[1 : len(host)-1]
	}
	return host
}

// Close writes what was counted for the audit log.
func (s *Core) Close() {
	var closing sync.WaitGroup
	closing.Go(s.reads.Close)
	closing.Go(s.refusals.Close)
	closing.Wait()
}

// AwaitRequests waits for the handlers still running after Close: a load discards what it has written.
func (s *Core) AwaitRequests(patience time.Duration) error {
	ended := make(chan struct{})
	go func() { s.active.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-time.After(patience):
	}
	select {
	case <-ended: // just now, if the whole process was stalled
		return nil
	default:
		return errors.New("api: a request that was interrupted does not end")
	}
}

const metaRoute = "route"

// RouteOf returns the marks of an operation.
func RouteOf(op *huma.Operation) *Route {
	r, _ := op.Metadata[metaRoute].(Route)
	return &r
}

// Scans reports whether an operation reads a whole run or more.
func (r *Route) Scans() bool { return r.heavy }

// Streamed describes a body that is read as a stream; nil: it is not.
func (r *Route) Streamed() *huma.RequestBody { return r.streamed }

func marked(op huma.Operation, mark func(*Route)) huma.Operation {
	r := RouteOf(&op)
	mark(r)
	op.Metadata = map[string]any{metaRoute: *r}
	return op
}

func by(role access.Role, op huma.Operation) huma.Operation {
	return marked(op, func(r *Route) { r.Role = role })
}

// ByAnyone opens an operation to callers that are not logged in.
func ByAnyone(op huma.Operation) huma.Operation { return by(access.None, op) }

// ByWatcher requires the lowest role: the answer has no keys, payloads or results.
func ByWatcher(op huma.Operation) huma.Operation { return by(access.Watcher, op) }

// ByOperator requires the operator role.
func ByOperator(op huma.Operation) huma.Operation { return by(access.Operator, op) }

// ByAdmin requires the admin role.
func ByAdmin(op huma.Operation) huma.Operation { return by(access.Admin, op) }

// ScansRun marks an operation that reads a whole run or more, to limit its concurrency.
func ScansRun(op huma.Operation) huma.Operation {
	return marked(op, func(r *Route) { r.heavy = true })
}

// ScansRunIf marks an operation as heavy if a parameter is true, and as broad otherwise.
func ScansRunIf(parameter string, op huma.Operation) huma.Operation {
	return marked(op, func(r *Route) { r.broad, r.heavyIf = true, parameter })
}

// ReadsMany marks an operation that reads much of a run, to limit its concurrency.
func ReadsMany(op huma.Operation) huma.Operation {
	return marked(op, func(r *Route) { r.broad = true })
}

// BroadIf marks an operation as broad if one of the parameters is present, since it then searches everything.
func BroadIf(op huma.Operation, parameters ...string) huma.Operation {
	return marked(op, func(r *Route) { r.broadIf = parameters })
}

// Held marks an operation whose large answer is held until its reader has taken it, to limit the concurrency.
func Held(op huma.Operation) huma.Operation {
	return marked(op, func(r *Route) { r.held = true })
}

// ReadsItems marks an operation that shows payloads or results: the audit log counts its uses.
func ReadsItems(op huma.Operation) huma.Operation {
	return marked(op, func(r *Route) { r.readsItems = true })
}

// AboutCredentials marks an operation that uses separate database connections.
func AboutCredentials(op huma.Operation) huma.Operation {
	return marked(op, func(r *Route) { r.credentials = true })
}

// Streamed marks and describes a body that is read as a stream; other bodies must arrive within a time. huma must not
// see the body, or it would hold all of it.
func Streamed(op huma.Operation, body *huma.RequestBody) huma.Operation {
	return marked(op, func(r *Route) { r.streamed = body })
}

// Unstored marks an operation whose answer holds a secret.
func Unstored(op huma.Operation) huma.Operation {
	return marked(op, func(r *Route) { r.unstored = true })
}
