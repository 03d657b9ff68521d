package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"unicode"

	"github.com/alecthomas/kong"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

// runSettings are the settings of a plan that one run may have otherwise. What is not given stays as the plan has it.
type runSettings struct {
	gather.Overrides

	Set []string `sep:"none" help:"A setting of a single step, by its name in plans: compose.chunk=50; may stand more than once. The others are for every step." placeholder:"STEP.SETTING=VALUE"`
}

// overrides checks the flags. Errors name the flag.
func (r *runSettings) overrides() (gather.Overrides, error) {
	over := r.Overrides
	for _, text := range r.Set {
		if err := over.SetStep(text); err != nil {
			return over, FlagError(err)
		}
	}
	return over, FlagError(over.Validate())
}

// FlagError calls the setting that an error is about by its flag.
func FlagError(err error) error {
	field, ok := errors.AsType[*gather.FieldError](err)
	if !ok {
		return err
	}
	if step, of := strings.CutPrefix(field.Field, "steps."); of {
		return fmt.Errorf("--set %s: %s", step, field.Problem)
	}
	flag, ok := maps.Collect(workqueue.Flags())[field.Field]
	if !ok {
		flag = "--" + strings.ReplaceAll(field.Field, "_", "-")
	}
	return fmt.Errorf("%s: %s", flag, field.Problem)
}

// layOver puts what flags say otherwise than the plan into the settings of a run.
func layOver(s *client.RunSettings, over *gather.Overrides) error { return Alike(over, s) }

// openSettings are the same settings for a run that gets its items later.
func openSettings(s *client.RunSettings, sealWithin, onOverdue string) (client.OpenSettings, error) {
	open := client.OpenSettings{SealWithin: sealWithin, OnOverdue: onOverdue}
	return open, Alike(s, &open)
}

// Alike fills in of one struct what has the same name in the JSON of another.
func Alike(from, into any) error {
	text, err := json.Marshal(from)
	if err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	return nil
}

// SayHelp gives flags without help that of their settings, which the API has as well.
func SayHelp(app *kong.Application) error {
	return kong.Visit(app, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok && flag.Help == "" {
			doc := []rune(flag.Tag.Get("doc"))
			if len(doc) > 0 {
				flag.Help = string(unicode.ToUpper(doc[0])) + string(doc[1:])
				if flag.IsSlice() {
					flag.Help += "; may stand more than once"
				}
				flag.Help += "."
			}
		}
		return next(nil)
	})
}
