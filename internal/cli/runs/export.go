package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// notHeldHeader is the server's count of the cells of a workbook that do not hold what is exported.
const notHeldHeader = "Tranche-Cells-Not-Held"

type runExport struct {
	runArg
	Format  string   `enum:",ndjson,csv,parquet,xlsx" default:"" help:"ndjson, csv, parquet or xlsx. Default: by the end of the name in --out, else ndjson." placeholder:"FORMAT"`
	Step    string   `help:"The step whose results to export. Default: the only one that no other needs." placeholder:"STEP"`
	State   []string `enum:"done,failed,missing" help:"Only items in this state; may stand more than once." placeholder:"STATE"`
	With    []string `enum:"payload" help:"payload: what items carry, too." placeholder:"WHAT"`
	Flat    bool     `help:"A column for each field of payloads and results, with --with payload for the payloads."`
	Columns []string `help:"Only these columns, in this order; with --flat any of its columns." placeholder:"A,B"`
	Raw     bool     `help:"Write CSV cells as they are, also those that a spreadsheet would run as formulas."`
	Out     string   `short:"o" xor:"to" help:"The file to write; standard output when absent." placeholder:"FILE"`

	Dir    string `xor:"to" help:"Write each result to a file of its own in this new directory, with an index." placeholder:"DIR"`
	Name   string `default:"{key}.{ext}" help:"With --dir, the names of the files, with {key}, {ordinal}, {step}, {ext} and {shard} (a number for each 1000 items)." placeholder:"TEMPLATE"`
	Index  string `enum:"ndjson,csv" default:"ndjson" help:"With --dir, the format of the index." placeholder:"FORMAT"`
	Resume bool   `help:"With --dir, go on with an export that broke off: files that are there and right are kept."`
	itemChoice
	evidence
}

func (r *runExport) Validate() error {
	r.Format = cmp.Or(r.Format, formatOf(r.Out))
	switch {
	case r.Dir == "" && r.Resume:
		return errors.New("--resume goes with --dir")
	case r.Dir == "" && r.Keys != "":
		return errors.New("--keys goes with --dir")
	case r.Dir != "" && (len(r.Code)+len(r.Group) > 0 || r.evidence != evidence{}):
		return errors.New("--dir writes the results of keys, or of all that is done; it does not go with evidence")
	case r.Dir != "" && (len(r.State)+len(r.With)+len(r.Columns) > 0 || r.Flat || r.Format != "ndjson"):
		return errors.New("--dir writes the results of what is done; --format, --state, --with, --flat and --columns " +
			"do not go with it")
	case r.Raw && r.Format != "csv" && r.Index != "csv":
		return errors.New("--raw goes with --format csv, or --dir with --index csv")
	}
	_, err := newFileNames(r.Name)
	return err
}

// formatOf is the format of a file by its name.
func formatOf(name string) string {
	switch end := strings.ToLower(filepath.Ext(name)); end {
	case ".csv", ".parquet", ".xlsx":
		return end[1:]
	}
	return "ndjson"
}

// Run exports. A file appears under its name only when it is whole.
func (r *runExport) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	if r.Dir != "" {
		return r.files(ctx, term, cl)
	}
	if term.JSON && r.Format != "ndjson" {
		return cli.Usage("--json and --format " + r.Format + " exclude each other")
	}
	if (r.Format == "parquet" || r.Format == "xlsx") && (r.Out == "" || r.Out == "-") && cli.IsTerminalOut(term) {
		return cli.Usage(r.Format + " is nothing to read on a terminal; give --out FILE")
	}
	stream, err := cl.ExportRun(ctx, r.Ref, client.ExportRunParams{Format: r.Format, Step: r.Step, State: r.State,
		Raw: r.Raw, Key: r.Key, Code: r.Code, Group: r.Group, Service: r.Service, Since: r.Since.Time, Until: r.Until.Time,
		Where: r.Where, WhereResult: r.WhereResult, Corrected: r.Corrected, With: r.With, Flat: r.Flat, Columns: r.Columns})
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	if n := stream.Header.Get(notHeldHeader); n != "" {
		term.Note("%s cells of the workbook do not hold what is exported: it is longer than 32,767 characters, or has one "+
			"that a workbook cannot hold; export it as ndjson, csv or parquet", n)
	}
	if r.Out == "" || r.Out == "-" {
		return cli.CopyStream(term.Out, stream)
	}
	size, err := writeWhole(r.Out, stream)
	if err != nil {
		return err
	}
	if term.JSON {
		return term.Document(map[string]any{"file": r.Out, "bytes": size})
	}
	term.Note("wrote %s bytes to %s", cli.Count(size), r.Out)
	return nil
}

// writeWhole writes a file that only its owner may read, and puts it under its name when it is whole. What is there and
// is no plain file (a device, a pipe, a link) is written to, never replaced.
func writeWhole(name string, from io.Reader) (size int64, err error) {
	if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return writeTo(name, from)
	}
	file, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return 0, fmt.Errorf("--out %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close(), os.Remove(file.Name()))
		}
	}()
	if size, err = io.Copy(file, from); err != nil {
		return size, cli.BrokenOff(err)
	}
	if err := file.Sync(); err != nil {
		return size, fmt.Errorf("--out %s: %w", name, err)
	}
	if err := os.Rename(file.Name(), name); err != nil {
		return size, fmt.Errorf("--out %s: %w", name, err)
	}
	return size, file.Close()
}

func writeTo(name string, from io.Reader) (size int64, err error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return 0, fmt.Errorf("--out %s: %w", name, err)
	}
	size, err = io.Copy(file, from)
	if err = errors.Join(err, file.Close()); err != nil {
		return size, fmt.Errorf("--out %s: %w", name, err)
	}
	return size, nil
}
