package runs

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// notHeldHeader counts the cells of a workbook that cannot hold their value.
const notHeldHeader = "Tranche-Cells-Not-Held"

type runExport struct {
	runArg
	Format  string   `enum:",ndjson,csv,parquet,xlsx" default:"" help:"ndjson, csv, parquet or xlsx. Default: by the end of the name in --out, else ndjson." placeholder:"FORMAT"`
	Step    string   `help:"The step whose results to export. Default: the only one that no other needs." placeholder:"STEP"`
	State   []string `enum:"done,failed,missing" help:"Only items in this state; repeatable." placeholder:"STATE"`
	Include []string `enum:"payload" help:"payload: add the items' payloads." placeholder:"WHAT"`
	Parts   bool     `help:"The results and errors of all steps, in place of the result."`
	Flat    bool     `help:"A column for each field of payloads and results, with --include payload for the payloads."`
	Columns []string `help:"Only these columns, in this order; with --flat any of its columns." placeholder:"A,B"`
	Raw     bool     `help:"Write CSV cells unchanged, also those that a spreadsheet would run as formulas."`
	Out     string   `short:"o" xor:"to" help:"The file to write; standard output when absent." placeholder:"FILE"`

	Dir    string `xor:"to" help:"Write each result to a separate file in this new directory, with an index." placeholder:"DIR"`
	Name   string `default:"{key}.{ext}" help:"With --dir, the names of the files, with {key}, {ordinal}, {step}, {ext} and {shard} (a number for each 1000 items)." placeholder:"TEMPLATE"`
	Index  string `enum:"ndjson,csv" default:"ndjson" help:"With --dir, the format of the index." placeholder:"FORMAT"`
	Resume bool   `help:"With --dir, continue an interrupted export, keeping correct files."`
	itemChoice
	evidence
}

func (r *runExport) Validate() error {
	format, unknown := formatOf(r.Format, r.Out)
	r.Format = format
	switch {
	case r.Dir == "" && (r.Resume || r.Keys != ""):
		return errors.New("--resume and --keys go with --dir")
	case r.Dir != "" && (len(r.Code)+len(r.Group) > 0 || r.evidence != evidence{}):
		return errors.New("--dir writes the results of keys, or of all that is done; it does not go with evidence")
	case r.Dir != "" && (len(r.State)+len(r.Include)+len(r.Columns) > 0 || r.Flat || r.Parts || r.Format != "ndjson"):
		return errors.New("--dir writes the results of what is done; --format, --state, --include, --parts, --flat and " +
			"--columns do not go with it")
	case r.Raw && r.Format != "csv" && r.Index != "csv":
		return errors.New("--raw goes with --format csv, or --dir with --index csv")
	}
	_, err := newFileNames(r.Name)
	return cmp.Or(unknown, err)
}

// formatOf returns the requested format, or else that of the file's name.
func formatOf(asked, name string) (string, error) {
	if asked != "" {
		return asked, nil
	}
	switch end := strings.ToLower(filepath.Ext(name)); end {
	case ".csv", ".parquet", ".xlsx":
		return end[1:], nil
	case "", ".", ".ndjson", ".jsonl", ".json":
		return "ndjson", nil
	default:
		return "", fmt.Errorf("--out %s: unknown format %q; use .ndjson, .csv, .parquet, .xlsx, or --format", name, end[1:])
	}
}

// Run exports. A file gets its name only when complete.
func (r *runExport) Run(ctx context.Context, term *cli.Console, cl *client.Client) error {
	if r.Dir != "" {
		return r.files(ctx, term, cl)
	}
	if term.JSON && r.Format != "ndjson" {
		return cli.Usage("--json and --format " + r.Format + " exclude each other")
	}
	toStdout := r.Out == "" || r.Out == "-"
	if (r.Format == "parquet" || r.Format == "xlsx") && toStdout && cli.IsTerminalOut(term) {
		return cli.Usage(r.Format + " cannot be shown on a terminal; give --out FILE")
	}
	if r.Parts {
		r.Include = append(r.Include, "parts")
	}
	stream, err := cl.ExportRun(ctx, r.Ref, client.ExportRunParams{Format: r.Format, Step: r.Step, State: r.State,
		Raw: r.Raw, Key: r.Key, Code: r.Code, Group: r.Group, Service: r.Service, Since: r.Since, Until: r.Until,
		Where: r.Where, WhereResult: r.WhereResult, Corrected: r.Corrected, With: r.Include, Flat: r.Flat,
		Columns: r.Columns})
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	if n := stream.Header.Get(notHeldHeader); n != "" {
		term.Note("%s cells of the workbook do not hold what is exported: it is longer than 32,767 characters, or has one "+
			"that a workbook cannot hold; export it as ndjson, csv or parquet", n)
	}
	if toStdout {
		return cli.CopyStream(term.Out, stream)
	}
	size, err := writeWhole(r.Out, stream)
	if err != nil {
		return fmt.Errorf("--out %s: %w", r.Out, err)
	}
	if term.JSON {
		return term.Document(map[string]any{"file": r.Out, "bytes": size})
	}
	term.Note("wrote %s to %s", cli.Plural(size, "byte"), r.Out)
	return nil
}

