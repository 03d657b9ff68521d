package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"unicode"

	"github.com/alecthomas/kong"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

// planFlags say what a run does.
type planFlags struct {
	Plan     string            `arg:"" optional:"" help:"A plan file in YAML, or a plan on record: NAME or NAME@VERSION."`
	Endpoint string            `help:"Run this single endpoint instead of a plan." placeholder:"NAME"`
	Param    map[string]string `mapsep:"none" help:"A parameter of the run; may stand more than once." placeholder:"K=V"`
	Name     string            `help:"A name to find the run by." placeholder:"TEXT"`
}

type runStart struct {
	planFlags
	cli.KeyFlags
	IdempotencyKey string `help:"Starting the same again with the same key gives the run that is there; other content is refused." placeholder:"K"`
	OnDuplicate    string `enum:"error,skip,allow" default:"error" help:"A key that stands twice: error, skip or allow." placeholder:"WHAT"`
	Schema         string `help:"A JSON Schema, in a file, that the items must fit. See also: tranche plan infer." placeholder:"FILE"`
	DryRun         bool   `help:"Start nothing; read and check everything, and say what would be started."`
	waitFlags
	itemFlags
	runSettings
}

func (r *runStart) Validate() error {
	switch {
	case r.Plan == "" && r.Endpoint == "" && r.From == "":
		return errors.New("give a plan file, the name of a plan on record, or --endpoint NAME")
	case r.Plan != "" && r.Endpoint != "":
		return errors.New("give either a plan or --endpoint, not both")
	}
	_, err := r.overrides()
	return cmp.Or(r.Check(r.DryRun), r.validate(r.Format), err)
}

func (r *runStart) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	plan, settings, err := r.settings()
	if err != nil {
		return err
	}
	if r.DryRun {
		found, err := send(r, term, func(items io.Reader) (client.DryRun, error) {
			return cl.DryRun(ctx, settings, items, term.Keep())
		})
		term.Warn(found.Warnings)
		return cli.Say(term, dryRunText)(found, r.Explain(&plan, err))
	}
	started, err := send(r, term, func(items io.Reader) (client.Started, error) {
		return cl.Start(ctx, settings, items, term.Keep())
	})
	if err != nil {
		return r.Explain(&plan, err)
	}
	term.Warn(started.Warnings)
	return r.end(ctx, term, cl, started.Run, func() error { return cli.Say(term, startedText)(started, nil) })
}

// send has the run started, with the items if they come from here.
func send[Out any](r *runStart, term *cli.Console, ask func(items io.Reader) (Out, error)) (Out, error) {
	flag, name := r.file()
	if name == "" {
		return ask(http.NoBody)
	}
	return cli.Upload(term, flag, name, ask)
}

// settings reads the plan, when it is a file, and makes the settings of the run.
func (r *runStart) settings() (plan cli.TextFile, settings client.RunSettings, err error) {
	if cli.IsPlanFile(r.Plan) {
		if plan, err = cli.ReadPlan(r.Plan, nil); err != nil {
			return plan, settings, err
		}
	}
	settings = client.RunSettings{
		Endpoint: r.Endpoint, Plan: plan.Text, PlanName: plan.Name, Key: r.Key, Format: r.Format, Name: r.Name,
		Params: r.Param, IdempotencyKey: r.IdempotencyKey, OnDuplicate: r.OnDuplicate,
	}
	r.fill(&settings)
	if plan.Path == "" {
		settings.PlanRef = r.Plan
	}
	over, err := r.overrides()
	if err == nil && r.Schema != "" {
		over.Schema, err = readSchema(r.Schema)
	}
	return plan, settings, cmp.Or(err, alike(&over, &settings))
}

// readSchema reads the file of a schema.
func readSchema(name string) (json.RawMessage, error) {
	file, err := cli.ReadText("--schema", name, strings.NewReader(""), itemschema.MaxBytes)
	if err != nil {
		return nil, err
	}
	if _, err := itemschema.Compile([]byte(file.Text)); err != nil {
		return nil, cli.Usage(fmt.Sprintf("--schema %s: %v", name, err))
	}
	return json.RawMessage(file.Text), nil
}

