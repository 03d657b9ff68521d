package admin

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

type actCommands struct {
	List    actList    `cmd:"" help:"List acts, those to be confirmed first, with what each would do."`
	Confirm actConfirm `cmd:"" help:"Confirm and carry out what another administrator requested."`
	Reject  actReject  `cmd:"" help:"Reject an act, or withdraw it."`
}

type actList struct{}

func (*actList) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list, err := cl.ListActs(ctx)
	return (&cli.List[client.Act]{
		Columns: "ID|ACT|STATE|ASKED BY|UNTIL|SETTLED BY",
		Row: func(a *client.Act) []any {
			return []any{cli.ShortID(a.ID), a.What, a.State, a.AskedBy, a.ExpiresAt, a.SettledBy}
		},
		Below: func(a *client.Act) string {
			text := cli.Text("%v %v %v\n", a.Method, a.Path, inputText(a.Input))
			if len(a.Preview) > 0 && string(a.Preview) != "null" {
				text += cli.Text("preview: %v\n", inputText(a.Preview))
			}
			return text
		},
		Empty: "no act waits for another administrator's confirmation (serve --four-eyes)",
	}).Print(term, list.Acts, err)
}

func inputText(doc []byte) string {
	var line bytes.Buffer
	if json.Compact(&line, doc) != nil {
		return string(doc)
	}
	return line.String()
}

type actConfirm struct {
	ID string `arg:"" help:"ID, or its beginning."`
}

func (a *actConfirm) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	done, err := cl.ConfirmAct(ctx, a.ID)
	return cli.Say(term, func(done *client.ConfirmedAct) string {
		return cli.Text("done, as %v asked: %v\n%v", done.Act.AskedBy, done.Act.What, inputText(done.Answer))
	})(done, seeList(err, "act"))
}

type actReject struct {
	ID string `arg:"" help:"ID, or its beginning."`
}

func (a *actReject) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	gone, err := cl.RejectAct(ctx, a.ID)
	return cli.Say(term, func(gone *client.Act) string {
		return cli.Text("rejected: %v, asked by %v", gone.What, gone.AskedBy)
	})(gone, seeList(err, "act"))
}
