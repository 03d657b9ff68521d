// Package conformance checks a service against docs/protocol.md, whatever language it is written in.
//
// It plays the node: it publishes requests for one endpoint, reads the replies as they are published, and listens to
// every acknowledgement that the service sends. A check is a short conversation about requests of its own, bounded in
// time, that ends well or with what was expected, what came and the section of the page that says so. Checks run one
// after the other.
//
// Most checks work with any endpoint that can be sent sample items. The others need the conformance endpoint, whose
// payloads say what is to become of them; [Run] asks an endpoint whether it is one. What a check needs and does not
// find leaves it out, with the reason, and is no failure.
//
// Without a URL the suite has a NATS server of its own and starts the service itself, and for one check again, on
// three servers. With one it uses that server, and
// refuses to when a node reads replies there or the endpoint has work to do: the checks change limits of the reply
// stream, and remove what they made.
//
// Not its job: speed, permissions, and what a service does with its own data.
//
// A Run uses several goroutines, all ended when it returns. Runs may go on side by side on servers of their own.
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
	"github.com/tranchehq/tranche/internal/embedded"
)

// Config says what to check. Endpoint is required, and one of URL and Command.
type Config struct {
	Endpoint string
	// URL of the NATS server that the service is connected to; who the suite is there, the environment says, as
	// [endpoints.Connect] reads it. When it is empty the suite runs one of its own.
	URL string
	// Command starts the service, with NATS_URL in its environment, on the suite's own server.
	Command []string
	// Items are payloads that the endpoint understands, by default {}. They are used in turn. The conformance endpoint
	// is sent orders of the contract instead.
	Items []json.RawMessage
	// Only are the names of the checks to run; empty means all.
	Only []string
	// Record, if set, is written what suite and service say to each other, as JSON lines.
	Record io.Writer
	// Each, if set, is called with every result as soon as there is one. Its error ends the Run.
	Each func(Result) error

	service starter // of tests, instead of Command
	lasting lasting // of tests, instead of context.WithTimeout
}

func (c Config) withDefaults() (Config, error) {
	if err := wire.ValidateName(c.Endpoint); err != nil {
		return c, err
	}
	if c.service == nil && len(c.Command) > 0 {
		c.service = commandStarter(c.Command)
	}
	if (c.URL == "") == (c.service == nil) {
		return c, errors.New("give either the command that starts the service (-- COMMAND ARGS…), which then gets a NATS " +
			"server of its own, or the NATS server that it is connected to (--nats URL)")
	}
	if len(c.Items) == 0 {
		c.Items = []json.RawMessage{json.RawMessage(`{}`)}
	}
	for n, item := range c.Items {
		if !json.Valid(item) {
			return c, fmt.Errorf("item %d is not JSON: %.60q", n+1, item)
		}
	}
	names := Names()
	for _, name := range c.Only {
		if !slices.Contains(names, name) {
			return c, fmt.Errorf("there is no check %q; --list names them", name)
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

// caller is the name under which the suite asks for replies elsewhere.
const caller = "conformance"

// checkTimeout bounds a check. Those that wait for heartbeats on someone else's server need most of it.
const checkTimeout = 25 * time.Second

// Run checks a service. An error means that the checks could not be made, not that one failed.
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
		defer stopService(n.service)
	}
	if err := n.awaitListening(ctx); err != nil {
		return nil, err
	}
	return n.runAll(ctx)
}

// startServer runs a NATS server on a free port of the loopback.
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
		_ = server.Stop(ctx) // the process, or the test, ends; no one needs what is stored
		_ = os.RemoveAll(dir)
	}, nil
}

// shown is the addresses of servers without passwords.
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

// connect connects and listens. The returned function ends both.
func (n *node) connect(ctx context.Context, servers string) (disconnect func() error, err error) {
	dial := endpoints.Connect // as whom, the environment says
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

// prepare makes the world that a service expects and starts it, or looks whether what is there may be used.
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

// obeys asks the endpoint whether it knows the contract.
func (n *node) obeys(ctx context.Context) bool {
	a, err := n.answered(ctx, orders(order{"do": "hello"}))
	if err != nil {
		return false // what is wrong with the reply, the checks will tell
	}
	var hello struct{ Conformance int }
	return json.Unmarshal(a.slots()[0].D, &hello) == nil && hello.Conformance == 1
}

// run makes one check. Its error means that the suite itself cannot go on.
func (n *node) run(ctx context.Context, c Check) (Result, error) {
	result := Result{Check: c.Name, About: c.About, Section: c.Section, Level: c.Level, Outcome: Passed}
	if n.recorder != nil {
		n.recorder.check.Store(&c.Name)
	}
	switch {
	case c.needs&needContract != 0 && !n.contract:
		result.Outcome, result.Reason = LeftOut, `the endpoint does not know the contract: {"do":"hello"} was not answered `+
			`with {"conformance":1}`
		return result, nil
	case c.needs&needPrivate != 0 && !n.private:
		result.Outcome, result.Reason = LeftOut, "the suite must run the server and the service (leave --nats out)"
		return result, nil
	}
	began := time.Now()
	checking, cancel := n.config.lasting(ctx, checkTimeout)
	defer cancel()
	err := n.talk(checking, &c)
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

// alive returns an error when the service has ended although no one told it to.
func (n *node) alive() error {
	select {
	case <-n.service.exited():
		return errors.Join(errors.New("the service has ended"), n.service.failure())
	default:
		return nil
	}
}
