package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"time"
)

const maxAnswer = 64 << 20

func exchange[T any](ctx context.Context, c *Client, ask request, options []CallOption) (out T, err error) {
	o := c.called(options, usualWait(&ask))
	p := c.patience(ctx, o.wait)
	defer p.end()
	answer, err := c.do(p, &ask, o)
	if err != nil {
		return out, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err != nil {
		if gone := p.err(); gone != nil {
			return out, gone
		}
		return out, fmt.Errorf("read the answer of %s: %w", c.base().Redacted(), err)
	}
	if len(text) > maxAnswer {
		return out, fmt.Errorf("the answer of %s is larger than %d MiB", c.base().Redacted(), maxAnswer>>20)
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return out, fmt.Errorf("read the answer of %s: %w", c.base().Redacted(), err)
	}
	if o.raw != nil {
		*o.raw = bytes.TrimRight(text, "\n")
	}
	return out, nil
}

// Stream is a streamed answer, to be closed by the caller. Reads fail if the connection is lost, so data read to the
// end is complete.
type Stream struct {
	io.ReadCloser

	Header http.Header
}

// stream requests an answer that may stream for hours: the timeout is for its beginning.
func (c *Client) stream(ctx context.Context, ask request, options []CallOption) (*Stream, error) {
	o := c.called(options, usualWait(&ask))
	p := c.patience(ctx, o.wait)
	answer, err := c.do(p, &ask, o)
	if err != nil {
		p.end()
		return nil, err
	}
	p.flow()
	if gone := p.err(); gone != nil { // while the beginning was in transit
		_ = answer.Body.Close()
		p.end()
		return nil, gone
	}
	return &Stream{ReadCloser: &flowing{answer.Body, p}, Header: answer.Header}, nil
}

// do sends a request to the first reachable server, and turns an error answer into an error.
func (c *Client) do(p *patience, ask *request, o *call) (answer *http.Response, err error) {
	for range c.bases {
		at := c.at.Load()
		answer, err = c.try(p, ask, o)
		gone, away := errors.AsType[*UnreachableError](err)
		if !away {
			return answer, err
		}
		gone.URL = c.all()
		c.at.CompareAndSwap(at, (at+1)%int32(len(c.bases)))
	}
	return nil, err
}

func (c *Client) try(p *patience, ask *request, o *call) (*http.Response, error) {
	req, err := c.request(p, ask)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, o.sent)
	answer, err := c.http.Do(req)
	if err != nil {
		return nil, c.unanswered(p, err)
	}
	if o.header != nil {
		*o.header = answer.Header
	}
	if answer.StatusCode == http.StatusNotModified {
		_ = answer.Body.Close()
		return nil, ErrNotModified
	}
	if id := answer.Header.Get("Tranche-Act"); id != "" && answer.StatusCode == http.StatusAccepted {
		_ = answer.Body.Close()
		return nil, &ActPendingError{ID: id}
	}
	if answer.StatusCode >= http.StatusMultipleChoices {
		defer func() { _ = answer.Body.Close() }()
		return nil, readProblem(answer)
	}
	return answer, nil
}

func (c *Client) request(p *patience, ask *request) (*http.Request, error) {
	body, contentType := ask.body, ask.contentType
	if ask.document != nil {
		text, err := json.Marshal(ask.document)
		if err != nil {
			return nil, fmt.Errorf("write the request: %w", err)
		}
		body, contentType = bytes.NewReader(text), "application/json"
	}
	if body != nil {
		body = &sending{body, p}
	}
	target := c.base().String() + prefix + ask.path
	if len(ask.query) > 0 {
		target += "?" + ask.query.Encode()
	}
	req, err := http.NewRequestWithContext(p.ctx, ask.method, target, body)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", c.base().Redacted(), err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if ask.method != http.MethodGet && c.actor != "" {
		req.Header.Set(actorHeader, c.actor)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	return req, nil
}

