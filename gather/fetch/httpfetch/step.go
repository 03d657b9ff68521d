package httpfetch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/gather/template"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/workqueue"
)

// step fetches the chunks of steps with the same settings.
type step struct {
	gather.HTTP

	client    *Client
	templates *gather.Templates
	base      *url.URL
	http      *http.Client
}

func (s *step) paceKey() string { return workqueue.TargetKey(workqueue.KindHTTP, s.base.Host) }

// Fetch implements fetch.Fetcher.
func (s *step) Fetch(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
	if len(req.Items) == 0 {
		return nil, nil
	}
	share, leave := s.client.join(req, s)
	defer leave()
	if s.WholeChunk {
		return s.fetchMany(ctx, req, share)
	}
	r := &round{step: s, req: req, share: share, most: max(3, s.Concurrency), stop: make(chan struct{})}
	return r.run(ctx)
}

func (s *step) values(req *fetch.Request) *template.Values {
	return &template.Values{
		Run: req.Run.String(), Step: req.Step, Generation: req.Generation, Params: req.Params, Secret: s.secretValue,
	}
}

// secretValue returns a secret for the plan's host, the only one that first requests go to.
func (s *step) secretValue(name string) (string, error) {
	secret, err := s.client.conns.Secret(name)
	if err != nil {
		return "", err
	}
	return secret.Value(s.base)
}

func (s *step) valuesOf(req *fetch.Request, item *fetch.Item) *template.Values {
	v := s.values(req)
	v.Key, v.Ordinal, v.Item = item.Key, item.Ordinal, item.Payload
	v.Parts = make(map[string]template.Part, len(item.Parts))
	for name, part := range item.Parts {
		v.Parts[name] = template.Part{Data: part.Data, ContentType: part.ContentType}
	}
	return v
}

// patiently sends a request, and repeats it after short pauses that the service requests.
func (s *step) patiently(ctx context.Context, share *share, values *template.Values) (out outcome, ok bool) {
	for tries := 0; ; tries++ {
		if out, resting := s.resting(); resting > shortRest {
			return out, true
		}
		if !share.enter(ctx) {
			out = failed(CodeThrottled, true, "the step's rate leaves no time for this item in its chunk")
			return out, ctx.Err() == nil
		}
		out = s.rested(ctx, share, values)
		share.leave()
		_, rest := s.resting()
		throttled := out.slot.Code == CodeThrottled || out.slot.Code == CodeOverloaded
		if !throttled || rest <= 0 && !out.later || rest > shortRest || tries == maxPauses {
			return out, true
		}
		if backoff.Sleep(ctx, rest) != nil {
			return outcome{}, false
		}
	}
}

// maxPauses bounds those repetitions.
const maxPauses = 3

// rested sends a request unless the host asked for a pause.
func (s *step) rested(ctx context.Context, share *share, values *template.Values) outcome {
	if out, resting := s.resting(); resting > 0 {
		out.later = true
		return out
	}
	var connected atomic.Pointer[time.Time]
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		now := time.Now()
		connected.CompareAndSwap(nil, &now)
	}})
	out := s.ask(ctx, values)
	if at := connected.Load(); at != nil {
		share.worked(time.Since(*at))
	}
	return out
}

// resting returns the remaining pause, and the outcome for an item that cannot wait.
func (s *step) resting() (out outcome, rest time.Duration) {
	rest = time.Until(s.client.rests.until(s.paceKey()))
	return failed(CodeThrottled, true, "%s requested a pause, for another %v (Retry-After)",
		s.templates.URL.Shown(), rest.Round(time.Second)), rest
}

