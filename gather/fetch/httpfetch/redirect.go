package httpfetch

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
)

// redirectError is a redirect that is not followed. Where it leads is not said: a service could put anything there.
type redirectError struct{ why string }

func (e *redirectError) Error() string { return "the service sends elsewhere, and " + e.why }

// checkRedirect is asked before a redirect is followed. What the plan says in headers goes to the host that the plan
// names; once a redirect has left that, nothing goes along even if the next one comes back.
func (s *step) checkRedirect(r *http.Request, via []*http.Request) error {
	if s.Redirects == 0 {
		return http.ErrUseLastResponse
	}
	if len(via) > s.Redirects {
		return &redirectError{"that too often; redirects says how often it may"}
	}
	r.Header.Del("Referer") // it has the item's key in it
	from := via[len(via)-1].URL
	switch {
	case r.URL.Scheme != "https" && r.URL.Scheme != "http":
		return &redirectError{"to what is neither http nor https"}
	case from.Scheme == "https" && r.URL.Scheme == "http":
		return &redirectError{"away from https"}
	case r.URL.User != nil:
		return &redirectError{"gives a user for it"}
	}
	away := !sameHost(r.URL, s.base)
	for _, before := range via {
		away = away || !sameHost(before.URL, s.base)
	}
	if !away {
		return nil
	}
	if r.Body != nil && r.Body != http.NoBody || r.ContentLength > 0 {
		return &redirectError{"the body is not meant for another host"}
	}
	for name := range s.Headers {
		r.Header.Del(name)
	}
	r.Header.Del("Authorization")
	return nil
}

// sameHost reports whether two URLs have one origin.
func sameHost(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && portOf(a) == portOf(b)
}

func portOf(u *url.URL) string {
	if port := u.Port(); port != "" || u.Scheme == "" {
		return port
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
}

// refusedRedirect returns the redirect that was not followed, or nil.
func refusedRedirect(err error) *redirectError {
	refused, _ := errors.AsType[*redirectError](err)
	return refused
}
