package client

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

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
