package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/tranchehq/tranche/internal/api"
)

// maxAnswer bounds one document.
const maxAnswer = 64 << 20

// post sends one document and reads another.
func (c *Client) post(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("write what to ask for: %w", err)
	}
	return c.call(ctx, http.MethodPost, path, "application/json", bytes.NewReader(body), out)
}

// call asks for one document.
func (c *Client) call(ctx context.Context, method, path, kind string, body io.Reader, out any) error {
	return c.callWithin(ctx, usualWait(method), method, path, kind, body, out)
}

func (c *Client) callWithin(
	ctx context.Context, wait time.Duration, method, path, kind string, body io.Reader, out any,
) error {
	p := c.patience(ctx, wait)
	defer p.end()
	answer, err := c.do(p, method, path, kind, body)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Close() }()
	if err := json.NewDecoder(io.LimitReader(answer, maxAnswer)).Decode(out); err != nil {
		if gone := p.err(); gone != nil {
			return gone
		}
		return fmt.Errorf("read the answer of %s: %w", c.base.Redacted(), err)
	}
	return nil
}

// stream asks for what may flow for hours: only its beginning is waited for.
func (c *Client) stream(ctx context.Context, path string) (io.ReadCloser, error) {
	p := c.patience(ctx, usualWait(http.MethodGet))
	answer, err := c.do(p, http.MethodGet, path, "", nil)
	if err != nil {
		p.end()
		return nil, err
	}
	p.pause()
	return &flowing{answer, p}, nil
}

func (c *Client) do(p *patience, method, path, kind string, body io.Reader) (io.ReadCloser, error) {
	if body != nil {
		body = &sending{body, p}
	}
	req, err := http.NewRequestWithContext(p.ctx, method, c.base.String()+api.Prefix+path, body)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", c.base.Redacted(), err)
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if method != http.MethodGet && c.actor != "" {
		req.Header.Set(api.ActorHeader, c.actor)
	}
	answer, err := c.http.Do(req)
	if err != nil {
		return nil, c.unanswered(p, err)
	}
	if answer.StatusCode >= http.StatusMultipleChoices {
		defer func() { _ = answer.Body.Close() }()
		return nil, readProblem(answer)
	}
	return answer.Body, nil
}

func (c *Client) unanswered(p *patience, err error) error {
	var dial *net.OpError
	gone := p.err()
	switch {
	case gone != nil:
		return gone
	case errors.As(err, &dial) && dial.Op == "dial":
		return &UnreachableError{URL: c.base.Redacted(), Err: err}
	default:
		return fmt.Errorf("ask the server: %w", err)
	}
}
