package runs

import (
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

// Set is tranche run set.
type Set struct {
	Ref       string  `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	Step      string  `help:"Settings of this step, when there are several." placeholder:"NAME"`
	Priority  *int    `help:"Runs with a greater number go first." placeholder:"N"`
	MaxFailed *string `aliases:"threshold" help:"Failed items that pause the run: more than 500, or 1%; or none. Also --threshold." placeholder:"N|P%"`
	Reason    string  `help:"Why, for the audit log." placeholder:"TEXT"`
	workqueue.StepOverrides
}

// Validate is called by kong.
func (r *Set) Validate() error {
	if reflect.DeepEqual(*r, Set{Ref: r.Ref, Step: r.Step, Reason: r.Reason}) {
		return errors.New("say what to set: --chunk, --in-flight, --rate, --priority, --max-failed and others")
	}
	return FlagError((&gather.Overrides{Priority: r.Priority, StepOverrides: r.StepOverrides}).Validate())
}

// Run changes settings of a run.
func (r *Set) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	changes := client.RunChanges{Step: r.Step, Priority: r.Priority, MaxFailed: r.MaxFailed, Reason: r.Reason}
	if err := Alike(&r.StepOverrides, &changes); err != nil {
		return err
	}
	done, err := cl.SetRun(ctx, r.Ref, changes, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("%s", setText(&done))
}

// setText says what became different, and from when on.
func setText(done *client.ChangedRun) string {
	if len(done.After) == 0 {
		return fmt.Sprintf("run %s has these settings already; nothing was changed\n", done.Run)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "run %s, step %s\n", done.Run, cli.Inert(done.Step))
	t := cli.Table{}
	for _, name := range slices.Sorted(maps.Keys(done.After)) {
		t.Row("  "+strings.ReplaceAll(name, "_", " "), settingText(done.Before[name])+" → "+settingText(done.After[name]))
	}
	text.WriteString(t.String())
	text.WriteString("requests that are sent from now on go by it; those that are out stay as they are\n")
	if done.Paused != "" {
		fmt.Fprintf(&text, "the run stays paused %s\ngo on with: tranche run resume %s\n", cli.Inert(done.Paused), done.Run)
	}
	return text.String()
}

func settingText(v any) string {
	text := fmt.Sprint(v)
	if text == "" {
		return "none"
	}
	return cli.Inert(text)
}
