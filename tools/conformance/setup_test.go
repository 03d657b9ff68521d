package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

const endpoint = "under-test"

func TestMain(m *testing.M) { testenv.Main(m) }

// inProcess is a service that is a function, with a connection of its own.
type inProcess struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // set before done is closed
}

func start(serve func(context.Context, *nats.Conn) error) starter {
	return func(url string) (service, error) {
		nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond),
			nats.Timeout(time.Minute))
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		p := &inProcess{cancel: cancel, done: make(chan struct{})}
		go func() {
			defer close(p.done)
			defer nc.Close()
			p.err = serve(ctx, nc)
		}()
		return p, nil
	}
}

func (p *inProcess) Terminate()              { p.cancel() }
func (p *inProcess) Stop(time.Duration) bool { p.cancel(); <-p.done; return true }
func (p *inProcess) Done() <-chan struct{}   { return p.done }
func (p *inProcess) failure() error          { return p.err }
func (p *inProcess) output() string          { return "" }

// suite runs the checks and returns what came of them.
func suite(t *testing.T, config Config) *Report {
	t.Helper()
	if config.Endpoint == "" {
		config.Endpoint = endpoint
	}
	config.lasting = patiently
	return testenv.Must(Run(t.Context(), config))(t)
}

// expect fails the test unless just these checks failed, and just those others were left out.
func expect(t *testing.T, report *Report, failed, leftOut []string) {
	t.Helper()
	var gotFailed, gotLeftOut []string
	var text strings.Builder
	for _, r := range report.Results {
		switch r.Outcome {
		case Failed:
			gotFailed = append(gotFailed, r.Check)
			fmt.Fprintf(&text, "\n%s: expected %s; got %s", r.Check, r.Expected, r.Got)
		case LeftOut:
			gotLeftOut = append(gotLeftOut, r.Check)
		case Passed:
		}
	}
	slices.Sort(failed)
	slices.Sort(leftOut)
	slices.Sort(gotFailed)
	slices.Sort(gotLeftOut)
	testenv.SameList(t, gotFailed, failed, "failed%s\nthe service wrote: %s", text.String(), report.Output)
	testenv.SameList(t, gotLeftOut, leftOut, "left out")
}

func needing(what need) []string {
	var names []string
	for _, c := range Checks() {
		if c.needs&what != 0 {
			names = append(names, c.Name)
		}
	}
	return names
}

func fast() []string {
	slow := []string{
		"zstd-bomb", "big", "too-large", "stored-first", "in-progress", "delivered-twice", "consumer", "streams-recreated",
		"stale-acks", "drain", "late",
	}
	return slices.DeleteFunc(Names(), func(name string) bool { return slices.Contains(slow, name) })
}
