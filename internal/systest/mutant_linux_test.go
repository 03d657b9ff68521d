package systest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// mutant is the store without one of its fences.
type mutant struct {
	file string // under workqueue
	take []string
	give []string
}

// mutants are the store without some of its fences, by what each lacks.
type mutants struct {
	mutants []mutant
	in      string
	test    string
	says    string // what the test must say, so that it fails for the right reason
}

func allMutants() map[string]mutants {
	return map[string]mutants{
		"record without the state of the slice": {
			mutants: []mutant{
				{"internal/plane/block.go", []string{`return h.State == "claimed" || h.State == "sent"`}, []string{"return true"}},
				{"settle/settle.go", []string{"WHERE s.id = u.id AND s.state IN ('scheduled', 'claimed', 'sent')`"},
					[]string{"WHERE s.id = u.id`"}},
			},
			in: "internal/testing/modeltest", test: "TestSimulationAgainstAnOracle$", says: "is stale: false; it is live: false",
		},
		"claims without locks and without the condition in the update": {
			mutants: []mutant{
				{"dispatch/claim_load.go",
					[]string{
						"o.step = u.step FOR NO KEY UPDATE`", "stepsToLock + ` SKIP LOCKED) st`",
						"n.endpoint FOR NO KEY UPDATE`", "pacesToLock + ` SKIP LOCKED) p`",
					},
					[]string{"o.step = u.step`", "lockStep", "n.endpoint`", "lockPace"}},
				{"dispatch/claim_cut.go",
					[]string{
						" FOR NO KEY UPDATE OF b SKIP LOCKED) b", " FOR NO KEY UPDATE OF b`", "firstReadyWait + ` SKIP LOCKED`",
						" AND (b.ready & u.bits) = u.bits`",
					},
					[]string{") b", "`", "firstReadyWait", "`"}},
			},
			in: "internal/testing/modeltest", test: "TestEverythingAtOnce$", says: "invariant: I1",
		},
		"a cut that leaves its items ready": {
			mutants: []mutant{
				{"dispatch/claim_cut.go", []string{"SET ready = b.ready & ~u.bits"}, []string{"SET ready = b.ready"}},
			},
			in: "workqueue/dispatch", test: "TestClaimCutsEvenly$", says: "invariant: I1",
		},
		"a rerun that opens no generation": {
			mutants: []mutant{
				{"redo/withdraw.go", []string{"generation = generation + 1"}, []string{"generation = generation"}},
			},
			in: "internal/testing/modeltest", test: "TestSimulationAgainstAnOracle$", says: "generation",
		},
		"a sweep that leaves what dead nodes had claimed": {
			mutants: []mutant{{"settle/lost.go", []string{"s.state = 'claimed' AND NOT EXISTS ("},
				[]string{"false AND NOT EXISTS ("}}},
			in: "internal/testing/modeltest", test: "TestSimulationAgainstAnOracle$", says: "a sweep left",
		},
		"an unlock that forgets an item": {
			mutants: []mutant{{"internal/plane/unlock.go", []string{"And(touched).AndNot(p.Final())"},
				[]string{"And(touched).AndNot(p.Final()).AndNot(bitfield.Full(1))"}}},
			in: "internal/testing/modeltest", test: "TestSimulationAgainstAnOracle$", says: "long after all faults are over",
		},
	}
}

// Each fence that a mutant lacks is where it was.
func TestMutantsLackAFence(t *testing.T) {
	t.Parallel()
	for name, tc := range allMutants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			writeOverlay(t, tc.mutants)
		})
	}
}

// A checker that cannot fail proves nothing. Each mutant lacks a fence, and the test that is meant to see it does.
func TestMutantsAreCaught(t *testing.T) {
	t.Parallel()
	for name, tc := range allMutants() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			overlay := writeOverlay(t, tc.mutants)
			// A mutant need not be vetted, and no one debugs it: to link it without symbols takes half the time.
			cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-timeout=5m", "-vet=off", "-ldflags=-s -w",
				"-overlay="+overlay, "-run", "^"+tc.test, "./"+tc.in)
			cmd.Dir = filepath.Join("..", "..")
			cmd.Env = append(os.Environ(), testenv.GoFlags("-buildvcs=false"))
			out, err := cmd.CombinedOutput()
			testenv.Fails(t, err, "%s does not see the mutant:\n%.4000s", tc.test, out)
			testenv.Has(t, string(out), tc.says, "%s fails with", tc.test)
		})
	}
}

// writeOverlay writes the mutated files and says to the go command where they are.
func writeOverlay(t *testing.T, mutants []mutant) string {
	t.Helper()
	dir := t.TempDir()
	replace := map[string]string{}
	for _, m := range mutants {
		path := testenv.Must(filepath.Abs(filepath.Join("..", "..", "workqueue", filepath.FromSlash(m.file))))(t)
		source := testenv.Must(os.ReadFile(path))(t)
		text := string(source)
		for i, fence := range m.take {
			testenv.Has(t, text, fence, "%s: the mutant proves nothing", m.file)
			text = strings.ReplaceAll(text, fence, m.give[i])
		}
		replace[path] = filepath.Join(dir, strings.ReplaceAll(m.file, "/", "_"))
		testenv.NoError(t, os.WriteFile(replace[path], []byte(text), 0o600))
	}
	doc := testenv.Must(json.Marshal(map[string]any{"Replace": replace}))(t)
	overlay := filepath.Join(dir, "overlay.json")
	testenv.NoError(t, os.WriteFile(overlay, doc, 0o600))
	return overlay
}
