package runs

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
)

type runErrors struct {
	runArg
	All bool `help:"Every failed item instead of groups."`
}

func (r *runErrors) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	if r.All {
		stream, err := cl.FailedItems(ctx, r.Ref)
		if err != nil {
			return err
		}
		defer func() { _ = stream.Close() }()
		return cli.PrintLines(term, stream, errorLine)
	}
	return cli.Print(term, errorText)(cl.ListErrors(ctx, r.Ref, client.ListErrorsParams{}, term.Keep()))
}

func errorText(found *client.ErrorGroups, room int) string {
	if len(found.Groups) == 0 {
		return "no failed items\n"
	}
	var groups strings.Builder
	for i := range found.Groups {
		groups.WriteString(groupText(&found.Groups[i], room))
	}
	text := groups.String()
	if found.MoreGroups > 0 {
		text += fmt.Sprintf("and %s more, of %s; --all lists each item\n", cli.Plural(found.MoreGroups, "group"),
			cli.Plural(found.MoreItems, "item"))
	}
	run := cli.ShortID(found.Run)
	text += "\n"
	for i := range found.Groups {
		for _, step := range found.Groups[i].Resets {
			g := &found.Groups[i]
			text += fmt.Sprintf("a part is bad, and a re-run gives it again; when its source is mended, have it made again:\n"+
				"  tranche run reset %s --step %s --group %s --failed-at %s\n", run, step, g.ID, g.Step)
		}
	}
	again := slices.IndexFunc(found.Groups, func(g client.ErrorGroup) bool {
		return g.Code != workqueue.CodeInvalid && len(g.Resets) == 0
	})
	if again >= 0 {
		text += fmt.Sprintf("run a group again with:  tranche run rerun %[1]s --group %[2]s\n"+
			"run all of them again:    tranche run rerun %[1]s --failed\n", run, found.Groups[again].ID)
	}
	return text + fmt.Sprintf("correct their data:       tranche run export %[1]s --state failed --flat --with payload "+
		"--format xlsx -o failed.xlsx\n"+
		"  and give it back:       tranche run correct %[1]s --items failed.xlsx\n"+
		"accept a group:           tranche run accept %[1]s --group %[2]s --reason TEXT\n", run, found.Groups[0].ID)
}

// groupText is a group with its examples, a line each.
func groupText(g *client.ErrorGroup, room int) string {
	var text strings.Builder
	line := func(format string, args ...any) {
		said := fmt.Sprintf(format, args...)
		if room > 0 {
			said = cli.Short(said, max(room, 40))
		}
		text.WriteString(said + "\n")
	}
	line("%s  %s  %s  %s", g.ID, cli.Count(g.Count+g.Also), cli.Inert(g.Code), cli.Inert(g.Shape))
	line("    %s", groupOrigin(g))
	for _, e := range g.Examples {
		line("    %s  %s", cli.Inert(e.Key), cli.Inert(e.Message))
	}
	if more := g.Count + g.Also - int64(len(g.Examples)); more > 0 {
		line("    and %s more", cli.Count(more))
	}
	if g.Also > 0 {
		line("    %s of them are counted with a step before that failed them, too", cli.Count(g.Also))
	}
	return text.String()
}

// groupOrigin says where and when a group of errors came from.
func groupOrigin(g *client.ErrorGroup) string {
	origin := "step " + cli.Inert(g.Step)
	if g.Optional {
		origin += " (optional: the items went on without it)"
	}
	if g.First != nil && g.Last != nil {
		origin += ", " + between(*g.First, *g.Last)
	}
	if len(g.Services) > 0 {
		origin += ", by " + cli.Inert(strings.Join(g.Services, ", "))
	}
	switch g.Accepted {
	case 0:
	case g.Count + g.Also:
		origin = "accepted; " + origin
	default:
		origin = cli.Count(g.Accepted) + " of them accepted; " + origin
	}
	return origin
}

// between names a time, or two and no date twice.
func between(first, last time.Time) string {
	from, to := cli.Moment(first), cli.Moment(last)
	switch {
	case from == to:
		return from
	case from[:10] == to[:10]:
		return from + " to " + to[11:]
	default:
		return from + " to " + to
	}
}

// errorLine is an item that failed; others have none.
func errorLine(item *client.ExportedItem) string {
	if item.Error == nil {
		return ""
	}
	return fmt.Sprintf("%s\t%s\t%s", cli.Inert(item.Key), cli.Inert(item.Error.Code), cli.Inert(item.Error.Message))
}

type runHistory struct{ runArg }

func (r *runHistory) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, historyText)(cl.GetHistory(ctx, r.Ref, term.Keep()))
}

func historyText(history *client.RunHistory, _ int) string {
	slices.Reverse(history.Entries) // oldest first
	list := cli.List[client.HistoryEntry]{Columns: "AT|KIND|WHAT|BY, OR AT|", Row: func(e *client.HistoryEntry) []any {
		return []any{e.At, e.Kind, e.What, e.Who, e.Text}
	}}
	return list.Text(history.Entries, 0)
}

type runNote struct {
	runArg
	Text string `arg:"" help:"What is to be known of the run, 2,000 characters at the most."`
}

func (r *runNote) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, historyText)(cl.NoteRun(ctx, r.Ref, client.RunNote{Text: r.Text}, term.Keep()))
}
