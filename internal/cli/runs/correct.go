package runs

import (
	"context"
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// Correct is tranche run correct.
type Correct struct {
	Ref       string `arg:"" name:"run" help:"An id, a piece of one, a name, or last."`
	Items     string `aliases:"file" required:"" help:"The items whose data was wrong, as it should be: CSV, NDJSON or Parquet, also gzip or zstd; - is standard input." placeholder:"FILE"`
	KeyColumn string `name:"key" help:"The column or field with the key of an item. Default: key, then id, then the first column." placeholder:"COLUMN"`
	Format    string `enum:",csv,ndjson,parquet" default:"" help:"csv, ndjson or parquet; recognised when absent." placeholder:"FORMAT"`
	Cascade   bool   `help:"Redo the steps after in any case, not only where a part that they see has changed."`
	Reason    string `help:"Why, for the audit log and for whoever looks at the items." placeholder:"TEXT"`
	DryRun    bool   `help:"Change nothing; say what would be done."`
	WaitFlags

	Encoding  string   `help:"Of the text: utf-8, latin-1, windows-1252, utf-16, utf-16le or utf-16be. This and what follows: as the plan says, when absent." placeholder:"NAME"`
	NoHeader  bool     `help:"CSV begins with its first row."`
	Delimiter string   `help:"Between fields of CSV: comma, semicolon, tab or bar; found when absent." placeholder:"NAME"`
	Columns   []string `help:"Columns or fields to keep; without a header the names of all columns." placeholder:"NAME"`
	Rename    []string `help:"Another name for a column or field; may stand more than once." placeholder:"OLD=NEW"`
	Types     []string `help:"What a field becomes: number, text, bool or json; may stand more than once." placeholder:"FIELD=TYPE"`
}

// Validate is called by kong.
func (r *Correct) Validate() error {
	return r.Check(r.DryRun)
}

// Run corrects items.
func (r *Correct) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	items, size, err := cli.OpenItems("--items", r.Items, term.In)
	if err != nil {
		return err
	}
	defer func() { _ = items.Close() }()
	upload := &cli.Upload{From: items, Size: size, Term: term, Live: cli.IsTerminal(term.Err)}
	params := client.CorrectParams{Key: r.KeyColumn, Format: r.Format, Cascade: r.Cascade, DryRun: r.DryRun,
		Reason: r.Reason, Encoding: r.Encoding, NoHeader: r.NoHeader, Delimiter: r.Delimiter,
		Columns: r.Columns, Rename: r.Rename, Types: r.Types}
	done, err := cl.Correct(ctx, r.Ref, params, "application/octet-stream", upload, term.Keep())
	upload.End()
	switch {
	case err != nil && upload.Err != nil:
		return fmt.Errorf("read %s: %w", r.Items, upload.Err)
	case err != nil:
		return err
	case term.JSON && !r.Wait:
		return term.Sent()
	case !term.JSON:
		if err := term.Printf("%s", correctText(&done)); err != nil {
			return err
		}
	}
	if !r.Wait {
		return nil
	}
	return r.Follow(ctx, term, cl, done.Run)
}

// correctText says what was corrected, or would be, and what comes of it.
func correctText(done *client.Corrected) string {
	var b strings.Builder
	verb := "has"
	if done.DryRun {
		verb = "would have"
		b.WriteString("dry run: ")
	}
	fmt.Fprintf(&b, "run %s %s %s corrected, as generation %d", done.Run, verb, ItemCount(done.Items),
		done.Generation)
	if done.Key != "" {
		fmt.Fprintf(&b, "; keys from %s", cli.Inert(done.Key))
	}
	b.WriteString("\n")
	fmt.Fprintf(&b, "  %s\n", keysText(done.Examples, done.Items))
	if done.Same > 0 {
		fmt.Fprintf(&b, "  %s given with the data that the run has, and left alone\n", ItemCount(done.Same))
	}
	if n := done.Items - done.Begun; n > 0 {
		fmt.Fprintf(&b, "  %s of them had not been begun with\n", ItemCount(n))
	}
	if done.Begun > 0 {
		b.WriteString(resetSteps(done.Steps))
	}
	switch {
	case done.DryRun:
		b.WriteString("nothing was changed\n")
	case done.Paused != "":
		fmt.Fprintf(&b, "the run is paused (%s): nothing is done again until it is resumed: tranche run resume %s\n",
			cli.Inert(done.Paused), done.Run)
	default:
		fmt.Fprintf(&b, "follow it with: tranche run watch %s\n", done.Run)
	}
	return b.String()
}
