package api

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// ndjsonExport writes a JSON object a line.
type ndjsonExport struct{ encoder *json.Encoder }

func newNDJSONExport(out *bufio.Writer) *ndjsonExport {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	return &ndjsonExport{encoder}
}

func (e *ndjsonExport) line(item *inspect.ExportedItem) error {
	line := ExportedItem{
		Ordinal: item.Ordinal, Key: item.Key, State: item.State, Step: item.Step, ContentType: item.ContentType,
		Accepted: item.Accepted,
	}
	switch {
	case item.State == workqueue.OutcomeFailed:
		line.Error = &inspect.ItemError{Code: item.ErrorCode, Message: item.ErrorMessage}
	case item.ContentType == "" && json.Valid(item.Result):
		line.Result = item.Result
	default:
		line.ResultBytes = item.Result
	}
	return e.encoder.Encode(&line)
}

func (e *ndjsonExport) finish() error { return nil }

// csvExport writes a table with a heading.
type csvExport struct {
	rows    *csv.Writer
	started bool
	raw     bool // cells as they are
	compact bytes.Buffer
}

func newCSVExport(out *bufio.Writer, raw bool) *csvExport {
	return &csvExport{rows: csv.NewWriter(out), raw: raw}
}

func (e *csvExport) begin() error {
	if e.started {
		return nil
	}
	e.started = true
	return e.rows.Write([]string{"key", "state", "result", "error_code", "error_message", "accepted"})
}

func (e *csvExport) line(item *inspect.ExportedItem) error {
	if err := e.begin(); err != nil {
		return err
	}
	accepted := ""
	if item.Accepted {
		accepted = "true"
	}
	return e.rows.Write([]string{e.cell(item.Key), string(item.State), e.cell(e.result(item)), e.cell(item.ErrorCode),
		e.cell(item.ErrorMessage), accepted})
}

func (e *csvExport) finish() error {
	if err := e.begin(); err != nil {
		return err
	}
	e.rows.Flush()
	return e.rows.Error()
}

// result is JSON in one line, text as it is, and anything else in base64.
func (e *csvExport) result(item *inspect.ExportedItem) string {
	e.compact.Reset()
	switch {
	case item.ContentType == "" && json.Compact(&e.compact, item.Result) == nil:
		return e.compact.String()
	case item.ContentType == "" || strings.HasPrefix(item.ContentType, "text/") && utf8.Valid(item.Result):
		return string(item.Result)
	default:
		return base64.StdEncoding.EncodeToString(item.Result)
	}
}

func (e *csvExport) cell(text string) string {
	if e.raw {
		return text
	}
	return Defuse(text)
}

// Defuse puts an apostrophe before what a spreadsheet would run as a formula, or what would cut a cell short.
func Defuse(cell string) string {
	if cell == "" {
		return cell
	}
	first, _ := utf8.DecodeRuneInString(cell)
	if strings.ContainsRune("=+-@\t\r\n＝＋－＠", first) || strings.IndexByte(cell, 0) >= 0 {
		return "'" + cell
	}
	return cell
}
