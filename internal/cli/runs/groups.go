package runs

import (
	"context"
	"errors"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// Groups is tranche run groups.
type Groups struct {
	Ref   string `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	By    string `placeholder:"FIELD" help:"A field of the payloads, at their top."`
	Lanes bool   `help:"By lane or partition, of a run with order_by."`
}

// Run counts the items of a run by the value of a field, or by lane.
func (r *Groups) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	found, err := cl.GetGroups(ctx, r.Ref, client.GetGroupsParams{By: r.By, Lanes: r.Lanes}, term.Keep())
	if err != nil {
		return err
	}
	if r.By == "" && !r.Lanes {
		if len(found.Fields) == 0 {
			return errors.New("--by FIELD is missing, and the payloads of the first items have no field to group by")
		}
		return errors.New("--by FIELD is missing; the first items have: " + cli.Inert(strings.Join(found.Fields, ", ")))
	}
	if term.JSON {
		return term.Sent()
	}
	return term.Printf("%s", groupsText(&found))
}

func groupsText(found *client.PayloadGroups) string {
	var t cli.Table
	t.Row(cli.Inert(strings.ToUpper(found.By)), "ITEMS", "DONE", "FAILED", "IN PROGRESS", "DONE OF ALL")
	row := func(name string, g *client.PayloadGroup) {
		t.Row(name, cli.Count(g.Items), cli.Count(g.Done), cli.Count(g.Failed), cli.Count(g.InProgress),
			percent(float64(g.Done)/float64(max(g.Items, 1))))
	}
	for i := range found.Groups {
		name := "(none)"
		if value := found.Groups[i].Value; value != nil {
			name = cli.Inert(*value)
		}
		row(name, &found.Groups[i])
	}
	if found.Others != nil {
		row("("+cli.Count(int64(found.Others.Values))+" others)", found.Others)
	}
	return t.String()
}
