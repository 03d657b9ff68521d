package schedule

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
)

// Limits of items from a URL.
const (
	MaxURLBytes = 4 << 30 // as received, before decompression

	urlHeader  = 30 * time.Second // until the response begins
	urlSilence = time.Minute      // between two reads
	urlMost    = 30 * time.Minute // for the whole response

	fileQuiet = 10 * time.Second // since a file was modified, before its end is believed
)

// Web reads items from URLs.
type Web struct {
	client                *http.Client
	header, silence, most time.Duration // the constants, except in tests
}

// NewWeb returns a reader of URLs, whose transport restricts what it can reach.
func NewWeb(transport http.RoundTripper) *Web {
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	return &Web{client, urlHeader, urlSilence, urlMost}
}

// CheckURL returns a *SourceError for a URL that cannot be a source of items.
func CheckURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, refused("url: %.200q is not a URL; want one like https://api.bank.example/customers.ndjson", text)
	case u.User != nil:
		return nil, refused("url: a user or a password does not belong in a URL")
	case u.Fragment != "":
		return nil, refused("url: a fragment, after #, is not sent; leave it out")
	}
	return u, nil
}

// Open returns a URL's body, which ends with an error if incomplete. All errors are *SourceError.
func (w *Web) Open(ctx context.Context, text string) (io.ReadCloser, error) {
	u, err := CheckURL(text)
	if err != nil {
		return nil, err
	}
	if w == nil {
		return nil, refused("url: this node takes no items from URLs")
	}
	ctx, release := context.WithTimeoutCause(ctx, w.most, slowError(fmt.Sprintf("it took more than %s; divide it over "+
		"several schedules, or put it into a file", spell(w.most))))
	ctx, cancel := context.WithCancelCause(ctx)
	b := &urlBody{ctx: ctx, cancel: cancel, release: release, host: u.Scheme + "://" + u.Host, left: MaxURLBytes,
		silence: w.silence}
	begins := b.patience(w.header, "its answer did not begin within %s")
	defer begins.Stop()
	if err := b.open(w.client, u); err != nil {
		_ = b.Close() // nothing was read
		return nil, err
	}
	return b, nil
}

type slowError string

func (e slowError) Error() string { return string(e) }

func spell(d time.Duration) string {
	if minutes, whole := strings.CutSuffix(d.String(), "m0s"); whole {
		return minutes + "m"
	}
	return d.String()
}

type urlBody struct {
	ctx     context.Context //nolint:containedctx // it is the request's, and ends with it
	cancel  context.CancelCauseFunc
	release context.CancelFunc
	silence time.Duration
	host    string
	left    int64
	body    io.ReadCloser
}

func (b *urlBody) patience(limit time.Duration, why string) *time.Timer {
	return time.AfterFunc(limit, func() { b.cancel(slowError(fmt.Sprintf(why, spell(limit)))) })
}

func (b *urlBody) open(client *http.Client, u *url.URL) error {
	r, err := http.NewRequestWithContext(b.ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return refused("url: %s: the request cannot be made", b.host)
	}
	r.Header.Set("Accept", "text/csv, application/x-ndjson, application/vnd.apache.parquet, */*;q=0.1")
	r.Header.Set("Accept-Encoding", "gzip") // set here, so that intake decompresses it and limits the result
	response, err := client.Do(r)           //nolint:bodyclose // Close does it
	if err != nil {
		return b.failed(err)
	}
	b.body = response.Body
	return b.check(response)
}

func (b *urlBody) check(r *http.Response) error {
	switch code := r.StatusCode; {
	case code == http.StatusOK:
	case code >= 300 && code < 400:
		return refused("url: %s sends elsewhere (%d), which is not followed; give the URL that it leads to", b.host, code)
	case code >= 500, code == http.StatusNotFound, code == http.StatusRequestTimeout, code == http.StatusTooEarly,
		code == http.StatusTooManyRequests:
		return later("url: %s answers %d %s", b.host, code, http.StatusText(code))
	default:
		return refused("url: %s answers %d %s", b.host, code, http.StatusText(code))
	}
	if r.ContentLength > b.left {
		return b.tooLarge()
	}
	if r.ContentLength < 0 && r.ProtoMajor == 1 && !slices.Contains(r.TransferEncoding, "chunked") && !r.Uncompressed {
		return refused("url: %s does not say where its answer ends, so that no one can tell whether all items have come; "+
			"it must send a Content-Length, or chunks", b.host)
	}
	if kind := r.Header.Get("Content-Type"); strings.HasPrefix(kind, "text/html") {
		return refused("url: %s answers with a web page (text/html), not with items", b.host)
	}
	return nil
}

