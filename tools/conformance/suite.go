// Package conformance checks services in any language against docs/protocol.md.
//
// It acts as a node: it publishes requests for one endpoint and observes all replies and acknowledgements. A check is
// a short exchange, with a deadline, that passes or reports what was expected, what arrived and the section of the
// protocol. Checks run one at a time.
//
// Most checks work with any endpoint, given sample items. The rest need the conformance endpoint, whose payloads say
// how to answer; [Run] asks the endpoint whether it is one. A check without its requirements is left out, with the
// reason, and does not fail.
//
// Without a URL, the suite runs a NATS server and starts the service, for one check again on three servers. With a
// URL it uses that server, and refuses to if a node reads replies there or the endpoint has pending work, because
// checks change limits of the reply stream and remove messages.
//
// It does not test speed, permissions or the service's own data. A Run ends all its goroutines. Runs on separate
// servers may be concurrent.
package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/internal/embedded"
)

// Config configures a Run. Endpoint is required, and either URL or Command.
type Config struct {
	Endpoint string
	// URL of the service's NATS server. Credentials come from the environment, as for [endpoints.Connect]. If empty, the
	// suite runs a server.
	URL string
	// Command starts the service on the suite's server, with NATS_URL in its environment.
	Command []string
	// Items are payloads that the endpoint accepts, used in turn; by default examples of the schema that it announces, or
	// {}. The conformance endpoint gets orders of the contract instead.
	Items []json.RawMessage
	// Only names the checks to run; empty: all.
	Only []string
	// Record, if set, receives all messages as JSON lines.
	Record io.Writer
	// Each, if set, is called with every result. Its error ends the Run.
	Each func(Result) error

	service starter // for tests, instead of Command
	lasting lasting // for tests, instead of context.WithTimeout
}

func (c Config) withDefaults() (Config, error) {
	if err := wire.ValidateName(c.Endpoint); err != nil {
		return c, err
	}
	if c.service == nil && len(c.Command) > 0 {
		c.service = commandStarter(c.Command)
	}
	if (c.URL == "") == (c.service == nil) {
		return c, errors.New("give either the command that starts the service (-- COMMAND ARGS…), which then gets a " +
			"dedicated NATS server, or the server of a running service (--nats URL)")
	}
	for n, item := range c.Items {
		if !json.Valid(item) {
			return c, fmt.Errorf("item %d is not JSON: %.60q", n+1, item)
		}
	}
	names := Names()
	for _, name := range c.Only {
		if !slices.Contains(names, name) {
			return c, fmt.Errorf("there is no check %q; see --list", name)
		}
	}
	if c.lasting == nil {
		c.lasting = context.WithTimeout
	}
	if c.Each == nil {
		c.Each = func(Result) error { return nil }
	}
	return c, nil
}

const caller = "conformance"

// checkTimeout bounds a check. Those that wait for heartbeats on an existing server need most of it.
const checkTimeout = 25 * time.Second

// Run checks a service. An error means that the checks could not run, not that one failed.
func Run(ctx context.Context, config Config) (report *Report, err error) {
	config, err = config.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("conformance: %w", err)
	}
	n := &node{config: config, private: config.URL == "", journal: newJournal()}
	url := config.URL
	if n.private {
		server, stop, err := startServer(ctx)
		if err != nil {
			return nil, err
		}
		defer stop()
		url = server
	}
	disconnect, err := n.connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, disconnect()) }()
	if err := n.prepare(ctx, url); err != nil {
		return nil, err
	}
	if n.service != nil {
		defer n.service.Stop(stopTimeout)
	}
	if err := n.awaitListening(ctx); err != nil {
		return nil, err
	}
	return n.runAll(ctx)
}

func startServer(ctx context.Context) (url string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "tranche-conformance-")
	if err != nil {
		return "", nil, fmt.Errorf("make a directory for NATS: %w", err)
	}
	server, err := embedded.StartNATS(ctx, embedded.NATSConfig{
		StoreDir: filepath.Join(dir, "nats"), Listen: "127.0.0.1:0",
	})
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return server.URL(), func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		_ = server.Stop(ctx) // its data is not needed any longer
		_ = os.RemoveAll(dir)
	}, nil
}

// shown returns server addresses without passwords.
func shown(servers string) string {
	all := strings.Split(servers, ",")
	for i, server := range all {
		at, err := url.Parse(strings.TrimSpace(server))
		if err != nil {
			return "the given address"
		}
		all[i] = at.Redacted()
	}
	return strings.Join(all, ",")
}

