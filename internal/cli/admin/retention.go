package admin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

type retentionCommands struct {
	Show retentionShow `cmd:"" default:"1" help:"Show how long each kind is kept, and what is being deleted."`
	Set  retentionSet  `cmd:"" help:"Set the limits of a kind."`
	Run  retentionRun  `cmd:"" help:"Delete data past its limits now, instead of within ten minutes."`
}

type retentionShow struct{}

func (retentionShow) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	return cli.Print(term, retentionText)(cl.ShowRetention(ctx))
}

func retentionText(list *client.RetentionList, room int) string {
	kinds := cli.List[client.RetentionKind]{
		Columns: "KIND|AGE>|COUNT>|BYTES>|DELETED>|LAST|SET BY",
		Row: func(k *client.RetentionKind) []any {
			return []any{k.Kind, cli.OrDash(k.Age), cli.OrDash(cli.If(k.MaxCount != 0, "%v", k.MaxCount)), sizeText(k.MaxBytes),
				k.Deleted, cli.OrDash(cli.If(k.LastAt != nil, "%v (%v)", k.LastAt, k.LastDeleted)), cli.OrDash(k.ChangedBy)}
		},
	}
	text := kinds.Text(list.Kinds, room) + "a kind without limits is kept permanently\n"
	if len(list.Going) == 0 {
		return text
	}
	going := cli.List[client.GoneRun]{
		Columns: "DELETING|PLAN|ITEMS>|SINCE|ROWS>|PAST",
		Row: func(g *client.GoneRun) []any {
			return []any{cli.ShortID(g.Run), g.Plan, g.Items, g.DeletedAt, g.Rows, g.Why}
		},
	}
	return text + "\n" + going.Text(list.Going, room)
}

type retentionSet struct {
	Kind     string  `arg:"" help:"A kind that tranche retention show lists."`
	Age      *string `type:"limit" off:"off" like:"an age like 90d" help:"Keep data up to this age: 90d, 36h; or off." placeholder:"AGE"`
	MaxCount *int64  `type:"limit" off:"off" within:"1," help:"Keep the newest N; or off." placeholder:"N"`
	MaxBytes *size   `type:"limit" off:"off" within:"1," like:"a size like 50GiB," help:"Keep roughly this much of the newest: 50GiB; or off." placeholder:"SIZE"`
	KeepAll  bool    `help:"Keep everything: all limits off."`
}

func (r *retentionSet) Validate() error {
	given := r.Age != nil || r.MaxCount != nil || r.MaxBytes != nil
	switch {
	case !given && !r.KeepAll:
		return cli.Usage("give --age, --max-count or --max-bytes: a limit, or off; or --keep-all")
	case given && r.KeepAll:
		return cli.Usage("--keep-all takes all limits away; leave it out, or --age, --max-count and --max-bytes")
	}
	return nil
}

func (r *retentionSet) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	list, err := cl.ShowRetention(ctx)
	if err != nil {
		return err
	}
	var set client.RetentionSettings // for an unknown kind the server's error lists the kinds
	for _, k := range list.Kinds {
		if k.Kind == r.Kind {
			set = client.RetentionSettings{Age: k.Age, MaxCount: k.MaxCount, MaxBytes: k.MaxBytes}
		}
	}
	r.change(&set)
	return cli.Say(term, keptText)(cl.SetRetention(ctx, r.Kind, set))
}

func (r *retentionSet) change(set *client.RetentionSettings) {
	if r.KeepAll {
		*set = client.RetentionSettings{}
	}
	if r.Age != nil {
		set.Age = *r.Age
	}
	if r.MaxCount != nil {
		set.MaxCount = *r.MaxCount
	}
	if r.MaxBytes != nil {
		set.MaxBytes = int64(*r.MaxBytes)
	}
	set.KeepAll = set.Age == "" && set.MaxCount == 0 && set.MaxBytes == 0 // no limit remains
}

