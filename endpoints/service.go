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
	// DefaultDrainTimeout is the default of Config.DrainTimeout.
	DefaultDrainTimeout = 25 * time.Second
	// DefaultVersion is the default of Config.Version.
	DefaultVersion = "0.0.0"
	// sendGrace is added twice to the drain timeout: for cancelled handlers to end, then for replies to be sent.
	sendGrace = 3 * time.Second
)

var semantic = regexp.MustCompile(`^\d{1,9}\.\d{1,9}\.\d{1,9}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

// Config configures a Service.
type Config struct {
	// Name of the service, of A-Z a-z 0-9 _ -. Required.
	Name string
	// Version is a semantic version such as 1.4.0. Default 0.0.0.
	Version string
	// Log receives errors, waits and life-cycle events, never payloads. nil logs lines to standard error; zap.NewNop()
	// disables logging.
	Log *zap.Logger
	// DrainTimeout is how long running chunks may continue after Run's context ends. Default 25 s.
	DrainTimeout time.Duration
	// Limits bound the size of requests.
	Limits wire.Limits
	// Wrap runs around the handlers of all endpoints, the first outermost.
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

// Service serves the endpoints registered with HandleList, HandleEach and HandleFlow. It runs once.
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

type endpoint struct {
	*serve.Server
	flow *flow.Flow // nil unless it has stages
}

// New returns a service on nc, which the caller closes after Run.
func New(nc *nats.Conn, config Config) (*Service, error) {
	config = config.withDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("new service: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("new service %s: %w", config.Name, err)
	}
	machine, _ := os.Hostname() // informational; may be empty
	instance := nuid.Next()
	return &Service{config: config, instance: instance, machine: machine, grace: sendGrace, host: &serve.Host{
		NC: nc, Outbox: serve.NewOutbox(nc, js), Limits: config.Limits, Suspects: serve.NewSuspects(), Log: config.Log,
		Identity: fmt.Sprintf("%s@%s %s", config.Name, config.Version, instance),
	}}, nil
}

// register adds an endpoint whose handlers run inside the service's wrappers, then wrap.
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

// DrainError is returned by Run if handlers did not return after the drain timeout and a grace period. Their requests
// are not acknowledged, and are redelivered to other instances.
type DrainError struct {
	After time.Duration
	Left  map[string]int // chunks per endpoint
}

func (e *DrainError) Error() string {
	var left []string
	for endpoint, chunks := range e.Left {
		left = append(left, fmt.Sprintf("%d of %s", chunks, endpoint))
	}
	return fmt.Sprintf("drain: after %s these chunks were still at work: %s", e.After, strings.Join(left, ", "))
}

// Run serves until ctx ends. Then it takes no new chunks and returns nil once all running ones are answered and
// acknowledged. After the drain timeout, it cancels the handlers' contexts, and unanswered items are retried.
// Handlers that still do not return are abandoned and named in a *DrainError.
//
// Run waits indefinitely for a NATS server and a node's streams, logs the wait, and survives the loss of either.
// Other errors mean that the connection was closed or no endpoint was registered.
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
	s.config.Log.Info("draining: taking no more chunks, finishing those in progress", zap.Int("chunks", s.atWork()),
		zap.Duration("within", s.config.DrainTimeout))
	err = s.drain(done, func() { stopWork(wire.ErrShutdown) }, stopSend)
	// Acknowledgements are sent without waiting for each. An error here means that the server is gone and will
	// redeliver, which is harmless.
	_ = s.host.NC.FlushTimeout(time.Second)
	s.config.Log.Info("gone", zap.Int("chunks left behind", s.atWork()))
	return err
}

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

// drain waits for running chunks, then cancels handlers, then sends.
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