func (s *step) ask(ctx context.Context, values *template.Values) outcome {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(s.Timeout))
	defer cancel()
	r, bad := s.request(ctx, values)
	if bad.failed() {
		return bad
	}
	response, err := s.http.Do(r)
	if err != nil {
		return s.sendFailed(ctx, err)
	}
	defer response.Body.Close()
	full := response.StatusCode == http.StatusTooManyRequests || response.StatusCode == http.StatusServiceUnavailable
	rest, asked := retryAfter(response.Header, time.Now())
	if full && asked {
		s.client.rests.set(s.paceKey(), rest)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		said, _ := readAll(response, maxErrorBody) // only quoted
		out := s.statusFailed(response.StatusCode, response.Header, s.quoted(said))
		out.later = full && asked && rest > 0
		return out
	}
	return s.read(ctx, response)
}

func (s *step) request(ctx context.Context, values *template.Values) (*http.Request, outcome) {
	u, err := s.templates.URL.Expand(values)
	if err != nil {
		return nil, s.templateFailed("url", err)
	}
	var body []byte
	if s.templates.Body != nil {
		if body, err = s.templates.Body.Expand(values); err != nil {
			return nil, s.templateFailed("body", err)
		}
	}
	r, err := http.NewRequestWithContext(ctx, s.Method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, failed(CodeMissingValue, false, "url: the values make no URL")
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("Accept", "*/*")
	if s.Accept != "" {
		r.Header.Set("Accept", s.Accept)
	}
	r.Header.Set("User-Agent", s.client.cfg.UserAgent)
	for name, text := range s.templates.Headers {
		value, err := text.Expand(values)
		if err != nil {
			return nil, s.templateFailed("header "+name, err)
		}
		if !gather.HeaderText(value) || len(value) > maxHeaderValue {
			return nil, failed(CodeBadHeader, false, "header %s: a line break or another control character would be in it, "+
				"or it is longer than %d bytes", name, maxHeaderValue)
		}
		r.Header.Set(name, value)
	}
	return r, outcome{}
}

const maxHeaderValue = 8 << 10

func (o outcome) asSlot(ordinal int) fetch.Slot {
	if o.failed() {
		e := o.slot
		return fetch.Slot{Ordinal: ordinal, Err: fetch.Clean(&e)}
	}
	return fetch.Slot{Ordinal: ordinal, Data: o.answer.data, ContentType: o.answer.contentType}
}

func (o outcome) asError() error {
	e := o.slot
	return fetch.Clean(&e)
}

// heldBytes bounds the results of a chunk held without a sink.
const heldBytes = 64 << 20

type round struct {
	step  *step
	req   *fetch.Request
	share *share

	mu     sync.Mutex
	next   int // next item to request
	slots  []fetch.Slot
	held   int           // bytes of slots
	downs  []failedItem  // requests without an answer from the service
	streak int           // consecutive such requests
	most   int           // streak that ends the round
	whole  *outcome      // why the round ended early
	stop   chan struct{} // closed when it does
}

type failedItem struct {
	ordinal int
	why     outcome
}

// run requests all items. When the service stops answering, the chunk fails, and remaining items are not blamed.
func (r *round) run(ctx context.Context) ([]fetch.Slot, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var workers sync.WaitGroup
	for range min(r.step.Concurrency, len(r.req.Items)) {
		workers.Go(func() {
			for item := r.take(); item != nil; item = r.take() {
				out, ok := r.step.patiently(ctx, r.share, r.step.valuesOf(r.req, item))
				if !ok || out.failed() && ctx.Err() != nil {
					return // cut off: not the item's error
				}
				if r.done(item.Ordinal, out) {
					cancel()
				}
			}
		})
	}
	workers.Wait()
	return r.end(context.Cause(ctx))
}

func (r *round) take() *fetch.Item {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == len(r.req.Items) || r.whole != nil {
		return nil
	}
	r.next++
	return &r.req.Items[r.next-1]
}

// done records an item's outcome and reports whether the round must end.
func (r *round) done(ordinal int, out outcome) (over bool) {
	slot := out.asSlot(ordinal)
	if !out.down && !out.failed() && r.req.Emit(slot) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.streak = 0
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.whole != nil {
		return false // the request was cut off
	}
	if !out.down {
		r.streak = 0
		r.slots = append(r.slots, slot)
		if r.held += len(slot.Data); r.held > heldBytes && r.next < len(r.req.Items) {
			full := failed(wire.CodeHeldTooLarge, false, "the chunk's results take more than %d bytes", heldBytes)
			r.whole = &full
		}
		return r.whole != nil
	}
	r.downs = append(r.downs, failedItem{ordinal, out})
	if r.streak++; r.streak >= r.most {
		r.whole = &out
	}
	return r.whole != nil
}

// end returns the slots. Requests without an answer fail their items only if other requests got one.
func (r *round) end(cause error) ([]fetch.Slot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.whole != nil {
		return r.slots, r.whole.asError()
	}
	if len(r.downs) == len(r.req.Items) {
		return nil, r.downs[0].why.asError()
	}
	for _, down := range r.downs {
		r.slots = append(r.slots, down.why.asSlot(down.ordinal))
	}
	slices.SortFunc(r.slots, func(a, b fetch.Slot) int { return a.Ordinal - b.Ordinal })
	return r.slots, cause
}

const (
	// longestRest bounds the pause that one answer can request.
	longestRest = 5 * time.Minute
	// shortRest bounds the pause that a request waits for. For longer ones, items are returned.
	shortRest = 2 * time.Second
)

// rests holds the times until which hosts asked not to be called.
type rests struct {
	mu    sync.Mutex
	hosts map[string]time.Time // by pacing key
}

func (r *rests) until(paceKey string) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	until := r.hosts[paceKey]
	if !until.IsZero() && time.Now().After(until) {
		delete(r.hosts, paceKey)
		return time.Time{}
	}
	return until
}

