package runs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

const (
	formatCSV     = "csv"
	formatParquet = "parquet"
	formatXLSX    = "xlsx"
	formatNDJSON  = "ndjson"
	mimeCSV       = "text/csv; charset=utf-8"
	// MimeParquet is the content type of Parquet files.
	MimeParquet = "application/vnd.apache.parquet"
	mimeXLSX    = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"

	exportBuffer = 64 << 10

	notHeldHeader = "Tranche-Cells-Not-Held"
)

type exportInput struct {
	apicore.RunPath
	Format string   `query:"format" enum:"ndjson,csv,parquet,xlsx" default:"ndjson"`
	Step   string   `query:"step" doc:"whose parts are the results; absent: the only step that no other needs"`
	Raw    bool     `query:"raw" doc:"CSV without the apostrophes that defuse formulas"`
	State  []string `query:"state,explode" enum:"done,failed,missing" doc:"repeatable; absent: all"`
	EvidenceQuery

	With    []string `query:"with,explode" enum:"payload,parts" doc:"payload: what items carry, too; parts: the results and errors of all steps, in place of the result"`
	Flat    bool     `query:"flat" doc:"a column for each field of payloads and results, with result. before"`
	Columns []string `query:"columns,explode" maxItems:"2000" doc:"only these columns, in this order"`
}

type errorsInput struct {
	apicore.RunPath
	All bool `query:"all" doc:"every failed item, as a stream in NDJSON"`
}

type exports struct{ *Starts }

func (s exports) register(api huma.API) {
	s.registerExport(api)
	s.registerReport(api)
}

func (s exports) registerExport(api huma.API) {
	all := apicore.ReadsItems(apicore.ScansRun(apicore.Get("export-run", "/runs/{run}/export",
		"All items with their outcomes")))
	all.Description = "A stream with constant memory. CSV has the columns " +
		strings.Join((&exportTable{columns: columnsIn(inTables, false)}).names(), ", ") +
		"; a cell that a spreadsheet would take for a formula gets an apostrophe in front, " +
		"unless raw is set; numbers never do. XLSX has the same columns. For a flat table all items are read " +
		"once before the first is sent. Binary results are in base64: in CSV in the same column, in NDJSON " +
		"as result_bytes with their content_type; in Parquet they are bytes. Of a run with several steps the results are " +
		"those of one; with parts there are those of all that count, as columns parts.STEP.result, .state … or in NDJSON " +
		"as parts, an object by step. Where a cell of a workbook cannot hold what is exported, it says so or has " +
		"U+FFFD for a character; the header " + notHeldHeader + " has the number of such cells. A stream that does not end " +
		"properly is not whole."
	apicore.RegisterAnswer(s.Core, api, all, func(ctx context.Context, in *exportInput) (*huma.StreamResponse, error) {
		var states []workqueue.Outcome
		for _, state := range in.State {
			states = append(states, workqueue.Outcome(state))
		}
		shape := exportShape{flat: in.Flat, columns: in.Columns}
		return s.exportStream(ctx, export.Request{Run: in.ID, Step: in.Step, States: states,
			Payload: slices.Contains(in.With, "payload"), Parts: slices.Contains(in.With, "parts"), Select: in.Selection()},
			in.Format, in.Raw, shape)
	})
	failures := apicore.ScansRunIf("all", apicore.Get("list-errors", "/runs/{run}/errors", "Failures, in groups or each"))
	failures.Responses = apicore.Answers("Groups; with all=true the lines of an export of the failed items.",
		"application/json", apicore.SchemaOf[ErrorGroups](api))
	apicore.RegisterAnswer(s.Core, api, failures, s.listErrors)
}

func (s exports) listErrors(ctx context.Context, in *errorsInput) (*huma.StreamResponse, error) {
	if in.All {
		failed := []workqueue.Outcome{workqueue.OutcomeFailed}
		return s.exportStream(ctx, export.Request{Run: in.ID, States: failed}, formatNDJSON, false, exportShape{})
	}
	found, err := inspect.New(s.Store).Errors(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return apicore.Raw(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = apicore.SendJSON(w, ErrorGroups{Run: in.ID, Errors: found})
	}), nil
}

// exportStream opens the export first, so that errors are reported before it begins.
func (s exports) exportStream(
	ctx context.Context, req export.Request, format string, raw bool, shape exportShape,
) (*huma.StreamResponse, error) {
	found, err := export.New(s.Store).Open(ctx, req)
	if choice, ok := errors.AsType[*workqueue.StepChoiceError](err); ok {
		err = apicore.BadInput("step: " + choice.Error())
	}
	err = apicore.Seen(err, "tranche run show "+req.Run.String())
	if err == nil && format == formatXLSX && found.Items() > xlsxRows {
		err = moreThanASheet()
	}
	shape.in, shape.payload = inTables, req.Payload
	if err == nil {
		shape.parts = found.Steps()
	}
	switch {
	case shape.flat || len(shape.columns) > 0:
	case format == formatNDJSON:
		shape.in = inLines
	case format == formatParquet:
		shape.in = inParquet
	}
	var table *exportTable
	if err == nil {
		table, err = tableOf(whole(ctx, found, largeIn(ctx, s.Store)), shape)
	}
	if err == nil && format == formatXLSX {
		err = mayFit(s.Spool, found.Items(), len(table.columns))
	}
	if err != nil {
		return nil, err
	}
	return apicore.Raw(func(w http.ResponseWriter, r *http.Request) {
		s.export(w, r, found, exportForm{format: format, raw: raw, table: table, pieces: shape.in == inLines})
	}), nil
}

