// Package dashboard serves the pages that people look at: static files, embedded in the binary, that call the public
// API under /api/v1 as any script does. There is no build step: what is under static is what browsers get.
//
// The files hold no data and need no login. Everything but the document itself has the digest of all the files in its
// path and may be kept indefinitely; the document is asked for again each time. The content security policy lets
// scripts and styles of this server run and nothing else; the one inline script, the import map, is named by its
// digest.
//
// It is not its job to decide who may see what: that is the API's.
package dashboard

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
)

// Config says where the files are.
type Config struct {
	// Dir is read again at every request instead of the embedded files: for people who work on the dashboard. It has what
	// static has here. Empty: the embedded ones.
	Dir string
}

// Handler serves the dashboard's pages and their files, and 404 for any other path.
func Handler(config Config) (http.Handler, error) {
	if config.Dir == "" {
		build := sync.OnceValues(func() (*site, error) { return newSite(embedded(), false) })
		return handler{site: build}, nil
	}
	if stat, err := os.Stat(config.Dir); err != nil || !stat.IsDir() {
		return nil, fmt.Errorf("the dashboard's files: %s is no directory", config.Dir)
	}
	files := os.DirFS(config.Dir)
	return handler{site: func() (*site, error) { return newSite(files, true) }}, nil
}

type handler struct {
	site func() (*site, error)
}

// ServeHTTP answers GET and HEAD.
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

// protect sets what keeps foreign code, frames and readers out.
func (s *site) protect(header http.Header) {
	header.Set("Content-Security-Policy", s.policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Permissions-Policy", permissions)
}

// permissions takes away what the dashboard never asks for.
const permissions = "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), magnetometer=(), " +
	"microphone=(), midi=(), payment=(), publickey-credentials-get=(), serial=(), usb=()"

// policy allows the import map by the digest of its text.
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

// maxEchoed is how much of what was asked for is said back.
const maxEchoed = 100

func cut(text string) string {
	if len(text) > maxEchoed {
		text = text[:maxEchoed] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// problem writes what went wrong as the API does.
func problem(w http.ResponseWriter, status int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{ // the caller is gone if this fails
		"title": http.StatusText(status), "status": status, "detail": detail,
	})
}

// pages are the paths that the document answers; {} stands for one segment. app/router.js has the same.
func pages() []string {
	return []string{
		"/", "/runs", "/runs/{}", "/runs/{}/errors", "/runs/{}/item", "/runs/{}/comparison", "/start", "/plans",
		"/schedules", "/collectors", "/trackers", "/alerts", "/endpoints", "/endpoint", "/nodes",
		"/dead-letters", "/audit", "/health", "/tokens", "/login", "/api",
	}
}

// isPage reports whether a path is one of the pages.
func isPage(path string) bool {
	have := strings.Split(path, "/")
	for _, page := range pages() {
		if fits(strings.Split(page, "/"), have) {
			return true
		}
	}
	return false
}

func fits(want, have []string) bool {
	if len(want) != len(have) {
		return false
	}
	for i, part := range want {
		if part != have[i] && (part != "{}" || have[i] == "") {
			return false
		}
	}
	return true
}