func (r *rests) set(paceKey string, rest time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hosts == nil {
		r.hosts = map[string]time.Time{}
	}
	if until := time.Now().Add(min(rest, longestRest)); until.After(r.hosts[paceKey]) {
		r.hosts[paceKey] = until
	}
}

// retryAfter parses Retry-After: seconds, or a date by the service's clock.
func retryAfter(h http.Header, now time.Time) (rest time.Duration, said bool) {
	text := h.Get("Retry-After")
	if text == "" {
		return 0, false
	}
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(seconds) * time.Second, true // if out of range, the maximum
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return max(0, at.Sub(now)), true
}

// point resolves a JSON pointer in valid JSON. The result aliases text.
func point(text []byte, pointer string) (value []byte, found bool) {
	if pointer == "" {
		return text, true
	}
	for name := range strings.SplitSeq(pointer[1:], "/") {
		name = strings.ReplaceAll(strings.ReplaceAll(name, "~1", "/"), "~0", "~")
		if text, found = member(text, name); !found {
			return nil, false
		}
	}
	return text, true
}

func member(text []byte, name string) (value []byte, found bool) {
	if isObject(text) {
		times := 0
		fields(text, func(field string, of []byte) {
			if field == name {
				value, times = of, times+1
			}
		})
		return value, times == 1 // a repeated name is ambiguous
	}
	var list []json.RawMessage
	if json.Unmarshal(text, &list) != nil {
		return nil, false
	}
	i, err := strconv.Atoi(name)
	if err != nil || i < 0 || i >= len(list) || strconv.Itoa(i) != name {
		return nil, false
	}
	return list[i], true
}

// fields calls f for each field of a valid object, skipping names that are not valid text. Values alias object.
func fields(object []byte, f func(name string, value []byte)) {
	d := jsontext.NewDecoder(bytes.NewBuffer(object), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	_, _ = d.ReadToken() // known to be valid
	for d.PeekKind() == jsontext.KindString {
		quoted, _ := d.ReadValue()
		name, bad := jsontext.AppendUnquote(nil, quoted)
		value, _ := d.ReadValue()
		if end := int(d.InputOffset()); bad == nil {
			f(string(name), object[end-len(value):end:end])
		}
	}
}

func isObject(text []byte) bool {
	return strings.HasPrefix(strings.TrimLeft(string(text[:min(len(text), 64)]), " \t\r\n"), "{")
}
