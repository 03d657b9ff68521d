package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue/database"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
)

// What operators see of a run, its errors and what was done to it. Keys and messages are hostile; want finds out.
func TestReportsByHand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mended := make(chan struct{})
	b.echo(mended)
	const evil = "id,name\n1,ann\n\x1b[31m2,bad\n3,bad\n"
	start := []string{"run", "start", "--endpoint", "echo", "--items", "-", "--wait", "--name"}
	b.want(b.pipe(evil, append(start, "first")...), 3, "2 failed")
	b.want(b.tranche("run", "report", "first"), 0, "items", "NO_SUCH", "nobody is", "ready", "echo@1.0.0",
		"sha256 of items",
		"completed", "SLOWEST SERVICES", "half took")
	errs := b.tranche("run", "errors", "first")
	b.want(errs, 0, `\x1b[31m2`, `\x1b[31mcalled`, "--group", "--failed", "by echo@1.0.0", "step echo")
	group, _, _ := strings.Cut(errs.out, " ")
	if !strings.Contains(errs.out, "--group "+group) || len(group) != 8 {
		t.Errorf("the group %q cannot be run again by:\n%s", group, errs.out)
	}

	close(mended)
	b.want(b.pipe(evil+"4,cy\n", append(start, "second")...), 0, "4 of 4 items done")
	b.want(b.tranche("run", "report", "second", "--against", "first"), 0, "newly fixed", `\x1b[31m2`, "only here",
		"failed NO_SUCH → done", "list of items: different", "--list")
	listed := b.tranche("run", "report", "second", "--against", "first", "--list", "newly_fixed", "--list", "only_here")
	b.want(listed, 0, `\x1b[31m2`+"\tnewly_fixed\tfailed NO_SUCH\tdone\n", "4\tonly_here\t-\tdone\n")
	if n := strings.Count(listed.out, "\n"); n != 3 {
		t.Errorf("listed %d keys; want 3:\n%s", n, listed.out)
	}
	b.want(b.tranche("run", "rerun", "first", "--group", group, "--wait"), 0, "2 items again", "3 of 3 items done")
	b.want(b.tranche("run", "report", "first", "--no-digests"), 0, "GENERATION", "\n2 ")

	for _, args := range [][]string{
		{"run", "report", "first"}, {"run", "report", "second", "--against", "first"}, {"audit"},
	} {
		if r := b.tranche(append(args, "--json")...); r.code != 0 || !json.Valid([]byte(r.out)) {
			t.Errorf("%v: not one JSON document: %d %s%s", args, r.code, r.out, r.err)
		}
	}
	b.want(b.tranche("run", "report", "first", "--list", "changed"), 2, "--against")
	b.want(b.tranche("run", "report", "second", "--against", "first", "--list", "odd"), 1, "use one of newly_failing")
	b.want(b.tranche("run", "report", "nope"), 1, "tranche run list")
}

func TestTheAuditLogByHand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(b.tranche("audit"), 0, "nothing of this kind was done")
	store := database.New(testenv.Connect(t, b.database))
	for i := range 3 {
		set := pacestore.EndpointChange{Endpoint: "mail", Concurrency: new(i + 1)}
		if _, err := pacestore.New(store).ChangeEndpoint(t.Context(), set, "ann\x1b[31m"); err != nil {
			t.Fatal(err)
		}
	}
	b.want(b.tranche("audit"), 0, `ann\x1b[31m`, "endpoint_set", "mail", "concurrency 1 → 2", "concurrency 2 → 3")
	b.want(b.tranche("audit", "--limit", "2"), 0, "go on with --before 2")
	b.want(b.tranche("audit", "--before", "2"), 0, "mail")
	b.want(b.tranche("audit", "--since", "1h", "--action", "endpoint_set"), 0, "mail")
	b.want(b.tranche("audit", "--since", "2100-01-01"), 0, "nothing of this kind")
	b.want(b.tranche("audit", "--actor", "bob"), 0, "nothing of this kind")
	b.want(b.tranche("audit", "--run", "nope"), 1, "tranche run list")
	b.want(b.tranche("audit", "--since", "whenever"), 2, "is no time")
	b.want(b.tranche("audit", "--limit", "0"), 2, "--limit")
}
