package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"mime/multipart"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/backoff"
)

// The parts of a start, in this order.
const (
	partRun   = "run"   // RunSettings as JSON
	partItems = "items" // the items
)

// Start streams items, as CSV, NDJSON or Parquet, plain or compressed, and starts a run of them. For settings with a
// query or a stream as the source, pass http.NoBody.
func (c *Client) Start(
	ctx context.Context, settings RunSettings, items io.Reader, options ...CallOption,
) (Started, error) {
	ask, err := startOf(settings, items)
	if err != nil {
		return Started{}, err
	}
	return exchange[Started](ctx, c, ask, options)
}

// DryRun reads items as Start does and returns what would be started, without starting it.
func (c *Client) DryRun(
	ctx context.Context, settings RunSettings, items io.Reader, options ...CallOption,
) (DryRun, error) {
	ask, err := startOf(settings, items)
	if err != nil {
		return DryRun{}, err
	}
	ask.add("dry_run", true, false)
	return exchange[DryRun](ctx, c, ask, options)
}

func startOf(settings RunSettings, items io.Reader) (request, error) {
	var head bytes.Buffer
	form := multipart.NewWriter(&head)
	part, err := form.CreateFormField(partRun)
	if err == nil {
		err = json.NewEncoder(part).Encode(settings)
	}
	if err == nil {
		_, err = form.CreateFormFile(partItems, "items")
	}
	if err != nil {
		return request{}, fmt.Errorf("write the settings of the run: %w", err)
	}
	tail := strings.NewReader("\r\n--" + form.Boundary() + "--\r\n")
	return request{operation: "start-run", method: http.MethodPost, path: path("/runs"),
		contentType: form.FormDataContentType(), body: io.MultiReader(&head, items, tail)}, nil
}

// Add adds items to an open run, all or none.
func (c *Client) Add(
	ctx context.Context, run string, params AddItemsParams, items io.Reader, options ...CallOption,
) (AddedItems, error) {
	return c.AddItems(ctx, run, params, "application/octet-stream", items, options...)
}

// FailedItems streams the failed items of a run as lines of JSON, each an [ExportedItem].
func (c *Client) FailedItems(ctx context.Context, run string, options ...CallOption) (*Stream, error) {
	ask := request{operation: "list-errors", method: http.MethodGet, path: path("/runs/%s/errors", run)}
	ask.add("all", true, false)
	return c.stream(ctx, ask, options)
}

// ExportedItem is a line of an export in NDJSON.
type ExportedItem struct {
	Ordinal     int32           `json:"ordinal"`
	Key         string          `json:"key"`
	State       Outcome         `json:"state"`
	Step        string          `json:"step,omitempty"`
	Result      json.RawMessage `json:"result,omitempty"`
	ResultBytes []byte          `json:"result_bytes,omitempty"` // if not JSON
	ContentType string          `json:"content_type,omitempty"`
	Error       *ItemError      `json:"error,omitempty"`

	Parts map[string]ExportedItem `json:"parts,omitempty"` // by step, without keys, if requested
}

// Pauses between polls of a run in Wait.
const (
	waitFirst = 50 * time.Millisecond
	waitMost  = 2 * time.Second // doubled up to this
)

// States of a run.
const (
	RunLoading   = "loading"
	RunRunning   = "running"
	RunPaused    = "paused"
	RunCompleted = "completed"
	RunCancelled = "cancelled"
)

// Ended reports whether the run is completed or cancelled.
func (r *RunDocument) Ended() bool { return r.State == RunCompleted || r.State == RunCancelled }

// Wait polls a run until it is completed or cancelled. A paused run is neither: to limit the wait for an operator,
// pass a context with a deadline.
func (c *Client) Wait(ctx context.Context, run string, options ...CallOption) (RunDocument, error) {
	pauses := backoff.Exponential{First: waitFirst, Longest: waitMost}
	for {
		found, err := c.GetRun(ctx, run, options...)
		if err != nil || found.Ended() {
			return found, err
		}
		if err := pauses.Wait(ctx); err != nil {
			return found, err
		}
	}
}

// all yields the entries of a list up to the first error. It fetches a page after the previous one was yielded.
func all[T any](page func() (entries []T, more bool, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			entries, more, err := page()
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, entry := range entries {
				if !yield(entry, nil) {
					return
				}
			}
			if !more {
				return
			}
		}
	}
}

// goOn copies the start of the next page into the parameter, and reports whether there is a next page.
func goOn(next, from any) bool {
	begin, to := reflect.ValueOf(next), reflect.ValueOf(from).Elem()
	if begin.IsZero() {
		return false
	}
	if to.Kind() == reflect.Pointer {
		to.Set(reflect.New(to.Type().Elem()))
		to = to.Elem()
	}
	to.Set(reflect.Indirect(begin).Convert(to.Type()))
	return true
}
