package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

type runSet struct {
	runArg
	Step      string  `help:"Settings of this step, when there are several." placeholder:"NAME"`
	Priority  *int    `help:"Runs with a greater number go first." placeholder:"N"`
	MaxFailed *string `aliases:"threshold" help:"Failed items that pause the run: more than 500, or 1%; or none. Also --threshold." placeholder:"N|P%"`
	Reason    string  `help:"Why, for the audit log." placeholder:"TEXT"`
	workqueue.StepOverrides
}

func (r *runSet) Validate() error {
	if reflect.DeepEqual(*r, runSet{runArg: r.runArg, Step: r.Step, Reason: r.Reason}) {
		return errors.New("say what to set: --chunk, --in-flight, --rate, --priority, --max-failed and others")
	}
	return flagError((&gather.Overrides{Priority: r.Priority, StepOverrides: r.StepOverrides}).Validate())
}

func (r *runSet) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	changes := client.RunChanges{Step: r.Step, Priority: r.Priority, MaxFailed: r.MaxFailed, Reason: r.Reason}
	if err := alike(&r.StepOverrides, &changes); err != nil {
		return err
	}
	return cli.Say(term, setText)(cl.SetRun(ctx, r.Ref, changes, term.Keep()))
}

// setText says what became different, and from when on.
func setText(done *client.ChangedRun) string {
	if len(done.After) == 0 {
		return fmt.Sprintf("run %s has these settings already; nothing was changed", done.Run)
	}
	value := func(v any) string { return cmp.Or(fmt.Sprint(v), "none") }
	var t cli.Table
	for _, name := range slices.Sorted(maps.Keys(done.After)) {
		t.Row("  "+strings.ReplaceAll(name, "_", " "), value(done.Before[name])+" → "+value(done.After[name]))
	}
	text := fmt.Sprintf("run %s, step %s\n%s", done.Run, cli.Inert(done.Step), t.String()) +
		"requests that are sent from now on go by it; those that are out stay as they are"
	if done.Paused != "" {
		text += fmt.Sprintf("\nthe run stays paused %s\ngo on with: tranche run resume %s", cli.Inert(done.Paused), done.Run)
	}
	return text
}
