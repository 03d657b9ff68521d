package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/alecthomas/kong"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

type planFlags struct {
	Plan     string     `json:"-" arg:"" optional:"" help:"A plan file in YAML, or a saved plan: NAME or NAME@VERSION."`
	Endpoint string     `json:"endpoint,omitempty" help:"Run this single endpoint instead of a plan." placeholder:"NAME"`
	Param    parameters `json:"params,omitempty" help:"A parameter of the run; repeatable." placeholder:"K=V"`
	Name     string     `json:"name,omitempty" help:"A name to find the run by." placeholder:"TEXT"`
}

type parameters map[string]string

// Decode implements kong.MapperValue, because kong's own takes the last of equal names.
func (p *parameters) Decode(line *kong.DecodeContext) error {
	var text string
	if err := line.Scan.PopValueInto("K=V", &text); err != nil {
		return err
	}
	name, value, ok := strings.Cut(text, "=")
	if _, twice := (*p)[name]; twice || !ok || name == "" {
		return fmt.Errorf("%q is not name=value, or its name is given twice; give each name once", text)
	}
	if *p == nil {
		*p = parameters{}
	}
	(*p)[name] = value
	return nil
}

// runStart has flags that are sent to the API by their JSON names: to add one, add a field. Flags with json:"-" are
// local.
type runStart struct {
	planFlags
	cli.KeyFlags   `group:"Items:"`
	IdempotencyKey string `json:"idempotency_key,omitempty" help:"Repeating a start with this key returns the same run; different content is refused." placeholder:"K"`
	OnDuplicate    string `group:"Items:" json:"on_duplicate,omitempty" enum:"error,skip,allow" default:"error" help:"For duplicate keys: error, skip or allow." placeholder:"WHAT"`
	Schema         string `group:"Items:" json:"-" help:"A JSON Schema, in a file, that the items must fit. See also: tranche plan infer." placeholder:"FILE"`
	DryRun         bool   `json:"-" help:"Start nothing; read and check everything, and show what would be started."`
	waitFlags      `json:"-" group:"Waiting:"`
	itemFlags      `group:"Items:"`
	runSettings    `group:"Settings of the plan, for this run:"`
}

func (r *runStart) Validate() error {
	switch {
	case r.Plan == "" && r.Endpoint == "" && r.From == "":
		return errors.New("give a plan file, the name of a saved plan, or --endpoint NAME")
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
			return cl.DryRun(ctx, settings, items)
		})
		term.Warn(found.Warnings)
		return cli.Say(term, dryRunText)(found, r.Explain(&plan, err))
	}
	started, err := send(r, term, func(items io.Reader) (client.Started, error) {
		return cl.Start(ctx, settings, items)
	})
	if err != nil {
		return r.Explain(&plan, err)
	}
	term.Warn(started.Warnings)
	return r.end(ctx, term, cl, started.Run, func() error {
		return cli.Say(term, func(s *client.Started) string {
			return startedText(s) + "\nsee " +
				cl.RunPage(s.Run)
		})(started, nil)
	})
}

// Help is shown with the flags.
func (*runStart) Help() string {
	return `Examples:
  tranche run start --endpoint year-end-interest --items accounts.csv --wait
  tranche run start statements.yaml --items accounts.csv --canary 100 --max-failed 1%
  tranche run start year-end --sql "SELECT id, balance FROM account" --source ledger --dry-run`
}

func send[Out any](r *runStart, term *cli.Console, ask func(items io.Reader) (Out, error)) (Out, error) {
	flag, name := r.file()
	if name == "" {
		return ask(http.NoBody)
	}
	return cli.Upload(term, flag, name, ask)
}

func (r *runStart) settings() (plan cli.TextFile, settings client.RunSettings, err error) {
	if cli.IsPlanFile(r.Plan) {
		if plan, err = cli.ReadPlan(r.Plan, nil); err != nil {
			return plan, settings, err
		}
	}
	flags := *r
	if flags.Overrides, err = r.overrides(); err == nil && r.Schema != "" {
		flags.Overrides.Schema, err = readSchema(r.Schema)
	}
	fillErr := cli.Fill(&settings, &flags)
	settings.Plan, settings.PlanName = plan.Text, plan.Name
	if plan.Path == "" {
		settings.PlanRef = r.Plan
	}
	settings.Source = r.sourceName()
	if r.Parquet != "" {
		settings.Format = "parquet"
	}
	return plan, settings, cmp.Or(err, fillErr)
}