// Explain says what is wrong with the plan, if that is why the server refused the run.
func (r *runStart) Explain(plan *cli.TextFile, err error) error {
	if plan.Path != "" {
		if bad, ok := errors.AsType[*strictyaml.Error](cli.Explain(plan, err, gather.Parse)); ok {
			return bad
		}
		return err // of the items, say
	}
	refused, ok := errors.AsType[*client.ProblemError](err)
	if !ok || r.Plan == "" {
		return err
	}
	name, _, _ := strings.Cut(r.Plan, "@")
	if refused.Status == http.StatusNotFound || gather.CheckName(name) != nil {
		return cli.Usage(fmt.Sprintf("%.200q is neither a file here nor a plan on record (%s); give the path of a YAML "+
			"file, or a name from: tranche plan list", r.Plan, strings.TrimSuffix(refused.Detail, "; see tranche plan list")))
	}
	return err
}

func startedText(s *client.Started) string {
	if s.Existing {
		return fmt.Sprintf("run %s is there already, by its idempotency key", s.Run)
	}
	text := fmt.Sprintf("run %s started: plan %s, %s", s.Run, planRefText(s.Plan, s.PlanVersion),
		cli.Plural(s.Items, "item"))
	if s.Skipped > 0 {
		text += fmt.Sprintf(" (%s skipped)", cli.Plural(s.Skipped, "duplicate"))
	}
	if s.Invalid > 0 {
		text += fmt.Sprintf(" (%s invalid, which have failed: tranche run errors %s)", cli.Count(s.Invalid), s.Run)
	}
	if s.Key != "" {
		text += ", keys from " + cli.Inert(s.Key)
	}
	return text
}

// planRefText is a plan as an argument names it.
func planRefText(name string, version int) string {
	if version > 0 {
		return fmt.Sprintf("%s@%d", cli.Inert(name), version)
	}
	return cli.Inert(name)
}

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
			return over, flagError(err)
		}
	}
	return over, flagError(over.Validate())
}

// flagError calls the setting that an error is about by its flag.
func flagError(err error) error {
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

// alike fills in of one struct what has the same name in the JSON of another.
func alike(from, into any) error {
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

func dryRunText(found *client.DryRun) string {
	if found.Existing != nil {
		return fmt.Sprintf("nothing would be started: run %s is there already, by its idempotency key", *found.Existing)
	}
	text := fmt.Sprintf("would start: plan %s, %s of %s, keys from %s\n", planRefText(found.Plan, found.PlanVersion),
		cli.Plural(found.Items, "item"), cli.Plural(found.Bytes, "byte"), cli.Inert(found.Key))
	if found.Skipped > 0 {
		text += cli.Plural(found.Skipped, "duplicate") + " would be skipped\n"
	}
	if found.Held > 0 {
		text += cli.Plural(found.Held, "item") + " would wait for the canary\n"
	}
	steps := cli.List[client.DryRunStep]{
		Columns: "STEP|ASKS|CHUNK>|IN FLIGHT>|REQUESTS>|WHO CAN>",
		Row: func(s *client.DryRunStep) []any {
			return []any{s.Name, s.Endpoint, sizeText(s.Chunk, s.ChunkAuto), sizeText(s.InFlight, s.InFlightAuto), s.Requests,
				s.Services}
		},
	}
	var first strings.Builder
	for _, row := range found.First[:min(len(found.First), 3)] {
		fmt.Fprintf(&first, "item %s: %s\n", cli.Inert(cli.Short(row.Key, 40)),
			cli.Inert(cli.Short(string(row.Payload), 100)))
	}
	return text + steps.Text(found.Steps, 0) + first.String() + "nothing was started"
}

// sizeText is a size, marked where nodes find it.
func sizeText(n int, auto bool) string {
	if auto {
		return fmt.Sprintf("auto (%d)", n)
	}
	return fmt.Sprint(n)
}
