package conformance

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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

func jetStream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	return testenv.Must(jetstream.New(nc))(t)
}

func TestRunRefusesAServerInUse(t *testing.T) {
	t.Parallel()
	ns := testenv.NATS(t)
	nc := testenv.Conn(t, ns)
	js := jetStream(t, nc)
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
