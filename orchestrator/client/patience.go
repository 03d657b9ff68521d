package client

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"
)

// How long a server may be silent. Each is more than the server takes at most for what was asked: it answers that
// it is slow before that.
const (
	lookWait   = time.Minute
	changeWait = 3 * time.Minute  // a large run is re-run or cancelled in one transaction
	uploadWait = 10 * time.Minute // after each piece of the items, and after the last
	doctorWait = 11 * time.Minute
)

func usualWait(ask *request) time.Duration {
	switch {
	case ask.operation == "doctor" || ask.operation == "report-run":
		return doctorWait
	case ask.operation == "start-run" || ask.operation == "add-items":
		return uploadWait
	case ask.method == http.MethodGet:
		return lookWait
	default:
		return changeWait
	}
}

// patience ends a request when the server has been silent for too long.
type patience struct {
	ctx    context.Context //nolint:containedctx // it is the request's, and lives as long
	outer  context.Context //nolint:containedctx // the caller's
	cancel context.CancelCauseFunc
	wait   time.Duration
	timer  *time.Timer

	mu    sync.Mutex
	flows bool // the answer flows: the clock stands permanently
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

// pause stops the clock, and again starts it again.
func (p *patience) pause() { p.timer.Stop() }

func (p *patience) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.flows {
		p.timer.Reset(p.wait)
	}
}

// flow stops the clock permanently, unless the time is over.
func (p *patience) flow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flows = true
	p.timer.Stop()
}

// end gives the request up, if it has not ended.
func (p *patience) end() {
	p.timer.Stop()
	p.cancel(nil)
}

// err says why the request was given up; nil when it was not.
func (p *patience) err() error {
	if p.outer.Err() != nil {
		return p.outer.Err()
	}
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	return nil
}

// sending is a body. The clock stands while the sender looks for the next bytes: they may come from a slow pipe.
type sending struct {
	from io.Reader
	p    *patience
}

func (s *sending) Read(b []byte) (int, error) {
	s.p.pause()
	defer s.p.again()
	return s.from.Read(b)
}

// flowing is an answer that flows.
type flowing struct {
	io.ReadCloser

	p *patience
}

func (f *flowing) Close() error {
	defer f.p.end()
	return f.ReadCloser.Close()
}
