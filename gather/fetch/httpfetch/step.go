package httpfetch

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/gather/template"
	"github.com/tranchehq/tranche/internal/backoff"
)

// step does the chunks of steps that have the same settings.
type step struct {
	gather.HTTP

	client    *Client
	templates *gather.Templates
	base      *url.URL
	http      *http.Client
}

// paceKey is what paces the step.
func (s *step) paceKey() string { return string(gather.KindHTTP) + ":" + s.templates.URL.Host() }

// Fetch implements fetch.Fetcher.
func (s *step) Fetch(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
	if len(req.Items) == 0 {
		return nil, nil
	}
	share, leave := s.client.join(req, s)
	defer leave()
	if s.Many {
		return s.fetchMany(ctx, req, share)
	}
	return newRound(s, req, share).run(ctx)
}

// values are what the templates are filled with.
func (s *step) values(req *fetch.Request) *template.Values {
	return &template.Values{
		Run: req.Run.String(), Step: req.Step, Generation: req.Generation, Params: req.Params, Secret: s.secretValue,
	}
}

// secretValue returns a secret for the host that the plan names: the only one that a first request goes to.
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

// patiently asks, and asks again when the service wants to be left alone for a moment only.
func (s *step) patiently(ctx context.Context, share *share, values *template.Values) (out outcome, ok bool) {
	for tries := 0; ; tries++ {
		if out, resting := s.resting(); resting > shortRest {
			return out, true
		}
		if !share.enter(ctx) {
			out = failed(CodeThrottled, true, "the step's rate leaves no time for this item in its chunk")
			return out, ctx.Err() == nil
		}
		out = s.rested(ctx, values)
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

// maxPauses is how often a request is made again after a short rest.
const maxPauses = 3

// rested asks unless the host wants to be left alone.
func (s *step) rested(ctx context.Context, values *template.Values) outcome {
	if out, resting := s.resting(); resting > 0 {
		out.later = true
		return out
	}
	return s.ask(ctx, values)
}

// resting says how long the host wants to be left alone, and what becomes of an item that cannot wait.
func (s *step) resting() (out outcome, rest time.Duration) {
	rest = time.Until(s.client.rests.until(s.paceKey()))
	return failed(CodeThrottled, true, "%s has asked to be left alone for another %v (Retry-After)",
		s.templates.URL.Shown(), rest.Round(time.Second)), rest
}

// ask makes one request.
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
		said, _ := readAll(response, maxErrorBody) // it is only quoted
		out := s.statusFailed(response.StatusCode, response.Header, s.quoted(said))
		out.later = full && asked && rest > 0
		return out
	}
	return s.read(ctx, response)
}

// request fills the templates in.
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
			return nil, failed(CodeBadHeader, false, "header %s: a line break or another control character would stand in it, "+
				"or it is longer than %d bytes", name, maxHeaderValue)
		}
		r.Header.Set(name, value)
	}
	return r, outcome{}
}

// maxHeaderValue is the longest value of a header that is sent.
const maxHeaderValue = 8 << 10

// slot is the slot of an item for what came of its request.
func (o outcome) asSlot(ordinal int) fetch.Slot {
	if o.failed() {
		e := o.slot
		return fetch.Slot{Ordinal: ordinal, Err: fetch.Clean(&e)}
	}
	return fetch.Slot{Ordinal: ordinal, Data: o.answer.data, ContentType: o.answer.contentType}
}

// asError is the error of a chunk for what came of its request.
func (o outcome) asError() error {
	e := o.slot
	return fetch.Clean(&e)
}
