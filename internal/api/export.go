package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
)

const (
	formatCSV  = "csv"
	mimeNDJSON = "application/x-ndjson"
	mimeCSV    = "text/csv; charset=utf-8"

	exportBuffer = 64 << 10
)

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }

// ExportedItem is one line of an export in NDJSON.
type ExportedItem struct {
	Ordinal     workqueue.Ordinal    `json:"ordinal"`
	Key         string               `json:"key"`
	State       workqueue.Outcome    `json:"state"`
	Step        string               `json:"step,omitempty"`
	Result      json.RawMessage      `json:"result,omitempty"`
	ResultBytes []byte               `json:"result_bytes,omitempty"`
	ContentType string               `json:"content_type,omitempty"`
	Error       *workqueue.ItemError `json:"error,omitempty"`
}

type exportInput struct {
	RunPath
	Format string   `query:"format" enum:"ndjson,csv" default:"ndjson"`
	State  []string `query:"state,explode" doc:"done, failed or missing; may stand more than once; absent: all"`
}

type errorsInput struct {
	RunPath
	All bool `query:"all" doc:"every failed item, as a stream in NDJSON"`
}

func (s *Server) registerExport(api huma.API) {
	export := get("export-run", "/runs/{run}/export", "All items with their outcomes, in order")
	export.Description = "A stream with constant memory. CSV has the columns key, state, result, error_code and " +
		"error_message; a cell that a spreadsheet would take for a formula gets an apostrophe in front. A stream that " +
		"does not end properly is not whole."
	huma.Register(api, export, func(ctx context.Context, in *exportInput) (*huma.StreamResponse, error) {
		states, err := outcomes(in.State)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		id, err := s.store.Resolve(ctx, in.Run)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			r, w := humago.Unwrap(hc)
			s.export(w, r, id, states, in.Format)
		}}, nil
	})
	failures := get("list-errors", "/runs/{run}/errors", "What failed: groups with examples, or each item")
	failures.Responses = map[string]*huma.Response{"200": {
		Description: "Groups; with all=true the lines of an export of the failed items.",
		Content: map[string]*huma.MediaType{"application/json": {
			Schema: huma.SchemaFromType(api.OpenAPI().Components.Schemas, typeOf[ErrorGroups]()),
		}},
	}}
	huma.Register(api, failures, s.listErrors)
}

func (s *Server) listErrors(ctx context.Context, in *errorsInput) (*huma.StreamResponse, error) {
	id, err := s.store.Resolve(ctx, in.Run)
	if err != nil {
		return nil, s.problem(ctx, err)
	}
	if in.All {
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			r, w := humago.Unwrap(hc)
			s.export(w, r, id, []workqueue.Outcome{workqueue.OutcomeFailed}, "ndjson")
		}}, nil
	}
	found, err := s.store.Errors(ctx, id)
	if err != nil {
		return nil, s.problem(ctx, err)
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		hc.SetHeader("Content-Type", "application/json")
		_ = json.NewEncoder(hc.BodyWriter()).Encode(ErrorGroups{Run: id, Errors: found})
	}}, nil
}

func outcomes(states []string) ([]workqueue.Outcome, error) {
	var all []workqueue.Outcome
	for _, state := range states {
		switch o := workqueue.Outcome(state); o {
		case workqueue.OutcomeDone, workqueue.OutcomeFailed, workqueue.OutcomeMissing:
			all = append(all, o)
		default:
			return nil, &inputError{"state " + strconv.Quote(cut(state, maxEchoed)) + " is not done, failed or missing"}
		}
	}
	return all, nil
}

// export streams. Once the first bytes are out, a failure can only be told by breaking the connection.
func (s *Server) export(
	w http.ResponseWriter, r *http.Request, id workqueue.RunID, states []workqueue.Outcome, format string,
) {
	w.Header().Set("Content-Type", mimeNDJSON)
	if format == formatCSV {
		w.Header().Set("Content-Type", mimeCSV)
	}
	buffer := bufio.NewWriterSize(&flushing{w: w, control: http.NewResponseController(w)}, exportBuffer)
	line := ndjsonLines(buffer)
	finish := func() error { return nil }
	if format == formatCSV {
		line, finish = csvLines(buffer)
	}
	err := s.store.Export(r.Context(), id, states, line)
	if err == nil {
		err = finish()
	}
	if err == nil {
		err = buffer.Flush()
	}
	if err != nil {
		if r.Context().Err() == nil {
			s.log.Error("export broke off", zap.Stringer("run", id), zap.Error(err))
		}
		panic(http.ErrAbortHandler) // net/http's way to end a connection without its proper end
	}
}

func ndjsonLines(out *bufio.Writer) func(*workqueue.ExportedItem) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	return func(item *workqueue.ExportedItem) error {
		line := ExportedItem{
			Ordinal: item.Ordinal, Key: item.Key, State: item.State, Step: item.Step, ContentType: item.ContentType,
		}
		switch {
		case item.State == workqueue.OutcomeFailed:
			line.Error = &workqueue.ItemError{Code: item.ErrorCode, Message: item.ErrorMessage}
		case item.ContentType == "" && json.Valid(item.Result):
			line.Result = item.Result
		default:
			line.ResultBytes = item.Result
		}
		return encoder.Encode(&line)
	}
}

func csvLines(out *bufio.Writer) (line func(*workqueue.ExportedItem) error, finish func() error) {
	rows := csv.NewWriter(out)
	header := []string{"key", "state", "result", "error_code", "error_message"}
	started := false
	begin := func() error {
		if started {
			return nil
		}
		started = true
		return rows.Write(header)
	}
	var compact bytes.Buffer
	line = func(item *workqueue.ExportedItem) error {
		if err := begin(); err != nil {
			return err
		}
		result := string(item.Result)
		compact.Reset()
		if item.ContentType == "" && json.Compact(&compact, item.Result) == nil {
			result = compact.String()
		}
		return rows.Write([]string{
			defuse(item.Key), string(item.State), defuse(result), defuse(item.ErrorCode), defuse(item.ErrorMessage),
		})
	}
	return line, func() error {
		if err := begin(); err != nil {
			return err
		}
		rows.Flush()
		return rows.Error()
	}
}

// defuse puts an apostrophe before what a spreadsheet would run as a formula, or what would cut a cell short.
func defuse(cell string) string {
	if cell == "" {
		return cell
	}
	if strings.IndexByte("=+-@\t\r", cell[0]) >= 0 || strings.IndexByte(cell, 0) >= 0 {
		return "'" + cell
	}
	return cell
}

// flushing sends what is written at once.
type flushing struct {
	w       io.Writer
	control *http.ResponseController
}

// Write implements io.Writer.
func (f *flushing) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		_ = f.control.Flush() // the next write fails too if this does
	}
	return n, err
}
