package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// Erase takes what is kept of a key out of the database.
type Erase struct {
	Key    string `required:"" help:"The key of items, and of operations of collectors." placeholder:"KEY"`
	Of     string `name:"run" help:"Out of this run only: an id, a piece of one, a name, or last." placeholder:"RUN"`
	Reason string `help:"Why, for the audit log; do not name the key in it." placeholder:"TEXT"`
	DryRun bool   `help:"Change nothing; say what would be erased."`
	Yes    bool   `short:"y" help:"Erase; without it only what would be erased is said."`
}

// Run erases, when somebody means it: nothing brings it back.
func (e *Erase) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	set := client.EraseSettings{Key: e.Key, Run: e.Of, Reason: e.Reason, DryRun: e.DryRun || !e.Yes}
	done, err := cl.Erase(ctx, set, term.Keep())
	if err != nil {
		return err
	}
	if term.JSON {
		err = term.Sent()
	} else {
		err = term.Printf("%s", erasedText(&done))
	}
	if err == nil && set.DryRun && !e.DryRun {
		return cli.Usage("nothing was erased: it cannot be brought back, so say --yes")
	}
	return err
}

func erasedText(d *client.ErasedKey) string {
	var b strings.Builder
	verb := "erased"
	if d.DryRun {
		verb = "dry run, would be erased"
	}
	fmt.Fprintf(&b, "%s, out of %s:\n", verb, cli.Plural(int64(len(d.Runs)), "run"))
	var t cli.Table
	t.Right = map[int]bool{1: true}
	for _, row := range []struct {
		n    int64
		what string
	}{
		{d.Erased.Items, "items: key and payload"}, {d.Erased.EarlierPayloads, "payloads that items had before"},
		{d.Erased.Results, "results, and messages of final errors"},
		{d.Erased.Errors, "messages of errors that were tried again, or of chunks"},
		{d.Erased.DeadLetters, "dead letters"}, {d.Erased.Quarantine, "messages in quarantine"},
		{d.Erased.Operations, "operations of collectors"}, {d.Erased.Texts, "texts in which the key stood"},
	} {
		if row.n > 0 {
			t.Row(" ", cli.Count(row.n), row.what)
		}
	}
	b.WriteString(t.String())
	if d.DryRun {
		b.WriteString("nothing was changed\n")
	} else {
		fmt.Fprintf(&b, "%s stands where the key stood\n", d.Marker)
	}
	b.WriteString("not reached:\n")
	for _, what := range d.Unreached {
		fmt.Fprintf(&b, "  - %s\n", what)
	}
	return b.String()
}
