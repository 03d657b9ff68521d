package endpoints

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/endpoints/internal/flow"
	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
)

const (
	// DefaultDrainTimeout is Config.DrainTimeout when it is not set.
	DefaultDrainTimeout = 25 * time.Second
	// DefaultVersion is Config.Version when it is not set.
	DefaultVersion = "0.0.0"
	// sendGrace is what handlers and replies get after the drain timeout, to end.
	sendGrace = 3 * time.Second
)

var semantic = regexp.MustCompile(`^\d{1,9}\.\d{1,9}\.\d{1,9}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// Config describes a service.
type Config struct {
	// Name of the service, of A-Z a-z 0-9 _ -; required.
	Name string
	// Version is a semantic version such as 1.4.0. Default 0.0.0.
	Version string
	// Log takes what goes wrong, what is waited for, and what becomes of the service. It never sees a payload. nil: that
	// is said on standard error, a line each; zap.NewNop() says nothing.
	Log *zap.Logger
	// DrainTimeout is how long running chunks may go on once Run's context has ended. Default 25 s.
	DrainTimeout time.Duration
	// Limits bound what one request may cost.
	Limits wire.Limits
	// Wrap is called around the handlers of all endpoints, the first outermost.
	Wrap []Wrapper
}

func (c Config) withDefaults() Config {
	c.Version = cmp.Or(c.Version, DefaultVersion)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, DefaultDrainTimeout)
	if c.Log == nil {
		c.Log = serve.Speaker()
	}
	c.Limits = c.Limits.WithDefaults()
	return c
}

func (c Config) validate() error {
	var name *wire.NameError
	switch {
	case errors.As(wire.ValidateName(c.Name), &name):
		return fmt.Errorf("Config.Name is %.80q; use 1 to %d of A-Z a-z 0-9 _ -", c.Name, wire.MaxNameLength)
	case !semantic.MatchString(c.Version):
		return fmt.Errorf("Config.Version is %.80q; use a semantic version such as 1.4.0", c.Version)
	case c.DrainTimeout < 0:
		return fmt.Errorf("Config.DrainTimeout is %s; it must not be negative", c.DrainTimeout)
	case slices.ContainsFunc(c.Wrap, func(w Wrapper) bool { return w == nil }):
		return errors.New("Config.Wrap has a nil function")
	}
	return nil
}

// Service serves the endpoints that HandleList and HandleEach give it. It runs once.
type Service struct {
	config   Config
	host     *serve.Host
	instance string
	machine  string
	grace    time.Duration // sendGrace

	mu        sync.Mutex
	endpoints []*endpoint
	running   bool
}

// endpoint is what serves one endpoint.
type endpoint struct {
	*serve.Server
	flow *flow.Flow // nil unless it has stages
}

// New returns a service on nc, which stays the caller's to close, after Run.
func New(nc *nats.Conn, config Config) (*Service, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("new service: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("new service %s: %w", config.Name, err)
	}
	machine, _ := os.Hostname() // for people to read; it may be unknown
	instance := nuid.Next()
	return &Service{config: config, instance: instance, machine: machine, grace: sendGrace, host: &serve.Host{
		NC: nc, Outbox: serve.NewOutbox(nc, js), Limits: config.Limits, Suspects: serve.NewSuspects(), Log: config.Log,
		Identity: fmt.Sprintf("%s@%s %s", config.Name, config.Version, instance),
	}}, nil
}

// register adds an endpoint, the handlers of which are called within the service's wrappers and these.
func (s *Service) register(e endpoint, wrap []Wrapper) error {
	if err := wire.ValidateName(e.Name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running {
		return fmt.Errorf("endpoint %s: add handlers before Run", e.Name)
	}
	for _, other := range s.endpoints {
		if other.Name == e.Name {
			return fmt.Errorf("endpoint %s has a handler already", e.Name)
		}
	}
	e.Around = within(slices.Concat(s.config.Wrap, wrap))
	e.Attach(s.host)
	if e.flow != nil {
		e.flow.Attach()
	}
	s.endpoints = append(s.endpoints, &e)
	return nil
}

// DrainError is returned by Run when handlers were still at work at the end of the drain timeout. Their requests were
// not acknowledged and go to other instances.
type DrainError struct {
	After time.Duration
	Left  map[string]int // chunks by endpoint
}

func (e *DrainError) Error() string {
	var left []string
	for endpoint, chunks := range e.Left {
		left = append(left, fmt.Sprintf("%d of %s", chunks, endpoint))
	}
	return fmt.Sprintf("drain: after %s these chunks were still at work: %s", e.After, strings.Join(left, ", "))
}

// Run serves until ctx ends. Then it takes no new chunks, lets running ones end within the drain timeout, and returns
// nil when all were answered and acknowledged. After the drain timeout handlers' contexts end, and what is not answered
// goes back to be retried; a handler that still does not return is left behind and named in a *DrainError.
//
// It waits as long as it takes for a server and a node's streams, saying so in the log, and survives the loss of
// either. Other errors mean that the connection was closed, or that there is nothing to serve.
func (s *Service) Run(ctx context.Context) error {
	if err := s.start(); err != nil {
		return err
	}
	unlist, err := s.announce()
	if err != nil {
		return fmt.Errorf("run service %s: %w", s.config.Name, err)
	}
	working, stopWork := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopWork(nil)
	sending, stopSend := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSend()
	group, serving := errgroup.WithContext(ctx)
	span := serve.Scope{Stopping: serving.Done(), Working: working, Sending: sending}
	for _, e := range s.endpoints {
		group.Go(func() error { return e.Run(serving, span) })
	}
	var watch sync.WaitGroup
	watch.Go(func() { s.host.Outbox.Perms.Run(serving, s.config.Log) })
	defer watch.Wait()
	done := make(chan error, 1)
	go func() { done <- group.Wait() }()
	<-serving.Done()
	unlist()
	s.config.Log.Info("draining: no more chunks are taken, those at work may end", zap.Int("chunks", s.atWork()),
		zap.Duration("within", s.config.DrainTimeout))
	err = s.drain(done, func() { stopWork(wire.ErrShutdown) }, stopSend)
	// Acknowledgements are not waited for one by one. An error here means that there is no server: it will deliver
	// again, which does no harm.
	_ = s.host.NC.FlushTimeout(time.Second)
	s.config.Log.Info("gone", zap.Int("chunks left behind", s.atWork()))
	return err
}

// atWork is how many chunks handlers work on.
func (s *Service) atWork() (chunks int) {
	for _, e := range s.endpoints {
		chunks += e.Held()
	}
	return chunks
}

func (s *Service) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.running:
		return fmt.Errorf("run service %s: it has run already; make a new one", s.config.Name)
	case len(s.endpoints) == 0:
		return fmt.Errorf("run service %s: no endpoint has a handler; add one with HandleList or HandleEach", s.config.Name)
	}
	s.running = true
	return nil
}

// drain waits for what is running to end, and helps it along ever less gently.
func (s *Service) drain(done <-chan error, stopWork, stopSend func()) error {
	for _, step := range []struct {
		patience time.Duration
		then     func()
	}{{s.config.DrainTimeout, stopWork}, {s.grace, stopSend}, {s.grace, func() {}}} {
		timer := time.NewTimer(step.patience)
		select {
		case err := <-done:
			timer.Stop()
			return err
		case <-timer.C:
			step.then()
		}
	}
	left := &DrainError{After: s.config.DrainTimeout + 2*s.grace, Left: map[string]int{}}
	for _, e := range s.endpoints {
		if n := e.Held(); n > 0 {
			left.Left[e.Name] = n
		}
	}
	return left
}
