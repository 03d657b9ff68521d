package httpfetch

import (
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

// fetchMany asks for all items of a chunk with one request.
func (s *step) fetchMany(ctx context.Context, req *fetch.Request, mine *share) ([]fetch.Slot, error) {
	values := s.values(req)
	for i := range req.Items {
		values.Keys = append(values.Keys, req.Items[i].Key)
		values.Items = append(values.Items, payload(&req.Items[i]))
	}
	unpaced := &share{turns: mine.turns, worked: mine.worked} // by its claim the chunk is within the rate
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

// refused is what becomes of a chunk whose one request failed. What smaller chunks, or another time, may help against
// is the chunk's error, by which it is halved or retried. Anything else would be the same for each of its items.
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

// results returns the results of a response by the keys of their items; nil for a key that came twice.
func (s *step) results(body []byte) (map[string][]byte, outcome) {
	host := s.templates.URL.Shown()
	at, found := point(body, s.Response.Items)
	if !found {
		return nil, failed(CodeBadResponse, false, "%s answers with JSON that has no %s", host, s.Response.Items)
	}
	if isObject(at) && s.Response.Key == "" {
		return byName(at), outcome{}
	}
	var list []json.RawMessage
	if json.Unmarshal(at, &list) != nil || list == nil {
		return nil, failed(CodeBadResponse, false, "%s answers with JSON in which %q is no list of results", host,
			s.Response.Items)
	}
	if s.Response.Key == "" {
		return nil, failed(CodeBadResponse, false, "%s answers with a list, and the step does not say where the key of a "+
			"result stands (response.key)", host)
	}
	results := make(map[string][]byte, len(list))
	for i, result := range list {
		text, found := point(result, s.Response.Key)
		if found && wire.FlawOf(text, wire.DefaultMaxDepth) != nil {
			continue // what is no text is the key of no one, though it may look like someone's once it is decoded
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

// byName returns the fields of an object.
func byName(text []byte) map[string][]byte {
	results := map[string][]byte{}
	fields(text, func(name string, result []byte) { put(results, name, result) })
	return results
}

// keyText returns a key that may be written as a number.
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

// resultOf is what came of an item. What came of others that were not asked for is not looked at.
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
	if bad := s.flawed(value, wire.DefaultMaxDepth); bad.failed() {
		return bad
	}
	return outcome{answer: &answer{data: value}}
}

// shareKey is a step of a run.
type shareKey struct {
	run  uuid.UUID
	step string
}

// share is what all chunks of a step that are at work on this node have in common: how many requests it has at once,
// and how fast they come. Claims keep the rate over all nodes, but by chunks; here it is smoothed.
type share struct {
	users   int // chunks at work; guarded by the client's mutex
	turns   chan struct{}
	limiter *rate.Limiter // nil: no limit
	// worked is told how long the host took for a request.
	worked func(time.Duration)
}

// join takes part in a step's share until leave is called.
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
	switch { // the rate may be set while the run goes on
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

// enter waits for a turn. It returns false when the context ends before, or would by the time the rate allows it.
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
