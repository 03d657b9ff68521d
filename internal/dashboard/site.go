package dashboard

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

//go:embed static
var static embed.FS

func embedded() fs.FS {
	files, err := fs.Sub(static, "static")
	if err != nil {
		panic(err) // the name is a constant
	}
	return files
}

const (
	filesAt     = "/static/" // followed by the digest of all files, then their names
	documentIn  = "index.html"
	forEver     = "public, max-age=31536000, immutable"
	askAgain    = "no-cache"
	smallest    = 1024 // bytes; smaller files are not worth compressing
	mapBegins   = `<script type="importmap">`
	mapEnds     = "</script>"
	digestChars = 16
)

type site struct {
	files    map[string]*file // by path
	document *file
	policy   string
}

// newSite reads all files. The digest in their paths covers all of them, because modules import each other and a
// browser must never mix versions. base is the
// path prefix in browsers. Files that change while served have a fixed path and are revalidated.
func newSite(from fs.FS, base string, changing bool) (*site, error) {
	contents, err := readAll(from)
	if err != nil {
		return nil, err
	}
	document, ok := contents[documentIn]
	if !ok {
		return nil, errors.New(documentIn + " is missing")
	}
	delete(contents, documentIn)
	at, cache := filesAt+digestAll(contents)+"/", forEver
	if changing {
		at, cache = filesAt+"now/", askAgain
	}
	s := &site{files: map[string]*file{}}
	for name, content := range contents {
		if !changing && !strings.HasPrefix(name, "vendor/") {
			content = commentLine.ReplaceAll(content, nil)
		}
		s.files[at+name] = newFile(name, content, cache)
	}
	text := complete(string(document), base+at, contents)
	_, rest, _ := strings.Cut(text, mapBegins)
	importMap, _, ok := strings.Cut(rest, mapEnds)
	if !ok {
		return nil, errors.New(documentIn + " has no import map")
	}
	s.policy = policy(importMap)
	s.document = newFile(documentIn, []byte(text), askAgain)
	return s, nil
}

// commentLine matches comment lines of scripts and styles. Browsers get empty lines instead, which keeps line numbers.
var commentLine = regexp.MustCompile(`(?m)^[ \t]*(// |/\*|\* |\*/).*$`)

func readAll(from fs.FS) (map[string][]byte, error) {
	contents := map[string][]byte{}
	err := fs.WalkDir(from, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || contentType(name) == "" {
			return err
		}
		contents[name], err = fs.ReadFile(from, name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the files: %w", err)
	}
	return contents, nil
}

// complete fills in the document: the path of the files, and preloads of the modules that every page needs.
func complete(document, at string, contents map[string][]byte) string {
	var names []string
	for name := range contents {
		folder := path.Dir(name)
		if path.Ext(name) == ".js" && slices.Contains([]string{"app", "app/ui", "vendor"}, folder) &&
			!slices.Contains([]string{"app/theme-first.js", "app/streamworker.js"}, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var preload strings.Builder
	for _, name := range names {
		preload.WriteString(`<link rel="modulepreload" href="` + at + name + "\">\n")
	}
	return strings.NewReplacer("{{static}}", at, "{{preload}}\n", preload.String()).Replace(document)
}

func digestAll(contents map[string][]byte) string {
	all := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		sum := sha256.Sum256(contents[name])
		_, _ = fmt.Fprintf(all, "%q %x\n", name, sum) // a hash never fails
	}
	return hex.EncodeToString(all.Sum(nil))[:digestChars]
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// contentType returns "" for files that are not served. The system's table of types is not used, because it varies.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".LICENSE", ".md":
		return "text/plain; charset=utf-8"
	default:
		return ""
	}
}

type file struct {
	kind, cache, etag string
	content           []byte
	compressed        func() []byte
}

func newFile(name string, content []byte, cache string) *file {
	sum := sha256.Sum256(content)
	return &file{
		kind: contentType(name), cache: cache, content: content, etag: hex.EncodeToString(sum[:])[:digestChars],
		compressed: sync.OnceValue(func() []byte { return compress(content) }),
	}
}

func compress(content []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // the level is valid
	_, _ = w.Write(content)                                 // into memory
	_ = w.Close()
	return out.Bytes()
}

func (f *file) serve(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Type", f.kind)
	header.Set("Cache-Control", f.cache)
	header.Set("Vary", "Accept-Encoding")
	content, etag := f.content, f.etag
	if len(content) >= smallest && takesGzip(r.Header.Values("Accept-Encoding")) {
		content, etag = f.compressed(), etag+"-gzip"
		header.Set("Content-Encoding", "gzip")
	}
	header.Set("ETag", `"`+etag+`"`)
	header.Set("Content-Length", strconv.Itoa(len(content)))
	whole := r.Clone(r.Context())
	whole.Header.Del("Range") // no file is large
	http.ServeContent(w, whole, "", time.Time{}, bytes.NewReader(content))
}

func takesGzip(accepted []string) bool {
	for one := range strings.SplitSeq(strings.Join(accepted, ","), ",") {
		name, weight, _ := strings.Cut(one, ";")
		if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
			continue
		}
		_, q, _ := strings.Cut(weight, "=")
		value, err := strconv.ParseFloat(strings.TrimSpace(q), 64)
		return err != nil || value > 0
	}
	return false
}
