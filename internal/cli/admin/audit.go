package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Audit shows what operators did.
type Audit struct {
	Of     string       `name:"run" help:"Only what is about this run: an id, a piece of one, a name, or last." placeholder:"RUN"`
	Actor  string       `help:"Only what this one did; tranche is what nodes did by themselves." placeholder:"NAME"`
	Action string       `help:"Only this: start, rerun, pause, resume, cancel, endpoint_set, …" placeholder:"ACTION"`
	Since  cli.PastTime `help:"Only since then: 90m, 24h, 2026-01-31 or 2026-01-31T15:04:05Z." placeholder:"TIME"`
	Before int64        `help:"Only what is older than this entry." placeholder:"NUMBER"`
	Limit  int          `default:"20" help:"How many." placeholder:"N"`
}

// Validate is called by kong.
func (a *Audit) Validate() error { return cli.Within("--limit", &a.Limit, inspect.MaxAudit) }

// Run lists the audit log.
func (a *Audit) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	page, err := cl.ListAudit(ctx, client.ListAuditParams{
		Run: a.Of, Actor: a.Actor, Action: a.Action, Since: a.Since.Time, Before: a.Before, Limit: a.Limit,
	}, term.Keep())
	err = cli.Print(term, func(page *client.AuditPage, room int) string {
		if len(page.Entries) == 0 {
			return "nothing of this kind was done\n"
		}
		return auditText(page.Entries, room)
	})(page, err)
	if err == nil && page.Next != 0 && !term.JSON {
		term.Note("there are more; go on with --before %d", page.Next)
	}
	return err
}

func auditText(entries []client.AuditEntry, room int) string {
	list := cli.List[client.AuditEntry]{
		Columns: "NUMBER>|TIME|WHO|WHAT|ON|CHANGE?",
		Row: func(e *client.AuditEntry) []any {
			on := cli.OrDash(e.Subject)
			if e.Run != nil {
				on = cli.ShortID(*e.Run)
			}
			return []any{strconv.FormatInt(e.ID, 10), e.At, e.Actor, e.Action, on, auditChange(e)}
		},
	}
	text := list.Text(entries, room)
	if cli.Narrow(room) {
		return withChanges(text, entries, room)
	}
	return text
}

// withChanges puts what changed below the line of each entry, where a column of it would have no room.
func withChanges(text string, entries []client.AuditEntry, room int) string {
	head, rest, _ := strings.Cut(text, "\n")
	out := cli.Prose{Columns: cli.ExplainWidth(room)}
	out.B.WriteString(head + "\n")
	for i := range entries {
		var line string
		line, rest, _ = strings.Cut(rest, "\n")
		out.B.WriteString(line + "\n")
		if change := auditChange(&entries[i]); change != "" {
			out.Paragraph(strings.Repeat(" ", 8), change)
		}
	}
	return out.B.String()
}

// auditChange says what changed, as "chunk 500 → 100", and then what else there is to say. Nothing is said twice: who
// did it has a column of its own.
func auditChange(e *client.AuditEntry) string {
	before, after, detail := auditFields(e.Before), auditFields(e.After), auditFields(e.Detail)
	names := maps.Clone(before)
	maps.Copy(names, after)
	told := map[string]bool{cli.Inert("by " + e.Actor): true}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, is := auditValue(before[name]), auditValue(after[name])
		switch {
		case was == is || told[cli.Inert(name)+" "+is]:
		case len(before) == 0: // it is new, as a run that starts
			parts = append(parts, cli.Inert(name)+" "+is)
		default:
			parts = append(parts, cli.Inert(name)+" "+was+" → "+is)
		}
		told[cli.Inert(name)+" "+is] = true
	}
	told["reason "+auditValue(after["detail"])] = true // of a hold
	for _, name := range slices.Sorted(maps.Keys(detail)) {
		value := auditValue(detail[name])
		if value != nothing && value != "no" && value != "0" && !told[cli.Inert(name)+" "+value] {
			parts = append(parts, cli.Inert(name)+" "+value)
		}
	}
	return strings.Join(parts, ", ")
}

func auditFields(doc json.RawMessage) map[string]json.RawMessage {
	fields := map[string]json.RawMessage{}
	_ = json.Unmarshal(doc, &fields) // what is no object has no fields to show
	return fields
}

// nothing is how a value shows that is not there.
const nothing = "none"

// auditValue writes a value as people read it.
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
			return cli.Inert(s)
		}
		return cli.Inert(text)
	}
}