type exportWriter interface {
	line(item *export.Item) error
	finish() error
}

type exportForm struct {
	format string
	raw    bool
	table  *exportTable
	pieces bool // results too large for a message are read while they are written
	open   openLarge
}

// openLarge opens a result that was too large for a message.
type openLarge func(uuid.UUID) (largeReader, error)

type largeReader interface {
	io.Reader
	Size() int64
}

func largeIn(ctx context.Context, db *database.DB) openLarge {
	return func(id uuid.UUID) (largeReader, error) { return export.New(db).OpenResult(ctx, id) }
}

func (f *exportForm) writer(out *bufio.Writer, dir string, room *intake.Room) (mime string, w exportWriter,
	err error) {
	switch f.format {
	case formatCSV:
		return mimeCSV, &csvExport{out: out, table: f.table, raw: f.raw}, nil
	case formatXLSX:
		book, err := newXLSXExport(out, f.table, dir, room)
		if err != nil { // a nil book is a writer
			return mimeXLSX, nil, err
		}
		return mimeXLSX, book, nil
	case formatParquet:
		return MimeParquet, newParquetTable(out, f.table), nil
	default:
		return apicore.MimeNDJSON, newObjectExport(out, f.table, f.open), nil
	}
}

type eachItem func(yield func(*export.Item) error) error

// whole yields items, one at a time, with their large results read, unless open is nil.
func whole(ctx context.Context, all *export.Export, open openLarge) eachItem {
	return func(yield func(*export.Item) error) error {
		return all.Each(ctx, func(item *export.Item) error {
			defer func() { item.Parts = nil }() // a page of items lives longer
			for i := range item.Parts {
				if err := assemble(open, &item.Parts[i]); err != nil {
					return err
				}
			}
			if item.Large != nil && open != nil {
				defer func() { item.Result = nil }()
			}
			if err := assemble(open, item); err != nil {
				return err
			}
			return yield(item)
		})
	}
}

func assemble(open openLarge, item *export.Item) error {
	if item.Large == nil || open == nil {
		return nil
	}
	result, err := open(item.Large.ID)
	if err != nil {
		return err
	}
	item.Result = make([]byte, result.Size())
	item.ContentType, item.Large = item.Large.ContentType, nil
	_, err = io.ReadFull(result, item.Result)
	return err
}

// WriteItems writes the items of a run as an export in NDJSON with all that one has: payloads, and results and errors,
// of a run with several steps those of each. It returns the number of items. Memory is constant.
func WriteItems(
	ctx context.Context, db *database.DB, run workqueue.RunID, steps int, out io.Writer,
) (n int64, err error) {
	all, err := export.New(db).Open(ctx, export.Request{Run: run, Payload: true, Parts: steps > 1})
	if err != nil {
		return 0, err
	}
	buffer := bufio.NewWriterSize(out, exportBuffer)
	lines := newObjectExport(buffer, &exportTable{columns: columnsIn(inLines, true, all.Steps()...)}, largeIn(ctx, db))
	err = whole(ctx, all, nil)(func(item *export.Item) error {
		n++
		return lines.line(item)
	})
	return n, errors.Join(err, buffer.Flush())
}

// export streams the answer. After the first bytes, only breaking the connection can report a failure.
func (s exports) export(w http.ResponseWriter, r *http.Request, all *export.Export, form exportForm) {
	buffer := bufio.NewWriterSize(&flushing{w: w, control: http.NewResponseController(w)}, exportBuffer)
	open := largeIn(r.Context(), s.Store)
	if form.pieces {
		form.open, open = open, nil
	}
	mime, out, err := form.writer(buffer, s.config.SpoolDir, s.Spool)
	w.Header().Set("Content-Type", mime)
	if err == nil {
		err = whole(r.Context(), all, open)(out.line)
	}
	unsent := err != nil && form.format == formatXLSX // nothing is sent before the workbook is finished
	if book, ok := out.(*xlsxExport); ok && book.notHeld > 0 && !unsent {
		w.Header().Set(notHeldHeader, strconv.Itoa(book.notHeld))
	}
	if err == nil {
		err = out.finish()
	}
	if closer, ok := out.(interface{ Close() error }); ok {
		err = errors.Join(err, closer.Close())
	}
	if unsent {
		apicore.SendProblem(w, s.Problem(r.Context(), err))
		return
	}
	s.complete(r, buffer, err)
}