func readSchema(name string) ([]byte, error) {
	file, err := cli.ReadText("--schema", name, strings.NewReader(""), itemschema.MaxBytes)
	if err != nil {
		return nil, err
	}
	if _, err := itemschema.Compile([]byte(file.Text)); err != nil {
		return nil, cli.Usage(fmt.Sprintf("--schema %s: %v", name, err))
	}
	return []byte(file.Text), nil
}

// Explain describes the fault in the plan, if that is why the server refused the run.
func (r *runStart) Explain(plan *cli.TextFile, err error) error {
	if plan.Path != "" {
		if bad, ok := errors.AsType[*strictyaml.Error](cli.Explain(plan, err, gather.Parse)); ok {
			return bad
		}
		return err // for example about the items
	}
	refused, ok := errors.AsType[*client.ProblemError](err)
	if !ok || r.Plan == "" {
		return err
	}
	name, _, _ := strings.Cut(r.Plan, "@")
	if refused.Status == http.StatusNotFound || gather.CheckName(name) != nil {
		return cli.Usage(fmt.Sprintf("%.200q is neither a file here nor a saved plan (%s); give the path of a YAML "+
			"file, or a name from: tranche plan list", r.Plan, strings.TrimSuffix(refused.Detail, "; see tranche plan list")))
	}
	return err
}

func startedText(s *client.Started) string {
	if s.Existing {
		return fmt.Sprintf("run %s exists already, by its idempotency key", s.Run)
	}
	text := cli.Text("run %v started: plan %v, %v", s.Run, planRefText(s.Plan, s.PlanVersion), itemCount(s.Items)) +
		cli.If(s.Skipped > 0, " (%v skipped)", cli.Plural(s.Skipped, "duplicate")) +
		cli.If(s.Invalid > 0, " (%v invalid, which failed: tranche run errors %v)", s.Invalid, s.Run) +
		cli.If(s.Key != "", ", keys from %v", s.Key)
	if s.DoneBy != nil {
		text += "\nto be done by " + cli.Ahead(*s.DoneBy)
	}
	return text
}

func planRefText(name string, version int) string {
	return cli.EscapeControl(name) + cli.If(version > 0, "@%v", strconv.Itoa(version))
}

type runSettings struct {
	gather.Overrides

	Set []string `json:"-" sep:"none" help:"A setting of a single step, by its name in plans: compose.chunk=50; repeatable. Other flags apply to every step." placeholder:"STEP.SETTING=VALUE"`
}

func (r *runSettings) overrides() (gather.Overrides, error) {
	over := r.Overrides
	over.DoneBy = cli.DoneBy(over.DoneBy)
	for _, text := range r.Set {
		if err := over.SetStep(text); err != nil {
			return over, flagError(err)
		}
	}
	return over, flagError(over.Validate())
}

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

// SayHelp gives flags without help the documentation of their API setting.
func SayHelp(app *kong.Application) error {
	return kong.Visit(app, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok && flag.Help == "" {
			doc := []rune(flag.Tag.Get("doc"))
			if len(doc) > 0 {
				flag.Help = string(unicode.ToUpper(doc[0])) + string(doc[1:])
				if flag.IsSlice() {
					flag.Help += "; repeatable"
				}
				flag.Help += "."
			}
		}
		return next(nil)
	})
}

func dryRunText(found *client.DryRun) string {
	if found.Existing != nil {
		return fmt.Sprintf("nothing would be started: run %s exists already, by its idempotency key", *found.Existing)
	}
	text := cli.Text("would start: plan %v, %v of %v%v\n", planRefText(found.Plan, found.PlanVersion),
		itemCount(found.Items), cli.Plural(found.Bytes, "byte"), cli.If(found.Key != "", ", keys from %v", found.Key)) +
		cli.If(found.Skipped > 0, "%v would be skipped\n", cli.Plural(found.Skipped, "duplicate")) +
		cli.If(found.Held > 0, "%v would wait for the canary\n", itemCount(found.Held))
	steps := cli.List[client.DryRunStep]{
		Columns: "STEP|ASKS|CHUNK>|IN FLIGHT>|REQUESTS>|WHO CAN>",
		Row: func(s *client.DryRunStep) []any {
			return []any{s.Name, s.Endpoint, sizeText(s.Chunk, s.ChunkAuto), sizeText(s.InFlight, s.InFlightAuto), s.Requests,
				s.Services}
		},
	}
	text += steps.Text(found.Steps, 0)
	text += cli.Each(found.First[:min(len(found.First), 3)], func(row *client.PreviewRow) string {
		return cli.Text("item %v: %v\n", cli.Short(row.Key, 40), cli.Short(string(row.Payload), 100))
	})
	if f := found.Forecast; f != nil && f.WhyNot == "" {
		text += "forecast, if started now: " + forecastText(f) + "\n"
	}
	return text + "nothing was started"
}

