package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/tranchehq/tranche/internal/embedded"
)

const (
	startTimeout = 30 * time.Second // of a command, which may have to compile first
	foundTimeout = 5 * time.Second  // of a service that should be running
	stopTimeout  = 10 * time.Second
	maxOutput    = 16 << 10
)

type service interface {
	Terminate()
	Stop(grace time.Duration) (inTime bool)
	Done() <-chan struct{}
	failure() error // how it ended, once it has
	output() string // the end of its output
}

type starter func(url string) (service, error)

type process struct {
	*embedded.Group

	said tail
}

func commandStarter(command []string) starter {
	return func(url string) (service, error) {
		cmd := exec.Command(command[0], command[1:]...) //nolint:noctx // it is ended by signals, not by a context
		cmd.Env = append(os.Environ(), "NATS_URL="+url)
		p := &process{}
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &p.said, &p.said, time.Second
		var err error
		if p.Group, err = embedded.StartGroup(cmd); err != nil {
			return nil, fmt.Errorf("start the service: %w", err)
		}
		return p, nil
	}
}

func (p *process) output() string { return p.said.String() }

func (p *process) failure() error {
	if _, ok := errors.AsType[*exec.ExitError](p.Err()); !ok {
		return nil
	}
	return p.Err()
}

// awaitListening returns when a service waits for requests.
func (n *node) awaitListening(ctx context.Context) error {
	timeout := startTimeout
	if n.service == nil {
		timeout = foundTimeout
	}
	ctx, cancel := n.config.lasting(ctx, timeout)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	ended := make(<-chan struct{})
	if n.service != nil {
		ended = n.service.Done()
	}
	for {
		info, err := n.consumer(ctx)
		if err == nil && info.NumWaiting > 0 {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("the service ended before it listened on %s: %w", n.config.Endpoint,
				errors.Join(n.service.failure(), said(n.service)))
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("no service fetches from consumer %s of TRANCHE_WORK; it must look the consumer up "+
				"and pull, on the server that NATS_URL names", n.config.Endpoint), said(n.service))
		case <-ticker.C:
		}
	}
}

func said(s service) error {
	if s == nil || s.output() == "" {
		return nil
	}
	return errors.New("it wrote:\n" + s.output())
}

// tail keeps the end of what is written. It is safe for concurrent use.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (t *tail) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(data)
	if extra := t.buf.Len() - maxOutput; extra > 0 {
		t.buf.Next(extra)
	}
	return len(data), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