// complete sends the rest of a stream, or breaks the connection off after an error.
func (s exports) complete(r *http.Request, buffer *bufio.Writer, err error) {
	if err == nil {
		err = buffer.Flush()
	}
	if err != nil {
		if r.Context().Err() == nil {
			s.Log.Error("a stream was interrupted", zap.String("path", r.URL.Path), zap.Error(err))
		}
		panic(http.ErrAbortHandler) // net/http's way to end a connection abnormally
	}
}

type flushing struct {
	w       io.Writer
	control *http.ResponseController
}

func (f *flushing) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		_ = f.control.Flush() // if this fails, the next write fails too
	}
	return n, err
}

type objectExport struct {
	out   *bufio.Writer
	table *exportTable
	open  openLarge // nil: large results were read before
	buf   bytes.Buffer
	texts *json.Encoder // into buf
}

func newObjectExport(out *bufio.Writer, table *exportTable, open openLarge) *objectExport {
	e := &objectExport{out: out, table: table, open: open}
	e.texts = json.NewEncoder(&e.buf)
	e.texts.SetEscapeHTML(false)
	return e
}

func (e *objectExport) line(item *export.Item) error {
	row, err := e.table.row(item)
	if err != nil {
		return err
	}
	if err := e.object(e.table.columns, row); err != nil {
		return err
	}
	return e.out.WriteByte('\n')
}

func (e *objectExport) object(columns []exportColumn, row *exportRow) error {
	item := row.item
	if item.Large != nil && item.Large.ContentType == "" { // JSON is compacted entirely
		if err := assemble(e.open, item); err != nil {
			return err
		}
		defer func() { item.Result = nil }()
	}
	e.buf.Reset()
	before := byte('{')
	for i := range columns {
		cell := columns[i].cell(row)
		if !cell.here {
			continue
		}
		e.buf.WriteByte(before)
		before = ','
		if err := e.member(columns[i].name, &cell); err != nil {
			return err
		}
	}
	if before == '{' {
		e.buf.WriteByte(before)
	}
	if _, err := e.buf.WriteTo(e.out); err != nil {
		return err
	}
	if item.Large != nil && e.open != nil {
		if err := e.large(item.Large.ID); err != nil {
			return err
		}
	}
	return e.out.WriteByte('}')
}

func (e *objectExport) member(name string, cell *exportCell) (err error) {
	if err := e.text(name); err != nil {
		return err
	}
	e.buf.WriteByte(':')
	switch {
	case cell.write != nil:
		if _, err := e.buf.WriteTo(e.out); err != nil {
			return err
		}
		return cell.write(e)
	case cell.raw != nil:
		return json.Compact(&e.buf, cell.raw)
	case cell.bytes != nil:
		return e.text(base64.StdEncoding.EncodeToString(cell.bytes))
	default:
		return e.text(cell.text)
	}
}

func (e *objectExport) text(text string) error {
	err := e.texts.Encode(text)
	e.buf.Truncate(e.buf.Len() - 1) // the line break
	return err
}

func (e *objectExport) large(id uuid.UUID) error {
	result, err := e.open(id)
	if err != nil {
		return err
	}
	_, _ = e.out.WriteString(`,"result_bytes":"`) // the writer keeps the error
	encoded := base64.NewEncoder(base64.StdEncoding, e.out)
	if _, err := io.Copy(encoded, result); err != nil {
		return err
	}
	if err := encoded.Close(); err != nil {
		return err
	}
	return e.out.WriteByte('"')
}

func (e *objectExport) finish() error { return nil }

type csvExport struct {
	out     *bufio.Writer
	table   *exportTable
	started bool
	raw     bool // cells are not defused
}

func (e *csvExport) begin() error {
	if e.started {
		return nil
	}
	e.started = true
	return e.write(e.table.names())
}

// write quotes cells as encoding/csv does, and also those with a semicolon, which some spreadsheets split there: what
// follows could be a formula.
func (e *csvExport) write(cells []string) error {
	for i, cell := range cells {
		if !e.raw {
			cell = intake.Defuse(cell)
		}
		first, _ := utf8.DecodeRuneInString(cell)
		if strings.ContainsAny(cell, "\",;\r\n") || unicode.IsSpace(first) || cell == `\.` || cell == "" && len(cells) == 1 {
			cell = `"` + strings.ReplaceAll(cell, `"`, `""`) + `"`
		}
		if i > 0 {
			cell = "," + cell
		}
		_, _ = e.out.WriteString(cell) // the next write repeats an error
	}
	return e.out.WriteByte('\n')
}

func (e *csvExport) line(item *export.Item) error {
	if err := e.begin(); err != nil {
		return err
	}
	row, err := e.table.row(item)
	if err != nil {
		return err
	}
	cells := make([]string, len(e.table.columns))
	for i, column := range e.table.columns {
		cells[i] = column.cell(row).text
	}
	return e.write(cells)
}

func (e *csvExport) finish() error { return e.begin() }

func resultText(item *export.Item) string {
	if item.ContentType == "" || strings.HasPrefix(item.ContentType, "text/") && utf8.Valid(item.Result) {
		return string(item.Result)
	}
	return base64.StdEncoding.EncodeToString(item.Result)
}
