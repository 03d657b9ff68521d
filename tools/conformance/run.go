package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/tranchehq/tranche/internal/embedded"
)

// caller is the name under which the suite asks for replies elsewhere.
const caller = "conformance"

// checkTimeout bounds a check. Those that wait for signs of life on somebody else's server need most of it.
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
		_ = server.Stop(ctx) // the process, or the test, ends; nobody needs what is stored
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
	for _, c := range checks() {
		if len(n.config.Only) > 0 && !slices.Contains(n.config.Only, c.name) {
			continue
		}
		result, err := n.run(ctx, c)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("check %s: %w", c.name, err), said(n.service))
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
func (n *node) run(ctx context.Context, c check) (Result, error) {
	wanted := demands()[c.name]
	result := Result{Check: c.name, About: c.about, Section: c.section, Level: wanted.level, Outcome: Passed}
	if n.recorder != nil {
		n.recorder.check.Store(&c.name)
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
	err := c.run(checking, n)
	result.Took = time.Since(began)
	if ctx.Err() != nil {
		return result, context.Cause(ctx)
	}
	if err != nil {
		result.Notice = wanted.notice
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

// alive returns an error when the service has ended although nobody told it to.
func (n *node) alive() error {
	select {
	case <-n.service.exited():
		return errors.Join(errors.New("the service has ended"), n.service.failure())
	default:
		return nil
	}
}