// Read implements io.Reader. The caller's own time between two reads does not count as the server's.
func (b *urlBody) Read(p []byte) (int, error) {
	quiet := b.patience(b.silence, "nothing came for %s")
	defer quiet.Stop()
	n, err := b.body.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, b.tooLarge()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.failed(err)
	}
	return n, err
}

func (b *urlBody) tooLarge() error {
	return refused("url: %s answers with more than %d GiB, as much as is taken; divide it over several schedules", b.host,
		MaxURLBytes>>30)
}

func (b *urlBody) failed(err error) error {
	why, passes := httpfetch.Explain(err)
	slow, late := errors.AsType[slowError](context.Cause(b.ctx))
	switch {
	case late:
		why, passes = slow.Error(), true
	case b.ctx.Err() != nil:
		why, passes = "it was abandoned", true
	case errors.Is(err, io.ErrUnexpectedEOF):
		why, passes = "its answer ended early; nothing was started", true
	}
	return &SourceError{Problem: "url: " + b.host + ": " + why, Passes: passes}
}

// Close ends the request.
func (b *urlBody) Close() error {
	b.cancel(nil)
	b.release()
	if b.body == nil {
		return nil
	}
	return b.body.Close()
}

// SourceError is why a run's items cannot be read.
type SourceError struct {
	Problem string
	Passes  bool // a retry may succeed: the file is missing, the service is down
}

func (e *SourceError) Error() string { return e.Problem }

func refused(format string, args ...any) error {
	return &SourceError{Problem: fmt.Sprintf(format, args...)}
}

func later(format string, args ...any) error {
	return &SourceError{Problem: fmt.Sprintf(format, args...), Passes: true}
}

// NoItemsError means that there are no items to run, which is not a failure.
type NoItemsError struct{ Source string }

func (e *NoItemsError) Error() string { return "there are no items: " + e.Source + " has none" }

// Files is the directory of schedules' files.
type Files struct{ root *os.Root }

// OpenFiles opens the directory. Links cannot lead out of it.
func OpenFiles(directory string) (*Files, error) {
	root, err := os.OpenRoot(directory)
	if err != nil {
		return nil, fmt.Errorf("the directory of schedules' files: %w", err)
	}
	return &Files{root}, nil
}

// Close closes the directory.
func (f *Files) Close() error { return f.root.Close() }

// CheckPath returns a *SourceError for a path that cannot be below a directory.
func CheckPath(path string) error {
	if !filepath.IsLocal(path) {
		return refused("file %q is not a path below the directory of schedules' files; give one like daily/customers.csv, "+
			"without a leading / and without ..", path)
	}
	return nil
}

// Open opens a file below the directory. Errors are *SourceError; a missing file may appear later.
func (f *Files) Open(path string) (io.ReadCloser, error) {
	if f == nil {
		return nil, refused("file %q: this node has no directory of schedules' files; start nodes with: tranche serve "+
			"--schedule-files DIR", path)
	}
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	// Non-blocking: a pipe might block indefinitely.
	file, err := f.root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fileProblem(path, err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = refused("file %q is a directory, a pipe or a device, and not a file of items", path)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &settledFile{file, file, path, info}, nil
}

// settledFile is a file that is still being written if it changes as it is read, or was modified just before.
type settledFile struct {
	io.Closer
	file   *os.File
	path   string
	opened fs.FileInfo
}

// Read implements io.Reader.
func (s *settledFile) Read(p []byte) (int, error) {
	n, err := s.file.Read(p)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	info, failed := s.file.Stat()
	if failed != nil {
		return n, failed
	}
	age := time.Since(info.ModTime())
	if age >= 0 && age < fileQuiet || info.Size() != s.opened.Size() || !info.ModTime().Equal(s.opened.ModTime()) {
		return n, later("file %q may still be written: it was modified as it was read, or less than %v before", s.path,
			fileQuiet)
	}
	return n, err
}

// fileProblem returns the reason why a file cannot be read, without the path of the directory.
func fileProblem(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return later("there is no file %q below the directory of schedules' files", path)
	case errors.Is(err, fs.ErrPermission):
		return later("file %q may not be read by the node's user", path)
	}
	if cause, ok := errors.AsType[*fs.PathError](err); ok {
		err = cause.Err
	}
	if _, system := errors.AsType[syscall.Errno](err); system {
		return later("file %q cannot be read: %v", path, err)
	}
	return refused("file %q leads out of the directory of schedules' files, or is not a path: %v", path, err)
}
