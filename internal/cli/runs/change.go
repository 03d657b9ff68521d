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
	Ref        string              `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	Failed     bool                `xor:"which" help:"All items that failed."`
	Key        []string            `xor:"which" sep:"none" help:"This item, whether it failed or not; may stand more than once." placeholder:"K"`
	Keys       string              `xor:"which" help:"The items of a file with a key a line; - is standard input." placeholder:"FILE"`
	Code       []string            `xor:"which" sep:"none" help:"Items that failed with this code; may stand more than once." placeholder:"C"`
	Group      []string            `xor:"which" sep:"none" help:"Items that failed with a message of this group of tranche run errors; may stand more than once." placeholder:"G"`
	Step       string              `help:"Of this step; without it, what failed at any step." placeholder:"NAME"`
	Chunk      *workqueue.Adaptive `help:"Items in a request from now on, 1 to 8192, or auto." placeholder:"N|auto"`
	InFlight   *workqueue.Adaptive `help:"Requests out at once from now on, 1 to 10000, or auto." placeholder:"N|auto"`
	Endpoint   string              `help:"Where requests go from now on; those that are out stay where they are." placeholder:"NAME"`
	Canary     int                 `help:"Run a spread sample of so many items first, and hold the others back." placeholder:"N"`
	CanaryAuto bool                `help:"Let the others go when no more of the sample fails than --max-failed of the run allows."`
	Reason     string              `help:"Why, for the audit log." placeholder:"TEXT"`
	DryRun     bool                `help:"Change nothing; say how many items and requests it would be."`
	Wait       bool                `help:"Watch until the run ends; exit 3 when items failed."`
}

// Validate is called by kong.
func (r *runRerun) Validate() error {
	switch {
	case !r.Failed && len(r.Key) == 0 && r.Keys == "" && len(r.Code) == 0 && len(r.Group) == 0:
		return errors.New("say which items: --failed, --key K or --code C, --group G, --keys FILE")
	case r.DryRun && r.Wait:
		return errors.New("give either --dry-run or --wait: a dry run sets nothing going that could be waited for")
	case r.Canary < 0:
		return fmt.Errorf("--canary is %d; it must be 1 or more", r.Canary)
	case r.CanaryAuto && r.Canary == 0:
		return errors.New("--canary-auto needs --canary N")
	}
	return cmp.Or(sizingWithin("--chunk", r.Chunk, bitfield.Size),
		sizingWithin("--in-flight", r.InFlight, workqueue.MaxInFlight))
}

// sizingWithin refuses a number that is given and not from 1 to most.
func sizingWithin(flag string, n *workqueue.Adaptive, most int) error {
	if n == nil || n.Auto {
		return nil
	}
	return cli.Within(flag, &n.Value, most)
}

// Run sets items going again.
func (r *runRerun) Run(ctx context.Context, term *cli.Console) error {
	cl, err := term.Client()
	if err != nil {
		return err
	}
	var again client.Rerun
	if r.Keys == "" {
		again, err = cl.Rerun(ctx, r.Ref, r.settings(), term.Keep())
	} else {
		again, err = r.byFile(ctx, term, cl)
	}
	if err != nil {
		return err
	}
	for _, w := range again.Warnings {
		term.Note("warning: %s", w)
	}
	if term.JSON && !r.Wait && r.Keys == "" {
		return term.Sent()
	}
	if term.JSON && !r.Wait {
		return term.Document(again) // the sum of several
	}
	if !term.JSON {
		if err := term.Printf("%s", rerunText(&again, r.CanaryAuto)); err != nil {
			return err
		}
	}
	if !r.Wait {
		return nil
	}
	return watch(ctx, term, cl, again.Run)
}

func (r *runRerun) settings() client.RerunSettings {
	set := client.RerunSettings{
		Failed: r.Failed, Keys: r.Key, Codes: r.Code, Groups: r.Group, Step: r.Step, Endpoint: r.Endpoint,
		Canary: r.Canary, CanaryAuto: r.CanaryAuto, DryRun: r.DryRun, Reason: r.Reason,
	}
	if r.Chunk != nil {
		set.Chunk = client.Sizing(*r.Chunk)
	}
	if r.InFlight != nil {
		set.InFlight = client.Sizing(*r.InFlight)
	}
	return set
}

// rerunText says what was set going, or would be, and what comes next.
func rerunText(again *client.Rerun, canaryAuto bool) string {
	if again.DryRun {
		text := fmt.Sprintf("dry run: run %s would run %s items again, as generation %d: %s requests over %s blocks\n",
			again.Run, cli.Count(again.Items), again.Generation, cli.Count(again.Slices), cli.Count(int64(again.Blocks)))
		if again.Held > 0 {
			text += fmt.Sprintf("%s of them first, and %s held back until the canary has passed\n",
				cli.Count(again.Items-again.Held), cli.Count(again.Held))
		}
		return text + resetSteps(again.Steps) + "nothing was changed\n"
	}
	text := fmt.Sprintf("run %s runs %s items again, as generation %d\n", again.Run, cli.Count(again.Items),
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

// byFile runs the items of a key file again. A file with more keys than a request may have goes in several requests, a
// generation each; all of them are tried before the first one changes anything.
func (r *runRerun) byFile(ctx context.Context, term *cli.Console, cl *client.Client) (client.Rerun, error) {
	parts, err := cli.ReadKeys(r.Keys, term.In)
	if err != nil {
		return client.Rerun{}, err
	}
	if len(parts) > 1 && r.Canary > 0 {
		return client.Rerun{}, cli.Usage(fmt.Sprintf("--keys %s has more than %s keys, which go in several requests, and "+
			"--canary is for one: run a smaller file first instead", r.Keys, cli.Count(cli.MaxKeysOfRequest)))
	}
	if len(parts) > 1 && !r.DryRun {
		if _, err := r.each(ctx, cl, parts, true); err != nil {
			return client.Rerun{}, err
		}
		term.Note("%s has keys for %d requests; each is a generation", r.Keys, len(parts))
	}
	return r.each(ctx, cl, parts, r.DryRun)
}

// each sends the parts and adds up what they did; the warnings are those of the last.
func (r *runRerun) each(ctx context.Context, cl *client.Client, parts [][]string, dry bool) (client.Rerun, error) {
	var sum client.Rerun
	for i, keys := range parts {
		set := r.settings()
		set.Keys, set.DryRun = keys, dry
		one, err := cl.Rerun(ctx, r.Ref, set)
		if err != nil && i > 0 && !dry {
			return sum, fmt.Errorf("request %d of %d, after %s items were set going: %w", i+1, len(parts), cli.Count(sum.Items),
				err)
		}
		if err != nil {
			return sum, err
		}
		one.Items, one.Slices, one.Blocks = one.Items+sum.Items, one.Slices+sum.Slices, one.Blocks+sum.Blocks
		one.Steps = addSteps(sum.Steps, one.Steps)
		sum = one
	}
	return sum, nil
}
