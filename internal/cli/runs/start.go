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

// Start is tranche run start.
type Start struct {
	Plan           string            `arg:"" optional:"" help:"A plan file in YAML, or a plan on record: NAME or NAME@VERSION."`
	Endpoint       string            `help:"Run this single endpoint instead of a plan." placeholder:"NAME"`
	Key            string            `aliases:"key-column" help:"The column or field with the key of an item. Default: key, then id, then the first column." placeholder:"COLUMN"`
	Format         string            `enum:",csv,ndjson,parquet" default:"" help:"csv, ndjson or parquet; recognised when absent." placeholder:"FORMAT"`
	Param          map[string]string `mapsep:"none" help:"A parameter of the run; may stand more than once." placeholder:"K=V"`
	Name           string            `help:"A name to find the run by." placeholder:"TEXT"`
	IdempotencyKey string            `help:"Starting the same again with the same key gives the run that is there; other content is refused." placeholder:"K"`
	OnDuplicate    string            `enum:"error,skip,allow" default:"error" help:"A key that stands twice: error, skip or allow." placeholder:"WHAT"`
	Schema         string            `help:"A JSON Schema, in a file, that the items must fit. See also: tranche plan infer." placeholder:"FILE"`
	DryRun         bool              `help:"Start nothing; read and check everything, and say what would be started."`
	WaitFlags
	itemFlags
	runSettings
}

// Validate is called by kong.
func (r *Start) Validate() error {
	switch {
	case r.Plan == "" && r.Endpoint == "" && r.From == "":
		return errors.New("give a plan file, the name of a plan on record, or --endpoint NAME")
	case r.Plan != "" && r.Endpoint != "":
		return errors.New("give either a plan or --endpoint, not both")
	}
	if err := r.Check(r.DryRun); err != nil {
		return err
	}
	if err := r.validate(r.Format); err != nil {
		return err
	}
	_, err := r.overrides()
	return err
}

// Run starts a run.
func (r *Start) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	plan, settings, err := r.settings()
	if err != nil {
		return err
	}
	if r.DryRun {
		return r.Explain(&plan, r.try(ctx, term, cl, settings))
	}
	started, err := send(ctx, r, term, settings, cl.Start)
	if err != nil {
		return r.Explain(&plan, err)
	}
	for _, w := range started.Warnings {
		term.Note("warning: %s", w)
	}
	if !r.Wait {
		return r.report(term, started)
	}
	if !term.JSON {
		if err := r.report(term, started); err != nil {
			return err
		}
	}
	return r.Follow(ctx, term, cl, started.Run)
}

// send starts the run, or tries to, with the items if they come from here.
func send[Out any](
	ctx context.Context, r *Start, term *cli.Console, settings client.RunSettings,
	ask func(context.Context, client.RunSettings, io.Reader, ...client.CallOption) (Out, error),
) (Out, error) {
	if r.file() == "" {
		return ask(ctx, settings, http.NoBody, term.Keep())
	}
	items, size, err := cli.OpenItems(r.given(), r.file(), term.In)
	if err != nil {
		return *new(Out), err
	}
	defer func() { _ = items.Close() }()
	upload := &cli.Upload{From: items, Size: size, Term: term, Live: cli.IsTerminal(term.Err)}
	answer, err := ask(ctx, settings, upload, term.Keep())
	upload.End()
	if upload.Err != nil {
		return answer, fmt.Errorf("read %s %s: %w", r.given(), r.file(), upload.Err)
	}
	return answer, err
}

// settings reads the plan, when it is a file, and makes the settings of the run.
func (r *Start) settings() (plan cli.TextFile, settings client.RunSettings, err error) {
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
	return plan, settings, cmp.Or(err, layOver(&settings, &over))
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
func (r *Start) Explain(plan *cli.TextFile, err error) error {
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

func (r *Start) report(term *cli.Console, s client.Started) error {
	if term.JSON {
		return term.Sent()
	}
	if s.Existing {
		return term.Printf("run %s is there already, by its idempotency key\n", s.Run)
	}
	skipped := ""
	if s.Skipped > 0 {
		skipped = fmt.Sprintf(" (%s skipped)", cli.Plural(s.Skipped, "duplicate"))
	}
	if s.Invalid > 0 {
		skipped += fmt.Sprintf(" (%s invalid, which have failed: tranche run errors %s)", cli.Count(s.Invalid), s.Run)
	}
	plan := cli.Inert(s.Plan)
	if s.PlanVersion > 0 {
		plan = fmt.Sprintf("%s@%d", plan, s.PlanVersion)
	}
	keys := ""
	if s.Key != "" {
		keys = ", keys from " + cli.Inert(s.Key)
	}
	return term.Printf("run %s started: plan %s, %s%s%s\n", s.Run, plan, cli.Plural(s.Items, "item"), skipped, keys)
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

// shownFirst is how many items a dry run shows.
const shownFirst = 3

// try says what would be started.
func (r *Start) try(
	ctx context.Context, term *cli.Console, cl *client.Client, settings client.RunSettings,
) error {
	found, err := send(ctx, r, term, settings, cl.DryRun)
	if err != nil {
		return err
	}
	for _, w := range found.Warnings {
		term.Note("warning: %s", w)
	}
	if term.JSON {
		return term.Sent()
	}
	return term.Printf("%s", dryRunText(&found))
}

func dryRunText(found *client.DryRun) string {
	if found.Existing != nil {
		return fmt.Sprintf("nothing would be started: run %s is there already, by its idempotency key\n", *found.Existing)
	}
	var text strings.Builder
	plan := cli.Inert(found.Plan)
	if found.PlanVersion > 0 {
		plan = fmt.Sprintf("%s@%d", plan, found.PlanVersion)
	}
	fmt.Fprintf(&text, "would start: plan %s, %s of %s, keys from %s\n", plan, cli.Plural(found.Items, "item"),
		cli.Plural(found.Bytes, "byte"), cli.Inert(found.Key))
	if found.Skipped > 0 {
		fmt.Fprintf(&text, "%s would be skipped\n", cli.Plural(found.Skipped, "duplicate"))
	}
	if found.Held > 0 {
		fmt.Fprintf(&text, "%s would wait for the canary\n", cli.Plural(found.Held, "item"))
	}
	t := cli.Table{Right: map[int]bool{2: true, 3: true, 4: true, 5: true}}
	t.Row("STEP", "ASKS", "CHUNK", "IN FLIGHT", "REQUESTS", "WHO CAN")
	for i := range found.Steps {
		s := &found.Steps[i]
		t.Row(cli.Inert(s.Name), cli.Inert(s.Endpoint), sizeText(s.Chunk, s.ChunkAuto), sizeText(s.InFlight, s.InFlightAuto),
			cli.Count(s.Requests), fmt.Sprint(s.Services))
	}
	text.WriteString(t.String())
	for i := range found.First[:min(len(found.First), shownFirst)] {
		row := &found.First[i]
		fmt.Fprintf(&text, "item %s: %s\n", cli.Inert(cli.Short(row.Key, 40)), cli.Inert(cli.Short(string(row.Payload), 100)))
	}
	text.WriteString("nothing was started\n")
	return text.String()
}

// sizeText is a size, marked where nodes find it.
func sizeText(n int, auto bool) string {
	if auto {
		return fmt.Sprintf("auto (%d)", n)
	}
	return fmt.Sprint(n)
}