// writeWhole writes a private file and renames it when complete. An existing device, pipe or link is written to,
// never replaced.
func writeWhole(name string, from io.Reader) (size int64, err error) {
	if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return writeTo(name, from)
	}
	file, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return 0, err
	}
	if size, err = io.Copy(file, from); err != nil {
		err = cli.BrokenOff(err)
	} else if err = file.Sync(); err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		return size, errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	return size, file.Close()
}

func writeTo(name string, from io.Reader) (size int64, err error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return 0, err
	}
	size, err = io.Copy(file, from)
	return size, errors.Join(err, file.Close())
}

type indexedFile struct {
	Key         string `json:"key"`
	Ordinal     int    `json:"ordinal"`
	File        string `json:"file"`
	Bytes       int    `json:"bytes"`
	ContentType string `json:"content_type"`
	SHA256      string `json:"sha256"`
}

// files writes each result to a separate file. Each gets its name when complete, the index when all files exist.
func (r *runExport) files(ctx context.Context, term *cli.Console, cl *client.Client) error {
	names, err := newFileNames(r.Name)
	if err != nil {
		return err
	}
	wanted, err := r.wanted(term.In)
	if err != nil {
		return err
	}
	stream, err := cl.ExportRun(ctx, r.Ref, client.ExportRunParams{Step: r.Step, State: []string{"done"}})
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	dir, err := r.openDir()
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	out := &fileExport{dir: dir, names: names, made: map[string]bool{".": true}, wanted: wanted, resume: r.Resume}
	if err := out.begin(r.Index, r.Raw); err != nil {
		return fmt.Errorf("--dir %s: %w", r.Dir, err)
	}
	if err := out.all(stream); err != nil {
		return fmt.Errorf("--dir %s: %w; continue with --resume", r.Dir, err)
	}
	out.tellMissing(term)
	if term.JSON {
		return term.Document(map[string]any{"dir": r.Dir, "index": out.indexName(), "files": out.files, "kept": out.kept,
			"bytes": out.bytes})
	}
	kept := ""
	if out.kept > 0 {
		kept = fmt.Sprintf("; %s existed already", cli.Count(int64(out.kept)))
	}
	term.Note("wrote %s with %s to %s%s; %s lists them", cli.Plural(int64(out.files), "file"),
		cli.Plural(out.bytes, "byte"), r.Dir, kept, out.indexName())
	return nil
}

// openDir creates the directory, which must be new or empty unless an export is resumed. The result cannot access
// anything outside.
func (r *runExport) openDir() (*os.Root, error) {
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return nil, cli.Usage(fmt.Sprintf("--dir: %v", err))
	}
	root, err := os.OpenRoot(r.Dir)
	if err != nil {
		return nil, cli.Usage(fmt.Sprintf("--dir: %v", err))
	}
	listed, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	defer func() { _ = listed.Close() }()
	if some, _ := listed.Readdirnames(1); len(some) > 0 && !r.Resume {
		_ = root.Close()
		return nil, cli.Usage(fmt.Sprintf("--dir %s: it is not empty (%s); give a new directory, or --resume "+
			"to continue an interrupted export", r.Dir, cli.EscapeControl(some[0])))
	}
	return root, nil
}

type fileExport struct {
	dir    *os.Root
	names  *fileNames
	made   map[string]bool // directories
	wanted map[string]bool // keys: whether not seen yet; nil: all are wanted
	resume bool
	format string // of the index
	index  *os.File
	lines  *bufio.Writer
	rows   *csv.Writer
	cell   func(string) string

	files, kept int
	bytes       int64
}

const (
	unfinishedIndex = ".index.part"
	unfinishedFile  = ".file.part"
)

func (e *fileExport) indexName() string { return "index." + e.format }

