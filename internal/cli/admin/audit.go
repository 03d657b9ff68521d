package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/doctor"
)

type auditCommands struct {
	List   auditCommand `cmd:"" default:"withargs" help:"List what operators did, newest first."`
	Verify auditVerify  `cmd:"" help:"Check that no row was changed, deleted or inserted; exit 1 when one was."`
	Export auditExport  `cmd:"" help:"Print rows as NDJSON in the order of their chain."`
}

type auditVerify struct {
	checkPlace

	Head string `help:"Also check that the log has this head, printed by an earlier verify." placeholder:"N:HASH"`
}

func (v *auditVerify) Run(ctx context.Context, term *cli.Console) error {
	report, err := examine(ctx, term, &v.checkPlace, func(cl *client.Client) error {
		_, err := cl.VerifyAudit(ctx, client.VerifyAuditParams{Head: v.Head})
		return err
	}, func(s doctor.Store, ctx context.Context) (doctor.AuditReport, error) {
		return s.VerifyAudit(ctx, v.Head)
	})
	return cli.FailIf(report.Found > 0, cli.ExitOther, cli.Say(term, chainText)(report, err))
}

func chainText(r *doctor.AuditReport) string {
	text := cli.Text("rows: %v, from %v to %v; deleted by retention: %v; with erased keys: %v; not in the chain yet: %v\n"+
		"head: %v\n", r.Rows, cli.MomentOrNever(r.First), cli.MomentOrNever(r.Last), r.Deleted, r.Erased, r.Unsealed, r.Head)
	if r.Found == 0 {
		return text + "the chain holds; keep the head elsewhere, for tranche audit verify --head"
	}
	for _, f := range r.Findings {
		text += cli.Text("%v\n", f.String())
	}
	return text + cli.Count(int64(r.Found)) + " findings"
}

type auditExport struct {
	After  int64 `default:"0" help:"Only rows after this seal, the last one of an earlier export. 0: from the oldest." placeholder:"SEAL"`
	Follow bool  `help:"Continue with new rows."`
}

// followEvery is the time between two polls for new rows.
const followEvery = time.Second

func (e *auditExport) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	lines := json.NewEncoder(term.Out)
	lines.SetEscapeHTML(false)
	for {
		page, err := cl.ExportAudit(ctx, client.ExportAuditParams{After: e.After})
		if err != nil {
			return err
		}
		for i := range page.Entries {
			if err := lines.Encode(&page.Entries[i]); err != nil {
				return err
			}
			e.After = page.Entries[i].Seal
		}
		switch {
		case len(page.Entries) > 0:
		case !e.Follow:
			return nil
		default:
			if err := backoff.Sleep(ctx, followEvery); err != nil {
				return err
			}
		}
	}
}

type auditCommand struct{ auditPage }

type auditPage struct {
	Run    string    `name:"run" help:"Only actions on this run: ID, part of an ID, name, or last." placeholder:"RUN"`
	Actor  string    `help:"Only actions of this actor; tranche: those of nodes." placeholder:"NAME"`
	Action string    `help:"Only this action: start, rerun, pause, resume, cancel, endpoint_set, …" placeholder:"ACTION"`
	Since  time.Time `help:"Only since then: 90m, 24h, 2026-01-31 or 2026-01-31T15:04:05Z." placeholder:"TIME"`
	Before int64     `help:"Only entries older than this one." placeholder:"NUMBER"`
	Limit  int       `default:"20" within:"1,500" help:"How many, at most 500." placeholder:"N"`
}

func (a *auditCommand) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListAudit(ctx, client.ListAuditParams(a.auditPage))
	list := cli.List[client.AuditEntry]{
		Columns: "NUMBER>|TIME|WHO|WHAT|ON|CHANGE?",
		Row: func(e *client.AuditEntry) []any {
			on := cli.OrDash(e.Subject)
			if e.Run != nil {
				on = cli.ShortID(*e.Run)
			}
			return []any{strconv.FormatInt(e.ID, 10), e.At, e.Actor, e.Action, on, auditChange(e)}
		},
		Empty: "there are no such entries", Next: page.Next, Before: true,
	}
	if cli.Narrow(term.Room()) { // the changes have no column, but a line each
		list.Below = auditChange
	}
	return list.Print(term, page.Entries, err)
}

// auditChange describes what changed, as "chunk 500 → 100", and other details. Nothing is repeated, also not the
// actor, who has a separate column.
func auditChange(e *client.AuditEntry) string {
	before, after, detail := auditFields(e.Before), auditFields(e.After), auditFields(e.Detail)
	names := maps.Clone(before)
	maps.Copy(names, after)
	told := map[string]bool{cli.EscapeControl("by " + e.Actor): true}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, is := auditValue(before[name]), auditValue(after[name])
		said := cli.EscapeControl(name) + " " + is
		switch {
		case was == is || told[said]:
		case len(before) == 0: // new, as a started run
			parts = append(parts, said)
		default:
			parts = append(parts, cli.EscapeControl(name)+" "+was+" → "+is)
		}
		told[said] = true
	}
	told["reason "+auditValue(after["detail"])] = true // of a hold
	for _, name := range slices.Sorted(maps.Keys(detail)) {
		value := auditValue(detail[name])
		said := cli.EscapeControl(name) + " " + value
		if value != nothing && value != "no" && value != "0" && !told[said] {
			parts = append(parts, said)
		}
	}
	return strings.Join(parts, ", ")
}

func auditFields(doc json.RawMessage) map[string]json.RawMessage {
	fields := map[string]json.RawMessage{}
	_ = json.Unmarshal(doc, &fields) // anything but an object has no fields to show
	return fields
}

const nothing = "none"

func auditValue(doc json.RawMessage) string {
	switch text := string(bytes.TrimSpace(doc)); text {
	case "", "null", `""`, "[]", "{}":
		return nothing
	case "false":
		return "no"
	case "true":
		return "yes"
	default:
		var s string
		if json.Unmarshal(doc, &s) == nil {
			return cli.EscapeControl(s)
		}
		return cli.EscapeControl(text)
	}
}
