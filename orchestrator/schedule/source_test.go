package schedule_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/schedule"
)

// wants checks that an error is a *SourceError with a text in it, and whether it passes.
func wants(t *testing.T, what string, err error, text string, passes bool) {
	t.Helper()
	source, ok := errors.AsType[*schedule.SourceError](err)
	if !ok || !strings.Contains(source.Problem, text) || source.Passes != passes {
		t.Errorf("%s: got %v (passes %v), want %q (passes %v)", what, err, ok && source.Passes, text, passes)
	}
}

func read(t *testing.T, from io.ReadCloser, err error) string {
	t.Helper()
	testenv.NoError(t, err)
	text, err := io.ReadAll(from)
	testenv.Same(t, errors.Join(err, from.Close()), nil, "the source")
	return string(text)
}

// PROOF: who may do what, 10.
// Nothing outside of the directory is read, whichever way leads there.
func TestFilesStayInTheirDirectory(t *testing.T) {
	t.Parallel()
	above := t.TempDir()
	dir := filepath.Join(above, "files")
	must := func(err error) { t.Helper(); testenv.NoError(t, err) }
	must(os.MkdirAll(filepath.Join(dir, "daily"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "daily", "a.csv"), []byte("id\n1\n"), 0o600))
	modified := func(at time.Time) { must(os.Chtimes(filepath.Join(dir, "daily", "a.csv"), time.Time{}, at)) }
	modified(time.Now().Add(-time.Hour))
	must(os.WriteFile(filepath.Join(above, "secret"), []byte("s"), 0o600))
	must(os.Symlink(filepath.Join(above, "secret"), filepath.Join(dir, "far")))
	must(os.Symlink("../secret", filepath.Join(dir, "near")))
	must(os.Symlink("..", filepath.Join(dir, "up")))
	must(os.Symlink("daily/a.csv", filepath.Join(dir, "link.csv")))
	must(syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	files, err := schedule.OpenFiles(dir)
	must(err)
	defer func() { must(files.Close()) }()
	for _, path := range []string{"daily/a.csv", "./daily/../daily/a.csv", "link.csv"} {
		from, err := files.Open(path)
		testenv.Same(t, read(t, from, err), "id\n1\n", "%s", path)
	}
	for path, want := range map[string]string{
		"../secret": "not a path below", "/etc/passwd": "not a path below", "daily/../../secret": "not a path below",
		"": "not a path", "far": "leads out of", "near": "leads out of", "up/secret": "leads out of",
		"daily": "is a directory", "pipe": "a pipe", "a\x00b": "",
	} {
		_, err := files.Open(path)
		wants(t, path, err, want, path == "a\x00b")
	}
	now := time.Now()
	for name, at := range map[string][2]time.Time{
		"as it is read": {now.Add(-time.Hour), now.Add(-time.Minute)}, "just now": {now, now},
	} {
		modified(at[0])
		file := testenv.Must(files.Open("daily/a.csv"))(t)
		modified(at[1])
		_, err = io.ReadAll(file)
		wants(t, "a file modified "+name, err, "may still be written", true)
		must(file.Close())
	}
	_, err = files.Open("daily/b.csv")
	wants(t, "one that may come", err, "there is no file", true)
	var none *schedule.Files
	_, err = none.Open("daily/a.csv")
	wants(t, "without a directory", err, "--schedule-files DIR", false)
	_, err = schedule.OpenFiles(filepath.Join(above, "nope"))
	testenv.Fails(t, err, "a directory that does not exist is opened")
}

// sources answers as sources of items do, and should not.
func sources(t *testing.T) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/good", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || r.Method != http.MethodGet {
			t.Errorf("asked by %s with %v", r.Method, r.Header)
		}
		_, _ = io.WriteString(w, "id\n1\n")
	})
	mux.Handle("/away", http.RedirectHandler("/good", http.StatusFound))
	mux.HandleFunc("/html", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<p>log in")
	})
	mux.HandleFunc("/down", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	mux.HandleFunc("/closed", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	mux.HandleFunc("/huge", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "9999999999999")
		_, _ = io.WriteString(w, "id\n")
	})
	mux.HandleFunc("/cut", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "id\n1\n")
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nid\n1\n")
		_ = conn.Close()
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

