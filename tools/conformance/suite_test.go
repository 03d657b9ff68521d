package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// TestNodeServicePasses checks a service on the package for TypeScript.
func TestNodeServicePasses(t *testing.T) {
	t.Parallel()
	command := []string{"node", testenv.NodeService(t, filepath.Join("..", "..", "examples", "node"))}
	t.Run("conformance endpoint", func(t *testing.T) {
		t.Parallel()
		report := suite(t, Config{Endpoint: "node-conformance", Command: command})
		expect(t, report, nil, nil)
	})
	t.Run("any endpoint", func(t *testing.T) {
		t.Parallel()
		report := suite(t, Config{Endpoint: "node-interest", Command: command, Items: []json.RawMessage{
			[]byte(`{"id":"A","balance":"12.50"}`), []byte(`{"id":"B","balance":"-1"}`), []byte(`null`),
		}})
		expect(t, report, nil, needing(needContract))
	})
}

// userProgram is what a user of the package writes; tsc must be content with it, and node to run it.
const userProgram = `import assert from 'node:assert/strict';
import { type Chunk, Failure, Service, call, handleEach, handleFlow, handleList, target } from 'tranche-endpoints';
import { Kit } from 'tranche-endpoints/testing';

interface Account { cents: number }
interface Interest { cents: number }

function yearEnd(chunk: Chunk<Account, Interest>): void {
  for (const item of chunk.items) {
    if (item.in.cents < 0) item.fail('overdrawn', item.key);
    else item.reply({ cents: item.in.cents * 0.015 });
  }
}

const interest = target<Account, Interest>('interest');

function add(service: Service): void {
  handleList(service, 'interest', yearEnd);
  handleEach<Account, number>(service, 'double', async ({ cents }, { key }) => {
    if (key === 'X') throw new Failure('x', 'no');
    return cents * 2;
  });
  handleFlow<Account, number, Account>(service, 'flow', [
    (stage) => { for (const item of stage.items) { item.state = item.in; interest.ask(item, item.in); } },
    (stage) => { for (const item of stage.items) item.reply(item.state!.cents + (interest.answer(item)?.cents ?? 0)); },
  ]);
  // @ts-expect-error a result of another type
  handleList<Account, Interest>(service, 'wrong', (chunk) => { chunk.items[0]!.reply('text'); });
}

async function main(): Promise<void> {
  const kit = new Kit();
  add(kit.service);
  const reply = await kit.send('flow', [{ key: 'A', in: { cents: 200 } }]);
  assert.equal(reply.result<number>('A'), 203);
  assert.equal(await call<number>(kit.service, 'double', 'A', { cents: 2 }), 4);
  console.log('all is well');
}

void main();
`

// TestNodePackage packs the package, installs it into an empty project, and uses it as its user would.
func TestNodePackage(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	lock, err := os.ReadFile(filepath.Join(root, "endpoints", "typescript", "package-lock.json"))
	if err != nil || strings.Contains(string(lock), "resolved") || strings.Contains(string(lock), "://") {
		t.Errorf("package-lock.json names a registry (%v)", err)
	}
	built := testenv.BuildNodePackage(t, root)
	listed := output(t, "", "tar", "-tf", built.Tarball)
	for name := range strings.FieldsSeq(listed) {
		name = strings.TrimPrefix(name, "package/")
		if !strings.HasPrefix(name, "lib/") && name != "package.json" && name != "README.md" && name != "LICENSE" {
			t.Errorf("the package has %s", name)
		}
	}
	for _, needed := range []string{"lib/index.js", "lib/index.d.ts", "lib/testing.d.ts", "README.md", "LICENSE"} {
		testenv.Has(t, listed, "package/"+needed+"\n", "the package lacks %s", needed)
	}
	project := testenv.NodeProject(t, root)
	testenv.NoError(t, os.WriteFile(filepath.Join(project, "user.ts"), []byte(userProgram), 0o600))
	modules := filepath.Join(built.Sources, "node_modules")
	output(t, project, "node", filepath.Join(modules, "typescript", "bin", "tsc"), "--strict",
		"--noUncheckedIndexedAccess", "--target", "es2022", "--module", "node16",
		"--typeRoots", filepath.Join(modules, "@types"), "--types", "node", "user.ts")
	testenv.Same(t, output(t, project, "node", "user.js"), "all is well\n", "the user's program says")

	// The example of the README, with the settings of a new project.
	readme := string(testenv.Must(os.ReadFile(filepath.Join(built.Sources, "README.md")))(t))
	_, example, _ := strings.Cut(readme, "\n`service.mts`")
	_, example, _ = strings.Cut(example, "\n```ts\n")
	example, _, _ = strings.Cut(example, "\n```\n")
	project = testenv.NodeProject(t, root)
	testenv.NoError(t, os.WriteFile(filepath.Join(project, "service.mts"), []byte(example), 0o600))
	tsc := filepath.Join(modules, "typescript", "bin", "tsc")
	output(t, project, "node", tsc, "--init", "--types", "node", "--typeRoots", filepath.Join(modules, "@types"))
	output(t, project, "node", tsc)
	testenv.Must(os.Stat(filepath.Join(project, "service.mjs")))(t)
}

