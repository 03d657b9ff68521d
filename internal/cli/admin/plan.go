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
	"github.com/tranchehq/tranche/orchestrator/client"
)

type planCommands struct {
	Apply  applyDocument[planKind] `cmd:"" help:"Save a plan: the next version of its name, unless nothing has changed."`
	List   planList                `cmd:"" help:"List saved plans, or the versions of one."`
	Show   planShow                `cmd:"" help:"Show an applied plan."`
	Infer  planInfer               `cmd:"" help:"Propose a JSON Schema of items, from the first rows of a file."`
	Types  planTypes               `cmd:"" help:"Write Go or TypeScript types of what each step's service reads."`
	Delete planDelete              `cmd:"" help:"Delete a plan; runs keep what they started with."`
}

type planKind struct{}

func (planKind) documents() *documents {
	return &documents{
		noun: "plan", most: gather.MaxPlanBytes, dropped: ", in all its versions; runs keep what they started with",
		parse: func(name string, text []byte) error { _, err := gather.Parse(name, text); return err },
		apply: func(ctx context.Context, cl *client.Client, name string, text io.Reader) (client.AppliedDocument, error) {
			return cl.ApplyPlan(ctx, client.ApplyPlanParams{Name: name}, cli.YAML, text)
		},
		next: func(a *client.AppliedDocument) string {
			switch {
			case a.Unchanged:
				return ""
			case a.Previous > 0:
				return "runs that are in progress keep theirs"
			}
			return "start it with: tranche run start " + cli.EscapeControl(a.Name) + " --items FILE"
		},
		drop: (*client.Client).DeletePlan,
	}
}

type planList struct {
	Name   string `arg:"" optional:"" help:"List the versions of this plan, newest first."`
	Before int    `help:"Of a plan, only versions before this one." placeholder:"N"`
	namesPage
}

func (p *planList) Validate() error {
	switch {
	case p.Name == "" && p.Before != 0:
		return errors.New("--before continues with versions of a plan; name it, or use --after")
	case p.Name != "" && p.After != "":
		return errors.New("--after continues with plans; use --before for versions of one")
	}
	return nil
}

func (p *planList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list := cli.List[client.PlanSummary]{
		Columns: "PLAN|VERSION>|STEPS|RUNS>|APPLIED|BY",
		Row: func(p *client.PlanSummary) []any {
			runs := cli.Count(p.Runs)
			if p.Running > 0 {
				runs += fmt.Sprintf(" (%s running)", cli.Count(p.Running))
			}
			return []any{p.Name, strconv.Itoa(p.Version), stepsText(p), runs, p.CreatedAt, p.CreatedBy}
		},
		Empty: "no saved plans; save one with: tranche plan apply FILE",
	}
	if p.Name != "" {
		found, err := cl.ListPlanVersions(ctx, p.Name, client.ListPlanVersionsParams{Before: p.Before, Limit: p.Limit})
		list.Next, list.Before = found.Next, true
		return list.Print(term, found.Versions, err)
	}
	found, err := cl.ListPlans(ctx, client.ListPlansParams(p.namesPage))
	list.Next = found.Next
	return list.Print(term, found.Plans, err)
}

func stepsText(p *client.PlanSummary) string {
	var steps []string
	for i, name := range p.Steps {
		if i < len(p.Endpoints) && p.Endpoints[i] != "" && p.Endpoints[i] != name {
			name += " to " + p.Endpoints[i]
		}
		steps = append(steps, name)
	}
	return strings.Join(steps, ", ")
}

type planShow struct {
	Plan string `arg:"" help:"A saved plan, NAME or NAME@VERSION."`
}

// Run prints the plan's source, and with --json everything about it. The console escapes it on a terminal; a file
// gets it unchanged.
func (p *planShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	name, version, err := planRef(p.Plan)
	if err != nil {
		return err
	}
	plan, err := planOf(ctx, cl, name, version)
	return printSource(term, plan.Source, err, func() {
		term.Note("plan %s@%d, applied %s by %s, used by %s runs", plan.Name, plan.Version, cli.Moment(plan.CreatedAt),
			plan.CreatedBy, cli.Count(plan.Runs))
		if plan.Newest != plan.Version {
			term.Note("the newest version is %d", plan.Newest)
		}
	})
}

func planOf(ctx context.Context, cl *client.Client, name string, version int) (client.PlanView, error) {
	if version == 0 {
		return cl.GetPlan(ctx, name)
	}
	return cl.GetPlanVersion(ctx, name, version)
}

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

type planDelete struct{ deleteDocument[planKind] }

func (p *planDelete) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	if name, _, versioned := strings.Cut(p.Name, "@"); versioned {
		return cli.Usage(fmt.Sprintf("plan %.100q: versions are not deleted one by one; %.64s takes all of them",
			p.Name, name))
	}
	return p.deleteDocument.Run(ctx, term, cl)
}

type planInfer struct {
	Items string `required:"" help:"CSV, NDJSON or Parquet, also gzip or zstd; - is standard input." placeholder:"FILE"`
	cli.KeyFlags
	cli.RowFlags
	Rows int `default:"10000" within:"1,1000000" help:"How many rows to read." placeholder:"N"`
}

func (p *planInfer) Validate() error {
	err := (&gather.Overrides{Rename: p.Rename, Types: p.Types}).Validate()
	if field, ok := errors.AsType[*gather.FieldError](err); ok {
		return fmt.Errorf("--%s: %s", field.Field, field.Problem)
	}
	return err
}

// Run reads the rows locally, without a server.
func (p *planInfer) Run(term *cli.Console) error {
	file, _, err := cli.OpenItems("--items", p.Items, term.In)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // only read
	var guess itemschema.Guess
	read, notes, err := p.guess(file, &guess)
	if err != nil {
		return cli.Usage(fmt.Sprintf("--items %s: %v", p.Items, err))
	}
	term.Notes(notes)
	var text bytes.Buffer
	if err := json.Indent(&text, guess.Schema(), "", "  "); err != nil {
		return fmt.Errorf("write the schema: %w", err)
	}
	term.Note("of %s rows; fix it where others may differ, then: tranche run start --schema FILE, or items: "+
		"{schema: …} in a plan", cli.Count(int64(read)))
	return term.Printf("%s\n", text.Bytes())
}

func (p *planInfer) guess(file io.Reader, guess *itemschema.Guess) (read int, notes []string, err error) {
	var items gather.Items
	if items.Delimiter, err = gather.ParseDelimiter(p.Delimiter); err != nil {
		return 0, nil, fmt.Errorf("--delimiter %.40q: %w", p.Delimiter, err)
	}
	rows, err := intake.Open(file, intake.Config{Format: intake.Format(p.Format), Key: p.Key, Spool: &intake.Spool{},
		Encoding: p.Encoding, NoHeader: !p.Header, Delimiter: items.Separator(),
		Columns: p.Columns, Rename: byName(p.Rename), Types: byName(p.Types)})
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = rows.Close() }() // only read
	var item row.Item
	for ; read < p.Rows; read++ {
		err := rows.Next(&item)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = guess.Add(item.Payload)
		}
		if err != nil {
			return read, nil, err
		}
	}
	return read, rows.Notes(), nil
}

func byName(texts []string) map[string]string {
	all := map[string]string{}
	for _, text := range texts {
		name, value, _ := strings.Cut(text, "=")
		all[name] = value
	}
	return all
}
