package httpfetch

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/gather/template"
	"github.com/tranchehq/tranche/internal/connections"
)

// Defaults of Config.
const (
	DefaultConnectTimeout = 5 * time.Second
	DefaultUserAgent      = "tranche"
)

// maxSteps is how many steps are kept parsed.
const maxSteps = 256

// Config sets a Client up. A zero field means its default.
type Config struct {
	UserAgent      string
	ConnectTimeout time.Duration // for a connection, with the lookup of its name; as much again for TLS
	Resolver       *net.Resolver // nil: the system's
}

// Client asks HTTP services.
type Client struct {
	conns      *connections.Connections
	cfg        Config
	transports *transports
	rests      rests

	mu     sync.Mutex
	steps  map[string]*step // by their settings
	shares map[shareKey]*share
}

// New returns a client with an operator's connections; nil: none.
func New(conns *connections.Connections, cfg Config) (*Client, error) {
	if conns == nil {
		conns = &connections.Connections{}
	}
	cfg.UserAgent = cmp.Or(cfg.UserAgent, DefaultUserAgent)
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, DefaultConnectTimeout)
	if cfg.ConnectTimeout < 0 || !gather.HeaderText(cfg.UserAgent) {
		return nil, fmt.Errorf("httpfetch: Config.ConnectTimeout %s or UserAgent %q is out of range", cfg.ConnectTimeout,
			cfg.UserAgent)
	}
	c := &Client{conns: conns, cfg: cfg, steps: map[string]*step{}, shares: map[shareKey]*share{}}
	c.transports = newTransports(c)
	return c, nil
}

// Close lets go of connections that are not in use.
func (c *Client) Close() { c.transports.close() }

// RestsUntil returns until when a host wants to be left alone, by what paces its steps, as in http:127.0.0.1:8081. The
// zero time, or one that is over: it does not.
func (c *Client) RestsUntil(paceKey string) time.Time { return c.rests.until(paceKey) }

// Fetcher returns what does a step of these settings, the JSON of gather.HTTP. The error is an *wire.SlotError
// that speaks for all items: settings that this version does not know, or secrets that this node does not have.
func (c *Client) Fetcher(config []byte) (fetch.Fetcher, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.steps[string(config)]; s != nil {
		return s, nil
	}
	s, err := c.parse(config)
	if err != nil {
		return nil, err
	}
	if len(c.steps) >= maxSteps {
		clear(c.steps) // those in use come back
	}
	c.steps[string(config)] = s
	return s, nil
}

// parse reads a step's settings.
func (c *Client) parse(config []byte) (*step, error) {
	s := &step{client: c}
	if err := json.Unmarshal(config, &s.HTTP); err != nil {
		return nil, wire.Fail(CodeBadStep, "the step's settings cannot be read: %v", err)
	}
	var err error
	if s.templates, err = s.Parse(template.Variables{Any: true}); err != nil {
		return nil, wire.Fail(CodeBadStep, "%v", err)
	}
	s.base = s.templates.URL.Base()
	if err := s.checkSecrets(); err != nil {
		return nil, err
	}
	s.http = &http.Client{Transport: c.transports, CheckRedirect: s.checkRedirect}
	return s, nil
}

// checkSecrets looks whether this node has the secrets of the step, and may send them.
func (s *step) checkSecrets() error {
	for _, name := range s.templates.Secrets() {
		if _, err := s.secretValue(name); err != nil {
			return wire.Fail(CodeNoSecret, "%s", s.client.conns.Redact(err.Error()))
		}
	}
	return nil
}
