package runs

import (
	"context"
	"fmt"
	"io"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

type runCorrect struct {
	runArg
	Items string `aliases:"file" required:"" help:"The items whose data was wrong, as it should be: CSV, NDJSON or Parquet, also gzip or zstd; - is standard input." placeholder:"FILE"`
	cli.KeyFlags
	Cascade bool   `help:"Redo the steps after in any case, not only where a part that they see has changed."`
	Reason  string `help:"Why, for the audit log and for whoever looks at the items." placeholder:"TEXT"`
	DryRun  bool   `help:"Change nothing; say what would be done."`
	waitFlags
	cli.RowFlags
}

func (r *runCorrect) Validate() error {
	return r.Check(r.DryRun)
}

func (r *runCorrect) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	params := client.CorrectParams{Key: r.Key, Format: r.Format, Cascade: r.Cascade, DryRun: r.DryRun,
		Reason: r.Reason, Encoding: r.Encoding, NoHeader: r.NoHeader, Delimiter: r.Delimiter,
		Columns: r.Columns, Rename: r.Rename, Types: r.Types}
	done, err := cli.Upload(term, "--items", r.Items, func(items io.Reader) (client.Corrected, error) {
		return cl.Correct(ctx, r.Ref, params, "application/octet-stream", items, term.Keep())
	})
	if err != nil {
		return err
	}
	return r.end(ctx, term, cl, done.Run, func() error { return cli.Say(term, correctText)(done, nil) })
}

// correctText says what was corrected, or would be, and what comes of it.
func correctText(done *client.Corrected) string {
	verb, dry := "has", ""
	if done.DryRun {
		verb, dry = "would have", "dry run: "
	}
	text := fmt.Sprintf("%srun %s %s %s corrected, as generation %d", dry, done.Run, verb, itemCount(done.Items),
		done.Generation)
	if done.Key != "" {
		text += "; keys from " + cli.Inert(done.Key)
	}
	text += "\n  " + keysText(done.Examples, done.Items) + "\n"
	if done.Same > 0 {
		text += "  " + itemCount(done.Same) + " given with the data that the run has, and left alone\n"
	}
	if n := done.Items - done.Begun; n > 0 {
		text += "  " + itemCount(n) + " of them had not been begun with\n"
	}
	if done.Begun > 0 {
		text += resetSteps(done.Steps)
	}
	switch {
	case done.DryRun:
		return text + "nothing was changed"
	case done.Paused != "":
		return text + pausedStill(done.Paused, done.Run)
	}
	return text + "follow it with: tranche run watch " + done.Run
}

// pausedStill says that nothing comes of a change yet.
func pausedStill(why, run string) string {
	return fmt.Sprintf("the run is paused (%s): nothing is done again until it is resumed: tranche run resume %s",
		cli.Inert(why), run)
}