func sizeText(n int, auto bool) string {
	if auto {
		return fmt.Sprintf("auto (%d)", n)
	}
	return fmt.Sprint(n)
}

type runOpen struct {
	planFlags
	IdempotencyKey string        `help:"Repeating an open with this key returns the same run." placeholder:"K"`
	OnDuplicate    string        `enum:"error,skip,allow" default:"error" help:"For duplicate keys: error, skip or allow." placeholder:"WHAT"`
	SealWithin     time.Duration `default:"24h" within:"1s," help:"The run is overdue when it is not sealed by then (${default})." placeholder:"TIME"`
	OnOverdue      string        `enum:"report,seal,cancel" default:"report" help:"Handle an overdue run: report it, or also seal or cancel it. A reported run is cancelled after 7 idle days." placeholder:"WHAT"`
	runSettings
}

func (r *runOpen) Validate() error { return r.start().Validate() }

// start returns the equivalent start with items.
func (r *runOpen) start() *runStart {
	return &runStart{planFlags: r.planFlags, IdempotencyKey: r.IdempotencyKey, OnDuplicate: r.OnDuplicate,
		runSettings: r.runSettings, itemFlags: itemFlags{later: true}}
}

func (r *runOpen) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	start := r.start()
	plan, settings, err := start.settings()
	if err != nil {
		return err
	}
	settings.Source = "added over time"
	open := client.OpenSettings{SealWithin: r.SealWithin.String(), OnOverdue: r.OnOverdue}
	if err := cli.Fill(&open, &settings); err != nil {
		return err
	}
	opened, err := cl.OpenRun(ctx, open)
	term.Warn(opened.Warnings)
	return cli.Say(term, func(opened *client.Opened) string {
		if opened.Existing {
			return fmt.Sprintf("run %s exists already, by its idempotency key", opened.Run)
		}
		return fmt.Sprintf("run %[1]s is open until %[2]s\nadd items with: tranche run add %[1]s FILE\n"+
			"then: tranche run seal %[1]s", opened.Run, cli.Moment(opened.SealDeadline))
	})(opened, start.Explain(&plan, err))
}

type runAdd struct {
	runArg
	File  string `arg:"" optional:"" default:"-" help:"CSV, NDJSON or Parquet, also gzip or zstd; - is standard input." placeholder:"FILE"`
	Items string `help:"As for run start." placeholder:"FILE"`
	cli.KeyFlags
	IdempotencyKey string `help:"Adding the same items again with the same key changes nothing." placeholder:"K"`
	cli.RowFlags
	Contract string `enum:",reject,warn,off" default:"" help:"When no item has a field that the service of a step requires: reject, warn or off." placeholder:"WHAT"`
}

func (r *runAdd) Validate() error {
	if r.Items == "" {
		return nil
	}
	if r.File != "-" {
		return errors.New("the items are named twice: after the run, and by --items")
	}
	r.File = r.Items
	return nil
}

func (r *runAdd) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	params := client.AddItemsParams{IdempotencyKey: r.IdempotencyKey, Key: r.Key, Format: r.Format,
		Encoding: r.Encoding, Header: r.HeaderParam(), Delimiter: r.Delimiter,
		Columns: r.Columns, Rename: r.Rename, Types: r.Types, Contract: r.Contract}
	added, err := cli.Upload(term, "file", r.File, func(items io.Reader) (client.AddedItems, error) {
		return cl.Add(ctx, r.Ref, params, items)
	})
	if !term.JSON {
		term.Warn(added.Warnings)
	}
	return cli.Say(term, func(added *client.AddedItems) string {
		text, before := "", ""
		if added.Existing {
			text, before = "nothing changed: ", " before, by their idempotency key"
		}
		text += cli.Plural(added.Items, "item") + " added to run " + added.Run + before
		if added.Skipped > 0 {
			text += fmt.Sprintf(" (%s skipped)", cli.Plural(added.Skipped, "duplicate"))
		}
		return text + "; it has " + cli.Count(added.Total) + " now"
	})(added, err)
}