func web(t *testing.T, allow ...connections.Network) (*schedule.Web, *httpfetch.Client) {
	t.Helper()
	client := testenv.Must(httpfetch.New(&connections.Connections{HTTP: connections.HTTP{AllowPrivate: allow}},
		httpfetch.Config{ConnectTimeout: time.Minute}))(t) // many tests run concurrently
	t.Cleanup(client.Close)
	return schedule.NewWeb(client.Transport()), client
}

// Items come from a URL whole or not at all, and from nowhere that the operator does not allow.
func TestItemsFromURLs(t *testing.T) {
	t.Parallel()
	server := sources(t)
	from, _ := web(t, connections.Network{Prefix: netip.MustParsePrefix("127.0.0.0/8")})
	body, err := from.Open(t.Context(), server.URL+"/good")
	testenv.Same(t, read(t, body, err), "id\n1\n", "the items")
	for path, want := range map[string]string{
		"/away": "sends elsewhere (302)", "/html": "a web page", "/closed": "answers 403", "/huge": "more than 4 GiB",
		"/endless": "does not say where its answer ends",
	} {
		_, err := from.Open(t.Context(), server.URL+path)
		wants(t, path, err, want, false)
	}
	for path, want := range map[string]string{"/down": "answers 502", "/nope": "answers 404"} {
		_, err := from.Open(t.Context(), server.URL+path)
		wants(t, path, err, want, true)
	}
	body = testenv.Must(from.Open(t.Context(), server.URL+"/cut"))(t)
	_, err = io.ReadAll(body)
	wants(t, "an answer that ends early", err, "ended early", true)
	_ = body.Close()
	for text, want := range map[string]string{
		"": "not a URL", "file:///etc/passwd": "not a URL", "http://": "not a URL", "https://u:p@h.example/": "a password",
		"https://h.example/#x": "a fragment", "http://h.example:x/": "not a URL",
	} {
		_, err := from.Open(t.Context(), text)
		wants(t, text, err, want, false)
	}
	server.Close()
	_, err = from.Open(t.Context(), server.URL+"/good")
	wants(t, "a server that is unavailable", err, "no connection", true)
}

// A server that takes too long is named with the bound that it went beyond, and what to do.
func TestSlowURLsSayWhatTookTooLong(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/begins" {
			_, _ = io.WriteString(w, "id\n1\n")
			testenv.Same(t, http.NewResponseController(w).Flush(), nil, "the flush")
		}
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(over) })
	patient, _ := web(t, connections.Network{Prefix: netip.MustParsePrefix("127.0.0.0/8")})
	const soon = 100 * time.Millisecond
	for name, test := range map[string]struct {
		from       *schedule.Web
		path, want string
	}{
		"no answer":     {patient.Hurry(soon, 0, 0), "/never", "its answer did not begin within 100ms"},
		"no more of it": {patient.Hurry(0, soon, 0), "/begins", "nothing came for 100ms"},
		"all of it":     {patient.Hurry(0, 0, soon), "/begins", "it took more than 100ms; divide it over several schedules"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			body, err := test.from.Open(t.Context(), server.URL+test.path)
			if err == nil {
				_, err = io.ReadAll(body)
				_ = body.Close()
			}
			wants(t, name, err, test.want, true)
		})
	}
}

// Addresses of this machine and of private networks are for the operator to allow.
func TestURLsOfPrivateAddressesAreRefused(t *testing.T) {
	t.Parallel()
	server := sources(t)
	from, client := web(t)
	_, err := from.Open(t.Context(), server.URL+"/good")
	wants(t, "not allowed", err, "http.allow_private", false)
	_, err = from.Open(t.Context(), strings.Replace(server.URL, "127.0.0.1", "localhost", 1)+"/good")
	wants(t, "by a name", err, "http.allow_private", false)
	u, err := schedule.CheckURL(server.URL)
	if err != nil || client.CheckURL(u) == nil {
		t.Errorf("before it is asked: %v, %v", u, err)
	}
}
