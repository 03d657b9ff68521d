package httpfetch

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
)

func (s *step) fetchMany(ctx context.Context, req *fetch.Request, mine *share) ([]fetch.Slot, error) {
	values := s.values(req)
	for i := range req.Items {
		values.Keys = append(values.Keys, req.Items[i].Key)
		values.Items = append(values.Items, payload(&req.Items[i]))
	}
	unpaced := &share{turns: mine.turns, worked: mine.worked} // the chunk's claim already keeps the rate
	out, ok := s.patiently(ctx, unpaced, values)
	switch {
	case !ok:
		return nil, context.Cause(ctx)
	case out.failed():
		return s.refused(req, out)
	}
	results, bad := s.results(out.answer.data)
	if bad.failed() {
		return s.refused(req, bad)
	}
	slots := make([]fetch.Slot, len(req.Items))
	for i := range req.Items {
		slots[i] = s.resultOf(results, &req.Items[i]).asSlot(req.Items[i].Ordinal)
	}
	return slots, nil
}

func payload(item *fetch.Item) []byte {
	if item.Payload == nil {
		return []byte("null")
	}
	return item.Payload
}

// refused fails the chunk after a failed request if smaller chunks or a retry may help, else each item.
func (s *step) refused(req *fetch.Request, out outcome) ([]fetch.Slot, error) {
	switch out.slot.Code {
	case CodeThrottled, CodeOverloaded, CodeNoSecret, CodeAddress, CodeRedirect, CodeTLS, CodeUnauthorized, CodeForbidden,
		CodeBadResponse, CodeMissingValue, CodeBadHeader, CodeBadCompression, CodeByteOrderMark, CodeCharset:
		slots := make([]fetch.Slot, len(req.Items))
		for i := range req.Items {
			slots[i] = out.asSlot(req.Items[i].Ordinal)
		}
		return slots, nil
	}
	return nil, out.asError()
}

// results returns a response's results by key; nil for a repeated key.
func (s *step) results(body []byte) (map[string][]byte, outcome) {
	host := s.templates.URL.Shown()
	at, found := point(body, s.Response.Items)
	if !found {
		return nil, failed(CodeBadResponse, false, "%s answers with JSON that has no %s", host, s.Response.Items)
	}
	if isObject(at) && s.Response.Key == "" {
		results := map[string][]byte{}
		fields(at, func(name string, result []byte) { put(results, name, result) })
		return results, outcome{}
	}
	var list []json.RawMessage
	if json.Unmarshal(at, &list) != nil || list == nil {
		return nil, failed(CodeBadResponse, false, "%s answers with JSON in which %q is not a list of results", host,
			s.Response.Items)
	}
	if s.Response.Key == "" {
		return nil, failed(CodeBadResponse, false, "%s answers with a list, and the step does not say where the key of a "+
			"result is (response.key)", host)
	}
	results := make(map[string][]byte, len(list))
	for i, result := range list {
		text, found := point(result, s.Response.Key)
		if found && wire.FlawOf(text, wire.DefaultMaxDepth) != nil {
			continue // invalid text matches no key, though it might after decoding
		}
		key, ok := keyText(text)
		if !found || !ok {
			return nil, failed(CodeBadResponse, false, "%s answers with a list whose result %d has no key, a text or a number, "+
				"at %s", host, i, s.Response.Key)
		}
		put(results, key, result)
	}
	return results, outcome{}
}

func put(results map[string][]byte, key string, result []byte) {
	if _, twice := results[key]; twice {
		result = nil
	}
	results[key] = result
}

func keyText(text []byte) (key string, ok bool) {
	var value any
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	if d.Decode(&value) != nil {
		return "", false
	}
	switch value.(type) {
	case string, json.Number:
		return fmt.Sprint(value), true
	}
	return "", false
}

func (s *step) resultOf(results map[string][]byte, item *fetch.Item) outcome {
	host := s.templates.URL.Shown()
	result, there := results[item.Key]
	switch {
	case !there:
		return failed(CodeNotFound, false, "%s answers without a result for the key", host)
	case result == nil:
		return failed(CodeBadResponse, false, "%s answers with two results for the key", host)
	}
	value, found := point(result, s.Response.Value)
	if !found {
		return failed(CodeBadResponse, false, "%s answers with a result that has no %s", host, s.Response.Value)
	}
	if bad := cmp.Or(s.flawed(value, wire.DefaultMaxDepth), s.leaked(value)); bad.failed() {
		return bad
	}
	return outcome{answer: &answer{data: value}}
}

type shareKey struct {
	run  uuid.UUID
	step string
}

// share is common to a step's running chunks on this node: its parallel requests and their rate. Claims keep the rate
// over all nodes per chunk; here it is smoothed.
type share struct {
	users   int // running chunks; guarded by Client.mu
	turns   chan struct{}
	limiter *rate.Limiter // nil without limit
	// worked receives how long the host took for a request.
	worked func(time.Duration)
}

// join returns the step's share, to be released with leave.
func (c *Client) join(req *fetch.Request, s *step) (mine *share, leave func()) {
	key := shareKey{req.Run, req.Step}
	c.mu.Lock()
	defer c.mu.Unlock()
	mine = c.shares[key]
	if mine == nil {
		mine = &share{turns: make(chan struct{}, s.Concurrency)}
		c.shares[key] = mine
	}
	mine.users++
	switch { // the rate may change during the run
	case req.Rate <= 0:
		mine.limiter = nil
	case mine.limiter == nil:
		mine.limiter = rate.NewLimiter(rate.Limit(req.Rate), 1)
	default:
		mine.limiter.SetLimit(rate.Limit(req.Rate))
	}
	limited := &share{turns: mine.turns, limiter: mine.limiter, worked: req.Worked}
	return limited, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if mine.users--; mine.users == 0 {
			delete(c.shares, key)
		}
	}
}

// enter waits for a turn. It returns false if the context ends first, or would before the rate permits.
func (s *share) enter(ctx context.Context) bool {
	select {
	case s.turns <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	if s.limiter != nil && s.limiter.Wait(ctx) != nil {
		s.leave()
		return false
	}
	return true
}

func (s *share) leave() { <-s.turns }
