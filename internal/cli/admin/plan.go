package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/intake/spool"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Plans are the commands about plans on record.
type Plans struct {
	Apply  planApply  `cmd:"" help:"Put a plan on record: the next version of its name, unless nothing has changed."`
	List   planList   `cmd:"" help:"List plans on record, or the versions of one."`
	Show   planShow   `cmd:"" help:"A plan as it was applied."`
	Infer  planInfer  `cmd:"" help:"Propose a JSON Schema of items, from the first rows of a file."`
	Types  planTypes  `cmd:"" help:"Go or TypeScript types of what each step's service reads."`
	Delete planDelete `cmd:"" help:"Take a plan off the record; runs keep what they started with."`
}

type planApply struct {
	File string `arg:"" help:"A plan in YAML or JSON; - is standard input."`
}

// Run puts a plan on record.
func (p *planApply) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	plan, err := cli.ReadPlan(p.File, term.In)
	if err != nil {
		return err
	}
	applied, err := cl.ApplyPlan(ctx, client.ApplyPlanParams{Name: plan.Name}, "application/yaml",
		strings.NewReader(plan.Text), term.Keep())
	if err != nil {
		return cli.Explain(&plan, err, gather.Parse)
	}
	switch {
	case term.JSON:
		return term.Sent()
	case applied.Unchanged:
		return term.Printf("plan %s is unchanged: version %d, applied %s by %s\n", cli.Inert(applied.Name), applied.Version,
			cli.Moment(applied.CreatedAt), cli.Inert(applied.CreatedBy))
	case applied.Previous > 0:
		return term.Printf("plan %s is version %d now, after version %d; runs that are under way keep theirs\n",
			cli.Inert(applied.Name), applied.Version, applied.Previous)
	}
	return term.Printf("plan %s is on record, version %d; start it with: tranche run start %s --items FILE\n",
		cli.Inert(applied.Name), applied.Version, cli.Inert(applied.Name))
}

type planList struct {
	Name  string `arg:"" optional:"" help:"List the versions of this plan, newest first."`
	Limit int    `default:"100" help:"How many, at most 500." placeholder:"N"`
}

func (p *planList) Validate() error { return cli.Within("--limit", &p.Limit, inspect.MaxPlans) }