// The package's own tests, of its kit and by its kit.
func TestNodePackageItself(t *testing.T) {
	t.Parallel()
	built := testenv.BuildNodePackage(t, filepath.Join("..", ".."))
	output(t, built.Sources, "node", "--test", "test/kit.test.mjs")
}

// output runs a program, and ends the test when it fails.
func output(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	run := exec.CommandContext(t.Context(), name, args...)
	run.Dir = dir
	said, err := run.CombinedOutput()
	testenv.MustSame(t, err, nil, "%s\n%s", run, said)
	return string(said)
}

// The smallest service of docs/protocol.md leaves out what it says, and does all that it must.
func TestTheSmallestServiceDoesWhatItMust(t *testing.T) {
	t.Parallel()
	command := []string{"python3", "-u", filepath.Join("..", "..", "examples", "python", "service.py")}
	report := suite(t, Config{Endpoint: "python-interest", Command: command, Items: []json.RawMessage{
		[]byte(`{"balance":"12.50"}`), []byte(`{"balance":-1}`), []byte(`null`),
	}})
	for _, r := range report.Results {
		if r.Outcome == Failed && (r.Level == Must || r.Notice == "") {
			t.Errorf("%s: expected %s, got %s", r.Check, r.Expected, r.Got)
		}
	}
	if report.Wanting(Must) != 0 || report.Wanting(Should) == 0 || report.Count(Passed) < 15 {
		t.Errorf("%d must, %d should, %d passed", report.Wanting(Must), report.Wanting(Should), report.Count(Passed))
	}
}

func TestRunRefusesAServerInUse(t *testing.T) {
	t.Parallel()
	ns := testenv.NATS(t)
	nc := testenv.Conn(t, ns)
	js := testenv.Must(jetstream.New(nc))(t)
	n := &node{config: Config{Endpoint: endpoint, lasting: patiently}, nc: nc, js: js}
	config := Config{Endpoint: endpoint, URL: ns.URL()}
	refused := func(why string) {
		t.Helper()
		_, err := Run(t.Context(), config)
		testenv.Says(t, err, why, "the error")
	}
	refused("there is no stream")
	testenv.NoError(t, n.makeStreams(t.Context()))
	n.ask(t.Context(), orders(order{"do": "hello"}))
	refused("TRANCHE_WORK holds 1 messages")
	testenv.NoError(t, n.clean(t.Context()))
	recorder := testenv.Must(stream.EnsureRecorder(t.Context(), js))(t)
	reading := testenv.Must(recorder.Consume(func(jetstream.Msg) {}))(t)
	defer reading.Stop()
	n.poll(t.Context(), patience, func() bool { return testenv.Must(recorder.Info(t.Context()))(t).NumWaiting > 0 },
		"the recorder asked for replies", "it was not")
	refused("a node reads the replies")
}

const (
	// slower is how many times longer than people tests wait: the machine has much else to do.
	slower = 3
	tick   = 50 * time.Millisecond
)

