package main

import (
	"context"
	"errors"
	"strings"

	"github.com/tranchehq/tranche/orchestrator/client"
)

type runGroups struct {
	Ref string `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	By  string `placeholder:"FIELD" help:"A field of the payloads, at their top."`
}

// Run counts the items of a run by the value of a field.
func (r *runGroups) Run(ctx context.Context, term *console) error {
	cl, err := term.client()
	if err != nil {
		return err
	}
	found, err := cl.GetGroups(ctx, r.Ref, client.GetGroupsParams{By: r.By}, term.keep())
	if err != nil {
		return err
	}
	if r.By == "" {
		if len(found.Fields) == 0 {
			return errors.New("--by FIELD is missing, and the payloads of the first items have no field to group by")
		}
		return errors.New("--by FIELD is missing; the first items have: " + inert(strings.Join(found.Fields, ", ")))
	}
	if term.json {
		return term.sent()
	}
	return term.printf("%s", groupsText(&found))
}

func groupsText(found *client.PayloadGroups) string {
	var t table
	t.row(inert(strings.ToUpper(found.By)), "ITEMS", "DONE", "FAILED", "IN PROGRESS", "DONE OF ALL")
	row := func(name string, g *client.PayloadGroup) {
		t.row(name, count(g.Items), count(g.Done), count(g.Failed), count(g.InProgress),
			percent(float64(g.Done)/float64(max(g.Items, 1))))
	}
	for i := range found.Groups {
		name := "(none)"
		if value := found.Groups[i].Value; value != nil {
			name = short(inert(*value), 40)
		}
		row(name, &found.Groups[i])
	}
	if found.Others != nil {
		row("("+count(int64(found.Others.Values))+" others)", found.Others)
	}
	return t.String()
}
