package runs

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// ndjsonExport writes a JSON object a line.
type ndjsonExport struct {
	out     *bufio.Writer
	encoder *json.Encoder
	open    func(uuid.UUID) (io.Reader, error) // results that came in pieces and are no JSON
}

func newNDJSONExport(out *bufio.Writer, open func(uuid.UUID) (io.Reader, error)) *ndjsonExport {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	return &ndjsonExport{out, encoder, open}
}

func (e *ndjsonExport) line(item *export.Item) error {
	line := ExportedItem{
		Ordinal: item.Ordinal, Key: item.Key, State: item.State, Step: item.Step, ContentType: item.ContentType,
		Accepted: item.Accepted, Payload: item.Payload,
	}
	switch {
	case item.State == workqueue.OutcomeFailed:
		line.Error = &inspect.ItemError{Code: item.ErrorCode, Message: item.ErrorMessage}
	case item.Large != nil:
		line.ContentType = item.Large.ContentType
		return e.large(&line, item.Large.ID)
	case item.ContentType == "" && json.Valid(item.Result):
		line.Result = item.Result
	default:
		line.ResultBytes = item.Result
	}
	return e.encoder.Encode(&line)
}

// large writes a line with a result of which no more than a piece is held at once.
func (e *ndjsonExport) large(line *ExportedItem, id uuid.UUID) error {
	result, err := e.open(id)
	if err != nil {
		return err
	}
	var begin bytes.Buffer
	encoder := json.NewEncoder(&begin)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(line); err != nil {
		return err
	}
	_, _ = e.out.Write(bytes.TrimSuffix(begin.Bytes(), []byte("}\n"))) // the writer remembers what went wrong
	_, _ = e.out.WriteString(`,"result_bytes":"`)
	encoded := base64.NewEncoder(base64.StdEncoding, e.out)
	if _, err := io.Copy(encoded, result); err != nil {
		return err
	}
	if err := encoded.Close(); err != nil {
		return err
	}
	_, err = e.out.WriteString("\"}\n")
	return err
}

func (e *ndjsonExport) finish() error { return nil }

// objectExport writes the columns of a table as the members of a JSON object a line.
type objectExport struct {
	out   *bufio.Writer
	table *exportTable
	names [][]byte
}

func newObjectExport(out *bufio.Writer, table *exportTable) *objectExport {
	e := &objectExport{out: out, table: table}
	for _, name := range table.names() {
		quoted, _ := json.Marshal(name) // a string
		e.names = append(e.names, quoted)
	}
	return e
}

func (e *objectExport) line(item *export.Item) error {
	row, err := e.table.row(item)
	if err != nil {
		return err
	}
	line, first := []byte{'{'}, true
	for i, column := range e.table.columns {
		cell := column.cell(row)
		if !cell.here {
			continue
		}
		if !first {
			line = append(line, ',')
		}
		first = false
		line = append(append(line, e.names[i]...), ':')
		if cell.raw == nil {
			cell.raw, _ = json.Marshal(cell.text) // a string
		}
		line = append(line, cell.raw...)
	}
	_, err = e.out.Write(append(line, '}', '\n'))
	return err
}

func (e *objectExport) finish() error { return nil }

// csvExport writes a table with a heading.
type csvExport struct {
	rows    *csv.Writer
	table   *exportTable
	started bool
	raw     bool // cells as they are
}

func newCSVExport(out *bufio.Writer, table *exportTable, raw bool) *csvExport {
	return &csvExport{rows: csv.NewWriter(out), table: table, raw: raw}
}

func (e *csvExport) begin() error {
	if e.started {
		return nil
	}
	e.started = true
	names := e.table.names()
	if !e.raw {
		for i, name := range names {
			names[i] = intake.Defuse(name)
		}
	}
	return e.rows.Write(names)
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
		cell := column.cell(row)
		if cells[i] = cell.text; !e.raw && !cell.key {
			cells[i] = intake.Defuse(cell.text)
		}
	}
	return e.rows.Write(cells)
}

func (e *csvExport) finish() error {
	if err := e.begin(); err != nil {
		return err
	}
	e.rows.Flush()
	return e.rows.Error()
}

// resultText is text as it is, and anything else in base64.
func resultText(item *export.Item) string {
	if item.ContentType == "" || strings.HasPrefix(item.ContentType, "text/") && utf8.Valid(item.Result) {
		return string(item.Result)
	}
	return base64.StdEncoding.EncodeToString(item.Result)
}
