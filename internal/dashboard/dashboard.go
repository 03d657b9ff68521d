// Package dashboard serves the web pages: static files embedded in the binary, which use the public API under /api/v1
// like any client. There is no build step: browsers get what is under static.
//
// The files hold no data and need no login; the API decides what a user may see. All files except the document have
// the digest of all files in their path and may be cached indefinitely; the document is revalidated each time. The
// content security policy permits only this server's scripts and styles, and the one inline script, the import map,
// by its digest.
package dashboard

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
)

// Config says where the files are.
type Config struct {
	// Dir is read at every request instead of the embedded files, for developing the dashboard. Its layout is that of
	// static. Empty: the embedded files.
	Dir string
	// Base is the path prefix in browsers, such as /tranche; empty: none.
	Base string
}

// Handler serves the pages and files. Other paths are 404: for browsers as a page.
func Handler(config Config) (http.Handler, error) {
	if config.Dir == "" {
		build := sync.OnceValues(func() (*site, error) { return newSite(embedded(), config.Base, false) })
		return handler{site: build}, nil
	}
	if stat, err := os.Stat(config.Dir); err != nil || !stat.IsDir() {
		return nil, fmt.Errorf("the dashboard's files: %s is not a directory", config.Dir)
	}
	files := os.DirFS(config.Dir)
	return handler{site: func() (*site, error) { return newSite(files, config.Base, true) }}, nil
}

type handler struct {
	site func() (*site, error)
}

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	site, err := h.site()
	if err != nil {
		problem(w, http.StatusInternalServerError, "the dashboard's files: "+err.Error())
		return
	}
	f, found := site.files[r.URL.Path]
	if !found && isPage(r.URL.Path) {
		f, found = site.document, true
	}
	if !found && strings.Contains(r.Header.Get("Accept"), "text/html") && !strings.HasPrefix(r.URL.Path, filesAt) &&
		(r.Method == http.MethodGet || r.Method == http.MethodHead) {
		site.protect(w.Header())
		w.Header().Set("Content-Type", site.document.kind)
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write(site.document.content) // fails if the caller is gone
		return
	}
	if !found {
		problem(w, http.StatusNotFound, missing(r.URL.Path))
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		problem(w, http.StatusMethodNotAllowed, "this path takes GET, not "+cut(r.Method))
		return
	}
	site.protect(w.Header())
	f.serve(w, r)
}

func (s *site) protect(header http.Header) {
	header.Set("Content-Security-Policy", s.policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Permissions-Policy", permissions)
}

// permissions disables what the dashboard never uses.
const permissions = "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), magnetometer=(), " +
	"microphone=(), midi=(), payment=(), publickey-credentials-get=(), serial=(), usb=()"

// policy permits the import map by the digest of its text.
func policy(importMap string) string {
	return "default-src 'none'; script-src 'self' '" + digest(importMap) + "'; style-src 'self'; " +
		"img-src 'self' data: blob:; connect-src 'self'; frame-src blob:; font-src 'self'; base-uri 'none'; " +
		"form-action 'self'; frame-ancestors 'none'"
}

func missing(path string) string {
	if strings.HasPrefix(path, filesAt) {
		return "there is no " + cut(path) + "; another version of the server may have had it: load the page again"
	}
	return "there is nothing at " + cut(path) + "; the dashboard begins at /, the API is described at /api/v1/openapi.json"
}

const maxEchoed = 100

func cut(text string) string {
	if len(text) > maxEchoed {
		text = text[:maxEchoed] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

func problem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{ // fails if the caller is gone
		"title": http.StatusText(status), "status": status, "detail": detail,
	})
}

// pages are the document's paths; {} is one segment. app/router.js has the same list.
func pages() []string {
	return []string{
		"/", "/runs", "/runs/{}", "/runs/{}/errors", "/runs/{}/item", "/runs/{}/comparison", "/start", "/plans",
		"/schedules", "/collectors", "/trackers", "/alerts", "/endpoints", "/endpoint", "/nodes",
		"/dead-letters", "/audit", "/health", "/wall", "/tokens", "/login", "/api",
	}
}

func isPage(path string) bool {
	have := strings.Split(path, "/")
	return slices.ContainsFunc(pages(), func(page string) bool { return fits(strings.Split(page, "/"), have) })
}

func fits(want, have []string) bool {
	return slices.EqualFunc(want, have, func(part, has string) bool { return part == has || part == "{}" && has != "" })
}