// connect connects and starts listening. disconnect ends both.
func (n *node) connect(ctx context.Context, servers string) (disconnect func() error, err error) {
	dial := endpoints.Connect // with the environment's credentials
	if n.private {
		dial = func(opts ...nats.Option) (*nats.Conn, error) { return nats.Connect(servers, opts...) }
	}
	nc, err := dial(nats.Name("tranche conformance"), nats.RetryOnFailedConnect(false), func(o *nats.Options) error {
		o.Servers = strings.Split(servers, ",")
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("connect to NATS at %s: %w", shown(servers), err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("use JetStream at %s: %w", shown(servers), err)
	}
	n.nc, n.js = nc, js
	came := make(chan *nats.Msg, 1<<14)
	if err := tap(nc, n.config.Endpoint, came); err != nil {
		nc.Close()
		return nil, err
	}
	listening, stop := context.WithCancel(context.WithoutCancel(ctx))
	var recorded <-chan struct{}
	if n.config.Record != nil {
		n.recorder = &recorder{out: n.config.Record}
		if recorded, err = n.recorder.follow(listening, nc, n.config.Endpoint); err != nil {
			stop()
			nc.Close()
			return nil, err
		}
	}
	var listener sync.WaitGroup
	listener.Go(func() { n.journal.listen(listening, came) })
	return func() error {
		nc.Close()
		stop()
		listener.Wait()
		if n.recorder == nil {
			return nil
		}
		<-recorded
		return n.recorder.err
	}, nil
}

// prepare creates the streams and starts the service, or checks that the existing server may be used.
func (n *node) prepare(ctx context.Context, url string) error {
	if !n.private {
		if err := n.checkUnused(ctx); err != nil {
			return fmt.Errorf("conformance at %s: %w", shown(url), err)
		}
	} else {
		if err := n.makeStreams(ctx); err != nil {
			return fmt.Errorf("conformance: %w", err)
		}
		service, err := n.config.service(url)
		if err != nil {
			return err
		}
		n.service = service
	}
	return nil
}

func (n *node) runAll(ctx context.Context) (*Report, error) {
	info, err := n.consumer(ctx)
	if err != nil {
		return nil, err
	}
	n.ackWait = info.Config.AckWait
	n.contract = n.obeys(ctx)
	report := &Report{Endpoint: n.config.Endpoint, Contract: n.contract}
	if len(n.config.Items) == 0 {
		n.config.Items = []json.RawMessage{json.RawMessage(`{}`)}
		if report.Items = n.proposed(ctx); len(report.Items) > 0 {
			n.config.Items = report.Items
		}
		report.NoItems = len(report.Items) == 0 && !n.contract
	}
	for _, c := range Checks() {
		if len(n.config.Only) > 0 && !slices.Contains(n.config.Only, c.Name) {
			continue
		}
		result, err := n.run(ctx, c)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("check %s: %w", c.Name, err), said(n.service))
		}
		report.Results = append(report.Results, result)
		if err := n.config.Each(result); err != nil {
			return nil, err
		}
	}
	if n.service != nil && report.Count(Failed) > 0 {
		report.Output = n.service.output()
	}
	return report, nil
}

// proposed returns items of the schema that the endpoint announces, if it does.
func (n *node) proposed(ctx context.Context) []json.RawMessage {
	ctx, cancel := n.config.lasting(ctx, patience)
	defer cancel()
	announced, err := wire.AskContract(ctx, n.nc, n.config.Endpoint)
	if n.contract || err != nil || announced.In == nil {
		return nil // an error is for the check of discovery
	}
	schema, err := itemschema.Compile(announced.In)
	if err != nil {
		return nil
	}
	return schema.Examples()
}

func (n *node) obeys(ctx context.Context) bool {
	var a *answer
	if try(func() { a = n.answered(ctx, orders(order{"do": "hello"})) }) != nil {
		return false // the checks will report the error
	}
	var hello struct{ Conformance int }
	return json.Unmarshal(a.slots()[0].D, &hello) == nil && hello.Conformance == 1
}

// run runs one check. Its error means that the suite cannot continue.
func (n *node) run(ctx context.Context, c Check) (Result, error) {
	result := Result{Check: c.Name, About: c.About, Section: c.Section, Level: c.Level, Outcome: Passed}
	if n.recorder != nil {
		n.recorder.check.Store(&c.Name)
	}
	switch {
	case c.needs&needContract != 0 && !n.contract:
		result.Outcome, result.Reason = LeftOut, `the endpoint did not answer {"do":"hello"} with {"conformance":1}; `+
			`docs/protocol.md#conformance says what a test endpoint does`
		return result, nil
	case c.needs&needPrivate != 0 && !n.private:
		result.Outcome, result.Reason = LeftOut, "the suite must run the server and the service; omit --nats"
		return result, nil
	}
	began := time.Now()
	checking, cancel := n.config.lasting(ctx, checkTimeout)
	defer cancel()
	err := try(func() { c.run(checking, n) })
	result.Took = time.Since(began)
	if ctx.Err() != nil {
		return result, context.Cause(ctx)
	}
	if err != nil {
		result.Notice = c.Notice
	}
	var found *mismatch
	switch {
	case errors.As(err, &found):
		result.Outcome, result.Expected, result.Got = Failed, found.expected, found.got
	case err != nil && checking.Err() != nil:
		result.Outcome, result.Expected = Failed, "the check done in "+checkTimeout.String()
		result.Got = err.Error()
	case err != nil:
		return result, err
	}
	if n.service != nil && !n.stopped {
		if err := n.alive(); err != nil {
			return result, err
		}
	}
	cleaning, cancel := n.config.lasting(ctx, patience)
	defer cancel()
	return result, n.clean(cleaning)
}

// alive returns an error if the service ended unexpectedly.
func (n *node) alive() error {
	select {
	case <-n.service.Done():
		return errors.Join(errors.New("the service ended"), n.service.failure())
	default:
		return nil
	}
}