func (c *Client) unanswered(p *patience, err error) error {
	var dial *net.OpError
	gone := p.err()
	switch {
	case gone != nil:
		return gone
	case errors.As(err, &dial) && dial.Op == "dial":
		return &UnreachableError{URL: c.base().Redacted(), Err: err}
	default:
		return fmt.Errorf("ask the server: %w", err)
	}
}

type request struct {
	operation, method, path string

	query       url.Values
	document    any // the body, as JSON
	contentType string
	body        io.Reader // the body, unchanged
}

// add adds a parameter to the query, unless it is zero. A list becomes one value, or one each.
func (r *request) add(name string, value any, each bool) {
	v := reflect.ValueOf(value)
	if v.IsZero() {
		return
	}
	if r.query == nil {
		r.query = url.Values{}
	}
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Slice {
		r.query.Set(name, text(v.Interface()))
		return
	}
	texts := make([]string, 0, v.Len())
	for i := range v.Len() {
		texts = append(texts, text(v.Index(i).Interface()))
	}
	if each {
		r.query[name] = texts
	} else {
		r.query.Set(name, strings.Join(texts, ","))
	}
}

func text(value any) string {
	if t, ok := value.(time.Time); ok {
		return t.Format(time.RFC3339Nano)
	}
	return fmt.Sprint(value)
}

func path(format string, names ...any) string {
	segments := make([]any, 0, len(names))
	for _, name := range names {
		segments = append(segments, segment(text(name)))
	}
	return fmt.Sprintf(format, segments...)
}

// segment escapes a name for a path. One of only dots would mean a parent directory.
func segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

// How long a server may be silent: longer than the server's own limit, after which it reports that it is slow.
const (
	lookWait   = time.Minute
	changeWait = 3 * time.Minute  // a large run is rerun or cancelled in one transaction
	uploadWait = 10 * time.Minute // after each part of the items, and after the last
	doctorWait = 11 * time.Minute
)

func usualWait(ask *request) time.Duration {
	switch {
	case ask.operation == "doctor" || ask.operation == "report-run" || ask.operation == "verify-audit":
		return doctorWait
	case ask.operation == "start-run" || ask.operation == "add-items":
		return uploadWait
	case ask.method == http.MethodGet:
		return lookWait
	default:
		return changeWait
	}
}

// patience ends a request when the server was silent for too long.
type patience struct {
	ctx    context.Context //nolint:containedctx // it is the request's, and lives as long
	outer  context.Context //nolint:containedctx // the caller's
	cancel context.CancelCauseFunc
	wait   time.Duration
	timer  *time.Timer

	mu    sync.Mutex
	flows bool // the answer streams: the timer stays off
}

func (c *Client) patience(ctx context.Context, wait time.Duration) *patience {
	within, cancel := context.WithCancelCause(ctx)
	p := &patience{ctx: within, outer: ctx, cancel: cancel, wait: wait}
	p.timer = time.AfterFunc(wait, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.flows {
			cancel(&NoResponseError{URL: c.base().Redacted(), Wait: wait})
		}
	})
	return p
}

// pause stops the timer, and again restarts it.
func (p *patience) pause() { p.timer.Stop() }

func (p *patience) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.flows {
		p.timer.Reset(p.wait)
	}
}

// flow stops the timer permanently, unless it has fired.
func (p *patience) flow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flows = true
	p.timer.Stop()
}

func (p *patience) end() {
	p.timer.Stop()
	p.cancel(nil)
}

func (p *patience) err() error {
	if p.outer.Err() != nil {
		return p.outer.Err()
	}
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	return nil
}

// sending is a body. The timer stops while the caller provides the next bytes: they may come from a slow pipe.
type sending struct {
	from io.Reader
	p    *patience
}

func (s *sending) Read(b []byte) (int, error) {
	s.p.pause()
	defer s.p.again()
	return s.from.Read(b)
}

type flowing struct {
	io.ReadCloser

	p *patience
}

func (f *flowing) Close() error {
	defer f.p.end()
	return f.ReadCloser.Close()
}
