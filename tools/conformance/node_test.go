package conformance

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testenv"
)

// TestNodeServicePasses checks a service on the package for TypeScript.
func TestNodeServicePasses(t *testing.T) {
	t.Parallel()
	command := []string{"node", testenv.NodeService(t, filepath.Join("..", "..", "examples", "node"))}
	t.Run("conformance endpoint", func(t *testing.T) {
		t.Parallel()
		expect(t, suite(t, Config{Endpoint: "node-conformance", Command: command}), nil, nil)
	})
	t.Run("any endpoint", func(t *testing.T) {
		t.Parallel()
		report := suite(t, Config{Endpoint: "node-interest", Command: command, Items: []json.RawMessage{
			[]byte(`{"id":"A","balance":"12.50"}`), []byte(`{"id":"B","balance":"-1"}`), []byte(`null`),
		}})
		expect(t, report, nil, needing(needContract))
	})
}

// userProgram is what a user of the package writes; tsc has to be content with it, and node to run it.
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
		if !strings.Contains(listed, "package/"+needed+"\n") {
			t.Errorf("the package lacks %s:\n%s", needed, listed)
		}
	}
	project := testenv.NodeProject(t, root)
	if err := os.WriteFile(filepath.Join(project, "user.ts"), []byte(userProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	modules := filepath.Join(built.Sources, "node_modules")
	output(t, project, "node", filepath.Join(modules, "typescript", "bin", "tsc"), "--strict",
		"--noUncheckedIndexedAccess", "--target", "es2022", "--module", "node16",
		"--typeRoots", filepath.Join(modules, "@types"), "--types", "node", "user.ts")
	if said := output(t, project, "node", "user.js"); said != "all is well\n" {
		t.Errorf("the user's program says %q", said)
	}
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
	if err != nil {
		t.Fatalf("%s: %v\n%s", run, err, said)
	}
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

func TestEachCheckHasALevel(t *testing.T) {
	t.Parallel()
	for _, c := range Checks() {
		if c.Level == "" || c.Notice == "" {
			t.Errorf("levels.go does not have %s", c.Name)
		}
	}
	if n := len(demands()); n != len(Checks()) {
		t.Errorf("levels.go has %d checks of %d", n, len(Checks()))
	}
}
