package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

type runRerun struct {
	runArg
	Failed bool `xor:"which" help:"All items that failed."`
	chosen
	failedAt
	Step       string              `help:"Of this step; without it, what failed at any step." placeholder:"NAME"`
	Chunk      *workqueue.Adaptive `help:"Items in a request from now on, 1 to 8192, or auto." placeholder:"N|auto"`
	InFlight   *workqueue.Adaptive `help:"Requests out at once from now on, 1 to 10000, or auto." placeholder:"N|auto"`
	Endpoint   string              `help:"Where requests go from now on; those that are out stay where they are." placeholder:"NAME"`
	Canary     int                 `help:"Run a spread sample of so many items first, and hold the others back." placeholder:"N"`
	CanaryAuto bool                `help:"Let the others go when no more of the sample fails than --max-failed of the run allows."`
	Reason     string              `help:"Why, for the audit log." placeholder:"TEXT"`
	DryRun     bool                `help:"Change nothing; say how many items and requests it would be."`
	waitFlags
}

func (r *runRerun) Validate() error {
	switch {
	case !r.Failed && r.none():
		return errors.New("say which items: --failed, " + chooseOf)
	case r.Canary < 0:
		return fmt.Errorf("--canary is %d; it must be 1 or more", r.Canary)
	case r.CanaryAuto && r.Canary == 0:
		return errors.New("--canary-auto needs --canary N")
	}
	return cmp.Or(r.Check(r.DryRun), sizingWithin("--chunk", r.Chunk, bitfield.Size),
		sizingWithin("--in-flight", r.InFlight, workqueue.MaxInFlight))
}

// sizingWithin refuses a number that is given and not from 1 to most.
func sizingWithin(flag string, n *workqueue.Adaptive, most int) error {
	if n == nil || n.Auto {
		return nil
	}
	return cli.Within(flag, &n.Value, most)
}

func (r *runRerun) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	rerun := redoing[client.Rerun]{chosen: &r.chosen, dry: r.DryRun, add: addReruns, did: "were set going", each: true,
		items: func(again *client.Rerun) int64 { return again.Items },
		ask: func(ctx context.Context, keys []string, dry bool, options ...client.CallOption) (again client.Rerun, err error) {
			set, err := r.settings(keys, dry)
			if err != nil {
				return again, err
			}
			return cl.Rerun(ctx, r.Ref, set, options...)
		}}
	if r.Canary > 0 {
		rerun.once = "--canary"
	}
	again, err := rerun.do(ctx, term)
	if err != nil {
		return err
	}
	term.Warn(again.Warnings)
	return r.end(ctx, term, cl, again.Run, func() error {
		return rerun.tell(term, &again, func(again *client.Rerun) string { return rerunText(again, r.CanaryAuto) })
	})
}

func (r *runRerun) settings(keys []string, dry bool) (client.RerunSettings, error) {
	set := client.RerunSettings{Failed: r.Failed, FailedAt: r.FailedAt, Step: r.Step, Endpoint: r.Endpoint,
		Canary: r.Canary, CanaryAuto: r.CanaryAuto, DryRun: dry, Reason: r.Reason}
	if r.Chunk != nil {
		set.Chunk = client.Sizing(*r.Chunk)
	}
	if r.InFlight != nil {
		set.InFlight = client.Sizing(*r.InFlight)
	}
	return set, r.fill(&set, keys)
}

// rerunText says what was set going, or would be, and what comes next.
func rerunText(again *client.Rerun, canaryAuto bool) string {
	if again.DryRun {
		text := fmt.Sprintf("dry run: run %s would run %s again, as generation %d: %s over %s\n",
			again.Run, cli.Plural(again.Items, "item"), again.Generation, cli.Plural(again.Slices, "request"),
			cli.Plural(int64(again.Blocks), "block"))
		if again.Held > 0 {
			text += fmt.Sprintf("%s of them first, and %s held back until the canary has passed\n",
				cli.Count(again.Items-again.Held), cli.Count(again.Held))
		}
		return text + resetSteps(again.Steps) + firstKeys(again.Examples, again.Items) + "nothing was changed\n"
	}
	text := fmt.Sprintf("run %s runs %s again, as generation %d\n", again.Run, cli.Plural(again.Items, "item"),
		again.Generation)
	text += resetSteps(again.Steps)
	if again.Held > 0 {
		text += fmt.Sprintf("%s of them run first; %s are held back. ", cli.Count(again.Items-again.Held),
			cli.Count(again.Held))
		next := "When the first have ended:"
		if canaryAuto {
			next = "They follow by themselves, unless more of the first fail than --max-failed of the run allows; then:"
		}
		text += fmt.Sprintf("%s tranche run approve %s\n", next, again.Run)
	}
	return text
}

// addReruns is what two re-runs did, one after the other; the warnings are those of the second.
func addReruns(sum, one *client.Rerun) client.Rerun {
	both := *one
	both.Items, both.Slices, both.Blocks = sum.Items+one.Items, sum.Slices+one.Slices, sum.Blocks+one.Blocks
	both.Steps = addSteps(sum.Steps, one.Steps)
	both.Examples = sum.Examples
	return both
}