func (p *planList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	if p.Name != "" {
		versions, err := cl.ListPlanVersions(ctx, p.Name, client.ListPlanVersionsParams{Limit: p.Limit}, term.Keep())
		if err != nil || term.JSON {
			return term.Answered(err)
		}
		return term.Printf("%s", plansText(versions.Versions, versions.Next > 0, term.Room()))
	}
	list, err := cl.ListPlans(ctx, client.ListPlansParams{Limit: p.Limit}, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	if len(list.Plans) == 0 {
		return term.Printf("no plans on record; put one there with: tranche plan apply FILE\n")
	}
	return term.Printf("%s", plansText(list.Plans, list.Next != "", term.Room()))
}

func plansText(plans []client.PlanSummary, more bool, room int) string {
	t := cli.Table{Right: map[int]bool{1: true, 3: true}, Room: room}
	t.Row("PLAN", "VERSION", "STEPS", "RUNS", "APPLIED", "BY")
	for i := range plans {
		p := &plans[i]
		runs := cli.Count(p.Runs)
		if p.Running > 0 {
			runs += fmt.Sprintf(" (%s running)", cli.Count(p.Running))
		}
		t.Row(cli.Inert(p.Name), strconv.Itoa(p.Version), stepsText(p), runs, cli.Moment(p.CreatedAt),
			cli.Inert(p.CreatedBy))
	}
	return t.Page(more)
}

// stepsText names the steps, and their endpoints where those are called otherwise.
func stepsText(p *client.PlanSummary) string {
	var steps []string
	for i, name := range p.Steps {
		if i < len(p.Endpoints) && p.Endpoints[i] != name {
			name += " to " + p.Endpoints[i]
		}
		steps = append(steps, cli.Inert(name))
	}
	return strings.Join(steps, ", ")
}

type planShow struct {
	Plan string `arg:"" help:"A plan on record, NAME or NAME@VERSION."`
}

// Run prints the plan as it was applied, and with --json all about it. On a terminal the console makes it inert; into a
// file it goes as it is.
func (p *planShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	name, version, err := planRef(p.Plan)
	if err != nil {
		return err
	}
	plan, err := planOf(ctx, cl, name, version, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	term.Note("plan %s@%d, applied %s by %s, used by %s runs", plan.Name, plan.Version, cli.Moment(plan.CreatedAt),
		plan.CreatedBy, cli.Count(plan.Runs))
	if plan.Newest != plan.Version {
		term.Note("the newest version is %d", plan.Newest)
	}
	return term.Printf("%s\n", strings.TrimRight(plan.Source, "\n"))
}

// planOf returns one version of a plan; version 0 is the newest.
func planOf(
	ctx context.Context, cl *client.Client, name string, version int, keep client.CallOption,
) (client.PlanView, error) {
	if version == 0 {
		return cl.GetPlan(ctx, name, keep)
	}
	return cl.GetPlanVersion(ctx, name, version, keep)
}

// planRef takes NAME or NAME@VERSION apart; version 0 is the newest.
func planRef(ref string) (name string, version int, err error) {
	name, number, versioned := strings.Cut(ref, "@")
	if !versioned {
		return name, 0, nil
	}
	version, err = strconv.Atoi(number)
	if err != nil || version < 1 {
		return "", 0, cli.Usage(fmt.Sprintf("plan %.100q: versions count from 1, like %.64s@1", ref, name))
	}
	return name, version, nil
}

type planDelete struct {
	Name string `arg:"" help:"The plan's name; all its versions go."`
}

// Run takes a plan off the record.
func (p *planDelete) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	if name, _, versioned := strings.Cut(p.Name, "@"); versioned {
		return cli.Usage(fmt.Sprintf("plan %.100q: versions are not deleted one by one; %.64s takes all of them",
			p.Name, name))
	}
	gone, err := cl.DeletePlan(ctx, p.Name, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("plan %s is deleted, with its %d versions; runs keep what they started with\n",
		cli.Inert(gone.Name),
		gone.Versions)
}

type planInfer struct {
	Items  string `required:"" help:"CSV, NDJSON or Parquet, also gzip or zstd; - is standard input." placeholder:"FILE"`
	Key    string `help:"The column or field with the key of an item. Default: key, then id, then the first column." placeholder:"COLUMN"`
	Format string `enum:",csv,ndjson,parquet" default:"" help:"csv, ndjson or parquet; recognised when absent." placeholder:"FORMAT"`

	Encoding  string            `help:"Of the text: utf-8, latin-1, windows-1252, utf-16, utf-16le or utf-16be." placeholder:"NAME"`
	NoHeader  bool              `help:"CSV begins with its first row."`
	Delimiter string            `help:"Between fields of CSV: comma, semicolon, tab or bar; found when absent." placeholder:"NAME"`
	Columns   []string          `help:"Columns or fields to keep; without a header the names of all columns." placeholder:"NAME"`
	Rename    map[string]string `help:"Another name for a column or field; may stand more than once." placeholder:"OLD=NEW"`
	Types     map[string]string `help:"What a field becomes: number, text, bool or json; may stand more than once." placeholder:"FIELD=TYPE"`

	Rows int `default:"10000" help:"How many rows are looked at." placeholder:"N"`
}

func (p *planInfer) Validate() error { return cli.Within("--rows", &p.Rows, 1_000_000) }

// Run reads the rows here: no server is asked.
func (p *planInfer) Run(term *cli.Console) error {
	file, _, err := cli.OpenItems("--items", p.Items, term.In)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	var look gather.Items
	if look.Delimiter, err = gather.ParseDelimiter(p.Delimiter); err != nil {
		return cli.Usage(fmt.Sprintf("--delimiter %.40q: %v", p.Delimiter, err))
	}
	rows, err := intake.Open(file, intake.Config{Format: intake.Format(p.Format), Key: p.Key, Spool: &spool.Spool{},
		Encoding: p.Encoding, NoHeader: p.NoHeader, Delimiter: look.Separator(),
		Columns: p.Columns, Rename: p.Rename, Types: p.Types})
	if err != nil {
		return cli.Usage(fmt.Sprintf("--items %s: %v", p.Items, err))
	}
	defer func() { _ = rows.Close() }() // as above
	guess, read, err := guessOf(rows, p.Rows)
	if err != nil {
		return cli.Usage(fmt.Sprintf("--items %s: %v", p.Items, err))
	}
	for _, note := range rows.Notes() {
		term.Note("%s", note)
	}
	var text bytes.Buffer
	if err := json.Indent(&text, guess.Schema(), "", "  "); err != nil {
		return fmt.Errorf("write the schema: %w", err)
	}
	term.Note("of %s rows; mend it where others may differ, then: tranche run start --schema FILE, or items: {schema: …} "+
		"in a plan", cli.Count(int64(read)))
	return term.Printf("%s\n", text.Bytes())
}

// guessOf looks at the first rows.
func guessOf(rows *intake.Reader, most int) (guess itemschema.Guess, read int, err error) {
	var item row.Item
	for ; read < most; read++ {
		err := rows.Next(&item)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = guess.Add(item.Payload)
		}
		if err != nil {
			return guess, read, err
		}
	}
	return guess, read, nil
}