func (e *fileExport) begin(format string, raw bool) (err error) {
	e.format, e.cell = format, intake.Defuse
	if raw {
		e.cell = func(text string) string { return text }
	}
	e.names.reserve(e.indexName())
	// The index marks a complete export, so it is removed first and written last.
	if err := e.dir.Remove(e.indexName()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if e.index, err = e.dir.OpenFile(unfinishedIndex, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	e.lines = bufio.NewWriter(e.index)
	e.rows = csv.NewWriter(e.lines)
	if format == "csv" {
		return e.rows.Write([]string{"key", "ordinal", "file", "bytes", "content_type", "sha256"})
	}
	return nil
}

func (e *fileExport) all(stream io.Reader) error {
	defer func() { _ = e.index.Close() }()
	decoder := json.NewDecoder(bufio.NewReaderSize(stream, 1<<20))
	for {
		var item client.ExportedItem
		err := decoder.Decode(&item)
		if errors.Is(err, io.EOF) {
			return e.finish()
		}
		if err != nil {
			return cli.BrokenOff(err)
		}
		if !e.wants(item.Key) {
			continue
		}
		if err := e.item(&item); err != nil {
			return fmt.Errorf("item %d (%s): %w", item.Ordinal, cli.EscapeControl(item.Key), err)
		}
	}
}

func (e *fileExport) item(item *client.ExportedItem) error {
	data := item.ResultBytes
	if item.Result != nil {
		data = item.Result
	}
	name := e.names.of(&named{item.Key, item.Step, item.ContentType, int(item.Ordinal)})
	sum := sha256.Sum256(data)
	line := indexedFile{item.Key, int(item.Ordinal), name, len(data), item.ContentType, hex.EncodeToString(sum[:])}
	line.ContentType = cmp.Or(line.ContentType, "application/json")
	e.files++
	e.bytes += int64(len(data))
	if e.resume && e.has(name, len(data), sum) {
		e.kept++
	} else if err := e.write(name, data); err != nil {
		return err
	}
	return e.list(&line)
}

func (e *fileExport) has(name string, size int, sum [sha256.Size]byte) bool {
	info, err := e.dir.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(size) {
		return false
	}
	data, err := e.dir.ReadFile(name)
	return err == nil && sha256.Sum256(data) == sum
}

func (e *fileExport) write(name string, data []byte) error {
	if dir := path.Dir(name); !e.made[dir] {
		if err := e.dir.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		e.made[dir] = true
	}
	if err := e.dir.WriteFile(unfinishedFile, data, 0o600); err != nil {
		return err
	}
	return e.dir.Rename(unfinishedFile, name)
}

func (e *fileExport) list(line *indexedFile) error {
	if e.format == "csv" {
		return e.rows.Write([]string{e.cell(line.Key), strconv.Itoa(line.Ordinal), e.cell(line.File),
			strconv.Itoa(line.Bytes), e.cell(line.ContentType), line.SHA256})
	}
	text, err := json.Marshal(line)
	if err == nil {
		_, err = e.lines.Write(append(text, '\n'))
	}
	return err
}

func (e *fileExport) finish() error {
	e.rows.Flush()
	err := errors.Join(e.rows.Error(), e.lines.Flush(), e.index.Sync(), e.index.Close())
	if err != nil {
		return err
	}
	return e.dir.Rename(unfinishedIndex, e.indexName())
}

func (c *itemChoice) wanted(stdin io.Reader) (map[string]bool, error) {
	parts := [][]string{c.Key}
	if c.Keys != "" {
		var err error
		if parts, err = cli.ReadKeys(c.Keys, stdin); err != nil {
			return nil, err
		}
	}
	if len(c.Key) == 0 && c.Keys == "" {
		return nil, nil
	}
	wanted := map[string]bool{}
	for _, key := range slices.Concat(parts...) {
		wanted[key] = true
	}
	return wanted, nil
}

func (e *fileExport) wants(key string) bool {
	if e.wanted == nil {
		return true
	}
	_, wanted := e.wanted[key]
	if wanted {
		e.wanted[key] = false // others may have the same key
	}
	return wanted
}

func (e *fileExport) tellMissing(term *cli.Console) {
	maps.DeleteFunc(e.wanted, func(_ string, missing bool) bool { return !missing })
	if len(e.wanted) == 0 {
		return
	}
	first := slices.Min(slices.Collect(maps.Keys(e.wanted)))
	term.Note("warning: %s of the keys have no result in this run, such as %s", cli.Count(int64(len(e.wanted))),
		cli.EscapeControl(fmt.Sprintf("%q", cli.Short(first, 100))))
}