func keptText(k *client.RetentionKind) string {
	limits := cli.Join(", ", cli.If(k.Age != "", "for %v", k.Age),
		cli.If(k.MaxCount != 0, "at most the newest %v", k.MaxCount),
		cli.If(k.MaxBytes != 0, "up to %v", sizeText(k.MaxBytes)))
	if limits == "" {
		return k.Kind + " are kept permanently"
	}
	return k.Kind + " are kept " + limits + "; see what would be deleted with: tranche retention run --dry-run"
}

type retentionRun struct {
	DryRun bool `help:"Change nothing; show what would be deleted."`
}

func (r *retentionRun) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	due, err := cl.RunRetention(ctx, client.RetentionRun{DryRun: r.DryRun})
	due.Kinds = slices.DeleteFunc(due.Kinds, func(d client.KindDue) bool { return d.Count == 0 })
	err = (&cli.List[client.KindDue]{
		Columns: "KIND|PAST>|BYTES>|ENDED BEFORE|OLDEST|NEWEST",
		Row: func(d *client.KindDue) []any { // bytes may not have been measured yet
			return []any{d.Kind, d.Count, cli.OrDash(cli.If(d.Bytes != 0, "~%v", d.Bytes)), d.Before, d.Oldest, d.Newest}
		},
		Empty: "nothing is past its limits",
	}).Print(term, due.Kinds, err)
	if err == nil && !term.JSON && !r.DryRun && len(due.Kinds) > 0 {
		term.Note("the leader deletes them now, in small pieces; see tranche retention show")
	}
	return err
}

type eraseCommand struct {
	Key    string `required:"" help:"The key of items, and of operations of collectors." placeholder:"KEY"`
	Of     string `name:"run" help:"Out of this run only: ID, part of an ID, name, or last." placeholder:"RUN"`
	Reason string `help:"Why, for the audit log; do not name the key in it." placeholder:"TEXT"`
	DryRun bool   `help:"Change nothing; show what would be erased."`
	Yes    bool   `short:"y" help:"Erase; without it, only show what would be erased."`
}

// Run erases only with --yes, because it is irreversible.
func (e *eraseCommand) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	set := client.EraseSettings{Key: e.Key, Run: e.Of, Reason: e.Reason, DryRun: e.DryRun || !e.Yes}
	found, err := cl.Erase(ctx, set)
	err = cli.Say(term, erasedText)(found, err)
	switch {
	case err != nil:
		return err
	case found.Erased == client.Erased{}:
		return fmt.Errorf("nothing was erased: no run, operation, dead letter or message has the key %q; check its spelling",
			e.Key)
	case set.DryRun && !e.DryRun:
		return cli.Usage("nothing was erased: erasure is permanent; confirm it with --yes")
	}
	return nil
}

func erasedText(d *client.ErasedKey) string {
	text, end := "erased", "the key is now "+d.Marker+"\n"
	if d.DryRun {
		text, end = "dry run, would be erased", "nothing was changed\n"
	}
	t := cli.NewTable("|>|", 0)
	for _, row := range []struct {
		n    int64
		what string
	}{
		{d.Erased.Items, "items: key and payload"}, {d.Erased.EarlierPayloads, "payloads that items had before"},
		{d.Erased.Results, "results, and messages of final errors"},
		{d.Erased.Errors, "messages of errors that were retried, or of chunks"},
		{d.Erased.DeadLetters, "dead letters"}, {d.Erased.Quarantine, "messages in quarantine"},
		{d.Erased.Operations, "operations of collectors"}, {d.Erased.Texts, "texts that contained the key"},
	} {
		if row.n > 0 {
			t.Row(" ", row.n, row.what)
		}
	}
	return fmt.Sprintf("%s, out of %s:\n%s%snot reached:\n  - %s", text, cli.Plural(int64(len(d.Runs)), "run"), t, end,
		strings.Join(d.Unreached, "\n  - "))
}
