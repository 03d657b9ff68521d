package kernel

import (
	"errors"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/workqueue/database"
)

// Everywhere is the pattern of what no other fits.
const Everywhere = "/"

// WrongMethod answers a request whose path is a route's with another method.
func WrongMethod(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) bool {
	var takes []string
	for _, method := range []string{
		http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern != Everywhere && pattern != "" {
			takes = append(takes, method)
		}
	}
	if len(takes) == 0 {
		return false
	}
	w.Header().Set("Allow", strings.Join(takes, ", "))
	WriteProblem(w, http.StatusMethodNotAllowed, Cut(r.URL.Path, MaxEchoed)+" takes "+strings.Join(takes, " and ")+
		", not "+Cut(r.Method, MaxEchoed))
	return true
}

// lookPatience is how long what only looks waits for a connection that was closed to be made anew.
const lookPatience = time.Second

// Guard refuses foreign hosts and origins, and who may not do what they ask for, and bounds how long a caller may be
// silent.
func (s *Kernel) Guard(mux *RouteMux) http.Handler {
	s.mux = mux
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		WriteProblem(w, http.StatusForbidden, "a page of another origin may not change anything here")
	}))
	protected := origins.Handler(http.HandlerFunc(s.authorised))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.active.Add(1)
		defer s.active.Done()
		timed, r := s.timed(w, r)
		if s.config.Meter != nil {
			defer timed.measure(s.config.Meter)
		}
		defer timed.left()
		patience := database.OperatorTimeout
		if r.Method == http.MethodGet {
			patience = lookPatience
		}
		s.admit(timed, r.WithContext(database.Patiently(r.Context(), patience)), protected)
		if !timed.body.whole && s.countStranger(timed, r) != nil {
			timed.body.drain = 0
		}
		timed.finish() // but not after a panic, which is to end the connection
	})
}

// admit lets a request in that names one of the server's hosts, and a path that means itself: the mux would lead a
// request for a run without a name on to what is done with all runs.
func (s *Kernel) admit(w http.ResponseWriter, r *http.Request, protected http.Handler) {
	named := func(host string) bool { return strings.EqualFold(host, hostOnly(r.Host)) }
	if !slices.ContainsFunc(s.config.Hosts, named) {
		WriteProblem(w, http.StatusForbidden, "the host "+Cut(r.Host, MaxEchoed)+" is not one of this server's; "+
			"use 127.0.0.1 or localhost, or name it with --allow-host")
		return
	}
	if at := r.URL.EscapedPath(); strings.HasPrefix(at, Prefix+"/") && path.Clean(at) != at {
		WriteProblem(w, http.StatusNotFound, Cut(at, MaxEchoed)+" is no path: a part of it is empty, . or ..; "+
			"write a name that is . or .. as %2E or %2E%2E")
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
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

// AwaitRequests waits for the handlers that Close leaves behind: a load takes back what it has written.
func (s *Kernel) AwaitRequests(patience time.Duration) error {
	ended := make(chan struct{})
	go func() { s.active.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-time.After(patience):
	}
	select {
	case <-ended: // meanwhile, if all of the process stood still
		return nil
	default:
		return errors.New("api: a request that was broken off does not end")
	}
}
