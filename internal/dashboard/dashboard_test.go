package dashboard_test

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/dashboard"
)

func handler(t *testing.T, config dashboard.Config) http.Handler {
	t.Helper()
	h, err := dashboard.Handler(config)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func ask(h http.Handler, method, at string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://localhost/", nil)
	r.URL.Path, r.URL.RawPath = at, ""
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var (
	importMap = regexp.MustCompile(`(?s)<script type="importmap">(.*?)</script>`)
	named     = regexp.MustCompile(`(?:src|href)="([^"]+)"|": ?"(/[^"]+)"`)
)

// filesAt is where the files are, as the document says.
func filesAt(t *testing.T, document string) string {
	t.Helper()
	at := regexp.MustCompile(`/static/[0-9a-z]+/`).FindString(document)
	if at == "" {
		t.Fatal("the document names no file")
	}
	return at
}

func TestPagesAreThoseOfTheRouter(t *testing.T) {
	t.Parallel()
	router, err := os.ReadFile("static/app/router.js")
	if err != nil {
		t.Fatal(err)
	}
	h := handler(t, dashboard.Config{})
	found := regexp.MustCompile(`\["(/[^"]*)", "([a-z]+)"\]`).FindAllStringSubmatch(string(router), -1)
	if len(found) < 16 {
		t.Fatalf("found %d pages in the router", len(found))
	}
	for _, page := range found {
		at := strings.ReplaceAll(page[1], "{run}", "x")
		w := ask(h, http.MethodGet, at)
		if kind, cache := w.Header().Get("Content-Type"), w.Header().Get("Cache-Control"); w.Code != http.StatusOK ||
			kind != "text/html; charset=utf-8" || cache != "no-cache" {
			t.Errorf("the router knows %s, the server answers %d, %s, %s", at, w.Code, kind, cache)
		}
		if _, err := os.Stat("static/app/pages/" + page[2] + ".js"); err != nil {
			t.Errorf("the page %s has no module: %v", page[1], err)
		}
	}
}

// PROOF: who may do what, 8.
func TestPolicyIsExact(t *testing.T) {
	t.Parallel()
	w := ask(handler(t, dashboard.Config{}), http.MethodGet, "/")
	text := importMap.FindStringSubmatch(w.Body.String())
	if text == nil {
		t.Fatal("the document has no import map")
	}
	sum := sha256.Sum256([]byte(text[1]))
	want := map[string]string{
		"Content-Security-Policy": "default-src 'none'; script-src 'self' 'sha256-" +
			base64.StdEncoding.EncodeToString(sum[:]) + "'; style-src 'self'; img-src 'self' data: blob:; " +
			"connect-src 'self'; frame-src blob:; font-src 'self'; base-uri 'none'; form-action 'self'; " +
			"frame-ancestors 'none'",
		"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
		"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
	}
	for name, value := range want {
		if got := w.Header().Get(name); got != value {
			t.Errorf("%s:\n got %s\nwant %s", name, got, value)
		}
	}
	if got := w.Header().Get("Permissions-Policy"); !strings.Contains(got, "camera=()") {
		t.Errorf("Permissions-Policy: %q", got)
	}
}

// maxCompressed is what a browser has to fetch to have seen every page.
const maxCompressed = 250_000

func TestTheDashboardIsSmall(t *testing.T) {
	t.Parallel()
	h := handler(t, dashboard.Config{})
	at := filesAt(t, ask(h, http.MethodGet, "/").Body.String())
	all := ask(h, http.MethodGet, "/", "Accept-Encoding", "gzip").Body.Len()
	for name := range staticFiles(t) {
		if slices.Contains([]string{".js", ".css", ".svg"}, path.Ext(name)) {
			all += ask(h, http.MethodGet, at+name, "Accept-Encoding", "gzip").Body.Len()
		}
	}
	t.Logf("%d bytes, compressed", all)
	if all > maxCompressed {
		t.Errorf("the files are %d bytes compressed, want %d at most", all, maxCompressed)
	}
}

var commented = regexp.MustCompile(`(?m)^[ \t]*(//|/?\*) .*|^[ \t]*/\*\*.*|^[ \t]*\*/`)

func TestEveryFileIsReachable(t *testing.T) {
	t.Parallel()
	h := handler(t, dashboard.Config{})
	document := ask(h, http.MethodGet, "/").Body.String()
	at := filesAt(t, document)
	for _, m := range named.FindAllStringSubmatch(document, -1) {
		if name := m[1] + m[2]; ask(h, http.MethodGet, name).Code != http.StatusOK {
			t.Errorf("the document names %s, which is not there", name)
		}
	}
	for name, content := range staticFiles(t) {
		if name == "index.html" {
			continue
		}
		w := ask(h, http.MethodGet, at+name)
		if !strings.HasPrefix(name, "vendor/") {
			content = commented.ReplaceAllString(content, "") // each line has its number still
		}
		if w.Code != http.StatusOK || w.Body.String() != content {
			t.Errorf("%s: status %d, %d bytes of %d", name, w.Code, w.Body.Len(), len(content))
		}
		if cache := w.Header().Get("Cache-Control"); cache != "public, max-age=31536000, immutable" {
			t.Errorf("%s: Cache-Control %q", name, cache)
		}
		if kind := w.Header().Get("Content-Type"); path.Ext(name) == ".js" && kind != "text/javascript; charset=utf-8" {
			t.Errorf("%s is %s", name, kind)
		}
		for _, header := range []string{"Content-Security-Policy", "X-Content-Type-Options", "Cross-Origin-Resource-Policy"} {
			if w.Header().Get(header) == "" {
				t.Errorf("%s has no %s", name, header)
			}
		}
	}
}

// What people and services wrote is shown on these pages: nothing may turn text into code, or fetch from elsewhere.
func TestSourcesMakeNoCodeOfText(t *testing.T) {
	t.Parallel()
	forbidden := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|` +
		`\beval\(|new Function|setTimeout\("|setInterval\("|javascript:|srcdoc`)
	elsewhere := regexp.MustCompile(`(?i)(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}`)
	for name, content := range staticFiles(t) {
		if strings.HasPrefix(name, "vendor/") {
			continue
		}
		if found := forbidden.FindString(content); found != "" {
			t.Errorf("%s has %q", name, found)
		}
		for _, found := range elsewhere.FindAllString(content, -1) {
			if !strings.HasPrefix(found, "http://www.w3.org") { // the names of XML, which no one fetches
				t.Errorf("%s names %q", name, found)
			}
		}
	}
}

func TestVendoredFilesHaveTheirLicense(t *testing.T) {
	t.Parallel()
	files := staticFiles(t)
	license := map[string]string{"preact-hooks": "preact"}
	for name := range files {
		if !strings.HasPrefix(name, "vendor/") || path.Ext(name) != ".js" {
			continue
		}
		base := strings.TrimSuffix(path.Base(name), ".js")
		if l, ok := license[base]; ok {
			base = l
		}
		if files["vendor/"+base+".LICENSE"] == "" {
			t.Errorf("%s has no license in its folder", name)
		}
		if !strings.Contains(files["vendor/README.md"], path.Base(name)) {
			t.Errorf("%s is not in vendor/README.md", name)
		}
	}
}

func TestOtherPathsAreNotThere(t *testing.T) {
	t.Parallel()
	h := handler(t, dashboard.Config{})
	at := filesAt(t, ask(h, http.MethodGet, "/").Body.String())
	for _, missing := range []string{
		"", "//", "/nowhere", "/runs/", "/runs/x/y", "/runs//errors", "/runs/x/item/", "/api/", "/favicon.ico",
		"/index.html", "/static", "/static/", at, at + "index.html", at + "app", at + "nothing.js", at + "app/main.js/",
		at + "app/main.js\x00", at + "app\\..\\main.js", "/static/0000000000000000/app/main.js",
		"/..", "/../dashboard.go", at + "../dashboard.go", at + "../../dashboard.go", at + "app/../../dashboard.go",
		at + "app/..%2f..%2fdashboard.go",
	} {
		w := ask(h, http.MethodGet, missing)
		if w.Code != http.StatusNotFound || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%q: %d %s", missing, w.Code, w.Header().Get("Content-Type"))
		}
		if !json.Valid(w.Body.Bytes()) {
			t.Errorf("%q: no JSON", missing)
		}
		w = ask(h, http.MethodGet, missing, "Accept", "text/html,*/*")
		if page := !strings.HasPrefix(missing, "/static/"); w.Code != http.StatusNotFound ||
			page != strings.HasPrefix(w.Body.String(), "<!doctype html>") ||
			page != (w.Header().Get("Content-Security-Policy") != "") {
			t.Errorf("%q for a browser: %d %.40s", missing, w.Code, w.Body)
		}
	}
}

func TestOnlyGetAndHead(t *testing.T) {
	t.Parallel()
	h := handler(t, dashboard.Config{})
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "X"} {
		w := ask(h, method, "/runs")
		if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %d, Allow %q", method, w.Code, w.Header().Get("Allow"))
		}
	}
	get, head := ask(h, http.MethodGet, "/runs"), ask(h, http.MethodHead, "/runs")
	if head.Code != http.StatusOK || head.Body.Len() != 0 {
		t.Errorf("HEAD: %d with %d bytes", head.Code, head.Body.Len())
	}
	for _, name := range []string{"Content-Length", "Etag", "Content-Type", "Content-Security-Policy"} {
		if get.Header().Get(name) == "" || get.Header().Get(name) != head.Header().Get(name) {
			t.Errorf("%s: GET %q, HEAD %q", name, get.Header().Get(name), head.Header().Get(name))
		}
	}
}

func TestWhatABrowserHasIsNotSentAgain(t *testing.T) {
	t.Parallel()
	h := handler(t, dashboard.Config{})
	at := filesAt(t, ask(h, http.MethodGet, "/").Body.String())
	for _, what := range []string{"/runs", at + "app/main.js"} {
		etag := ask(h, http.MethodGet, what).Header().Get("Etag")
		if w := ask(h, http.MethodGet, what, "If-None-Match", etag); w.Code != http.StatusNotModified || w.Body.Len() != 0 {
			t.Errorf("%s: %d with %d bytes", what, w.Code, w.Body.Len())
		}
		if w := ask(h, http.MethodGet, what, "If-None-Match", `"other"`); w.Code != http.StatusOK {
			t.Errorf("%s with another tag: %d", what, w.Code)
		}
		if w := ask(h, http.MethodGet, what, "Range", "bytes=0-3"); w.Code != http.StatusOK || w.Body.Len() < 10 {
			t.Errorf("%s, a range: %d with %d bytes; want all", what, w.Code, w.Body.Len())
		}
	}
}

func TestFilesAreCompressedForThoseWhoTakeIt(t *testing.T) {
	t.Parallel()
	h := handler(t, dashboard.Config{})
	at := filesAt(t, ask(h, http.MethodGet, "/").Body.String()) + "app/shell.js"
	plain := ask(h, http.MethodGet, at)
	for accept, want := range map[string]string{
		"gzip, deflate, br": "gzip", "br, GZIP;q=0.5": "gzip", "gzip;q=0": "", "br": "", "": "", "gzip;q=0.0, br": "",
	} {
		w := ask(h, http.MethodGet, at, "Accept-Encoding", accept)
		if got := w.Header().Get("Content-Encoding"); got != want {
			t.Errorf("%q: Content-Encoding %q, want %q", accept, got, want)
		}
		if w.Header().Get("Vary") != "Accept-Encoding" {
			t.Errorf("%q: Vary %q", accept, w.Header().Get("Vary"))
		}
		if want == "" {
			continue
		}
		if w.Header().Get("Etag") == plain.Header().Get("Etag") {
			t.Error("both forms have one tag")
		}
		unpacked, err := gzip.NewReader(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(unpacked)
		if err != nil || string(content) != plain.Body.String() {
			t.Errorf("%q: unpacked to %d bytes, %v", accept, len(content), err)
		}
	}
}

func TestDirectoryIsReadAnew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("index.html", `<script type="importmap">{}</script><script src="{{static}}a.js"></script>`)
	write("a.js", "one")
	h := handler(t, dashboard.Config{Dir: dir})
	at := filesAt(t, ask(h, http.MethodGet, "/").Body.String()) + "a.js"
	write("a.js", "two")
	w := ask(h, http.MethodGet, at)
	if w.Body.String() != "two" || w.Header().Get("Cache-Control") != "no-cache" {
		t.Errorf("got %q, Cache-Control %q", w.Body, w.Header().Get("Cache-Control"))
	}
	if err := os.Remove(filepath.Join(dir, "index.html")); err != nil {
		t.Fatal(err)
	}
	if w := ask(h, http.MethodGet, "/"); w.Code != http.StatusInternalServerError {
		t.Errorf("without a document: %d", w.Code)
	}
	if _, err := dashboard.Handler(dashboard.Config{Dir: filepath.Join(dir, "no")}); err == nil {
		t.Error("a directory that does not exist is taken")
	}
}

func staticFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	root := os.DirFS("static")
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, name)
		files[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("only %d files", len(files))
	}
	return files
}

// TestScripts runs the tests of the dashboard's scripts that need no browser: how items are laid out, kept, summed up
// and drawn, and how what the server sends is read. They are in jstest, for Node's own test runner.
func TestScripts(t *testing.T) {
	t.Parallel()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal("node is missing, which the dashboard's scripts are tested with; install it: make deps")
	}
	files, err := filepath.Glob("jstest/*.test.mjs")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests of scripts in jstest: %v", err)
	}
	out, err := exec.CommandContext(t.Context(), node, append([]string{"--test"}, files...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