type runSeal struct {
	runArg
	Expect *int64 `within:"0," help:"Seal only if the run has this many items." placeholder:"N"`
	Reason string `help:"Why, for the audit log." placeholder:"TEXT"`
}

func (r *runSeal) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Say(term, func(sealed *client.SealedRun) string {
		items := cli.Plural(sealed.Items, "item")
		switch {
		case sealed.Already:
			return "run " + sealed.Run + " was sealed before, with " + items
		case sealed.Completed:
			return "run " + sealed.Run + " sealed with " + items + ", and completed"
		}
		return fmt.Sprintf("run %s sealed with %s; follow it with: tranche run watch %s", sealed.Run, items, sealed.Run)
	})(cl.SealRun(ctx, r.Ref, client.SealSettings{Expect: r.Expect, Reason: r.Reason}))
}

// itemFlags is the source of a run's items: exactly one.
type itemFlags struct {
	Items   string `json:"-" aliases:"file" help:"CSV, NDJSON or Parquet, also gzip or zstd; - is standard input." placeholder:"FILE"`
	Parquet string `json:"-" help:"A Parquet file." placeholder:"FILE"`
	SQL     string `json:"sql,omitempty" name:"sql" help:"A query whose rows are the items; with --source." placeholder:"QUERY"`
	Source  string `json:"sql_source,omitempty" help:"Source to query, from serve --connections." placeholder:"NAME"`
	Stream  string `json:"stream,omitempty" help:"A JetStream stream whose messages are the items, up to the last that it has now." placeholder:"NAME"`
	Subject string `json:"stream_subject,omitempty" help:"Of the stream, only messages of this subject; may have wildcards." placeholder:"SUBJECT"`
	FromSeq uint64 `json:"stream_from,omitempty" help:"Of the stream, only messages starting with this sequence." placeholder:"SEQ"`

	From    string   `json:"from_run,omitempty" help:"Continue an earlier run with items of it, by its plan and parameters unless others are given." placeholder:"RUN"`
	State   []string `json:"from_states,omitempty" enum:"failed,missing,cancelled" help:"With --from, which items: failed, missing or cancelled; repeatable. Default: all these." placeholder:"STATE"`
	Correct string   `json:"-" help:"With --from, a file with other data for some of the items; - is standard input." placeholder:"FILE"`

	later bool // there are no items yet
}

func (f *itemFlags) validate(format string) error {
	var given []string
	for _, from := range [][2]string{{"--from", f.From}, {"--items (or --file)", f.Items}, {"--parquet", f.Parquet},
		{"--sql", f.SQL}, {"--stream", f.Stream}} {
		if from[1] != "" {
			given = append(given, from[0])
		}
	}
	switch {
	case f.later:
		return nil
	case len(given) == 0:
		return errors.New("say where the items come from, by one of --items FILE, --parquet FILE, --sql QUERY, " +
			"--stream NAME and --from RUN")
	case len(given) > 1:
		return fmt.Errorf("%s each say where the items come from; give one of them (other data for items of an earlier "+
			"run is --from RUN --correct FILE)", strings.Join(given, " and "))
	case f.From == "" && (len(f.State) > 0 || f.Correct != ""):
		return errors.New("--state and --correct are about items of an earlier run; give --from RUN too")
	case (f.SQL == "") != (f.Source == ""):
		return errors.New("--sql and --source go together: a query, and the source to query")
	case f.Stream == "" && (f.Subject != "" || f.FromSeq != 0):
		return errors.New("--subject and --from-seq say which messages of a stream; give --stream too")
	case f.Items+f.Correct == "" && format != "":
		return errors.New("--format goes with --items and --correct only")
	}
	return nil
}

func (f *itemFlags) file() (flag, name string) {
	switch {
	case f.Parquet != "":
		return "--parquet", f.Parquet
	case f.Correct != "":
		return "--correct", f.Correct
	}
	return "--items", f.Items
}

func (f *itemFlags) sourceName() string {
	switch _, file := f.file(); {
	case f.From != "": // the server says which run that is
		return ""
	case f.SQL != "":
		return "source " + f.Source
	case f.Stream != "":
		return "stream " + f.Stream
	case file == "-" || file == "":
		return "standard input"
	default:
		return filepath.Base(file)
	}
}
