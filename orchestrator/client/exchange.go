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
	req, err := http.NewRequestWithContext(p.ctx, ask.method, c.base().String()+prefix+ask.target(), body)
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