// patiently returns a context that ends when this process has run for longer than a limit. While it was stalled, the
// service and the server did so too, most likely: such a time counts as no more than two ticks. It has a deadline far
// beyond that, since questions to JetStream have one of their own without.
func patiently(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	limit *= slower
	ctx, cancel := context.WithTimeout(ctx, limit+5*time.Minute)
	go func() {
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for left, last := limit, time.Now(); left > 0; {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			now := time.Now()
			left, last = left-min(now.Sub(last), 2*tick), now
		}
		cancel()
	}()
	return ctx, cancel
}

func TestAServiceWithoutTheSDKPasses(t *testing.T) {
	t.Parallel()
	expect(t, suite(t, Config{service: broken("")}), nil, nil)
}

// TestFlawsAreFound breaks one thing at a time: the checks that are meant for it fail, and no others.
func TestFlawsAreFound(t *testing.T) {
	t.Parallel()
	meant := map[string][]string{
		"acknowledges before it replies":                {"stored-first"},
		"does not wait for JetStream to have the reply": {"stored-first"},
		"never acknowledges":                            {"acknowledged", "deliveries", "lane-true"},
		"leaves out Tranche-Final":                      {"final"},
		"counts items and not slots":                    {"missing"},
		"counts the slots of the last message only":     {"big", "partial"},
		"derives message ids from the slice":            {"message-ids"},
		"forgets a header":                              {"headers"},
		"drops the trace":                               {"traceparent"},
		"writes a member twice":                         {"readable"},
		"drops other versions":                          {"version"},
		"hands versions back at once":                   {"version"},
		"keeps bad headers":                             {"bad-headers", "reply-to-refused"},
		"drops unreadable bodies without a word":        {"bad-body", "zstd-bomb"},
		"takes a redelivery for done":                   {"deliveries", "redelivered"},
		"tries indefinitely":                            {"deliveries"},
		"ignores Tranche-Reply-To":                      {"reply-to-call", "reply-to-refused", "reply-to-stage"},
		"replies on any subject":                        {"reply-to-refused"},
		"refuses unknown members":                       {"unknown"},
		"takes parameters in front only":                {"params"},
		"numbers the items itself":                      {"ordinals"},
		"knows ASCII only":                              {"keys"},
		"does not decompress":                           {"zstd", "zstd-frames"},
		"reads one frame":                               {"zstd-frames"},
		"decompresses without end":                      {"zstd-bomb"},
		"is not listed":                                 {"discovery", "lane"},
		"takes null for no result":                      {"results", "parts"},
		"ignores references":                            {"part-refs"},
		"never says retry":                              {"error-slots"},
		"says failures in the body only":                {"fail-chunk"},
		"lets the last answer count":                    {"twice"},
		"sends both answers":                            {"twice"},
		"sends everything at the end":                   {"partial"},
		"writes the base64 of URLs":                     {"binary"},
		"never splits":                                  {"big"},
		"has its own code for what is too large":        {"pieces", "too-large"},
		"sends pieces of which the hash is another one": {"pieces"},
		"sends no heartbeats":                           {"in-progress"},
		"does not look for the streams again":           {"streams-recreated", "lane", "lane-true"},
		"goes by sequences alone":                       {"stale-acks"},
		"says in words how long it took":                {"took"},
		"ends in the middle of work":                    {"drain"},
		"has no lane for calls":                         {"lane"},
		"says that it has a lane and reads none":        {"lane", "lane-true"},
		"has calls wait behind chunks":                  {"lane"},
		"does not listen after the end of a pull":       {"late"},
	}
	for f, report := range reports(t, meant) {
		t.Run(f, func(t *testing.T) {
			t.Parallel()
			expect(t, report, meant[f], nil)
		})
	}
}

// atOnce is how many suites run side by side. They wait more than they work.
const atOnce = 5

// reports runs the suite against each flaw. The slow checks run only where they are meant: what they say of a good
// service, other tests show.
func reports(t *testing.T, meant map[string][]string) map[string]*Report {
	t.Helper()
	var mu sync.Mutex
	found := map[string]*Report{}
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(atOnce)
	for f, want := range meant {
		group.Go(func() error {
			report, err := Run(ctx, Config{Endpoint: endpoint, service: broken(f), lasting: patiently,
				Only: slices.Concat(fast(), want)})
			mu.Lock()
			defer mu.Unlock()
			found[f] = report
			return err
		})
	}
	testenv.NoError(t, group.Wait())
	return found
}

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
