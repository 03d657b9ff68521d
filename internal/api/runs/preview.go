package runs

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/forecast"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/start"
)

const (
	maxPreview     = 256 << 10 // bytes of a file
	maxPreviewBody = maxPreview + 16<<10
	maxPreviewRows = 20
	maxPreviewRead = 100_000 // rows read: compressed input may hold any number of them
	maxColumns     = 200     // listed
	parquetMagic   = "PAR1"
)

// Preview is the beginning of a file of items, as a run would read it.
type Preview struct {
	Format    intake.Format      `json:"format" enum:"csv,ndjson,parquet" doc:"that it was read as"`
	Columns   []string           `json:"columns" nullable:"false" doc:"columns or fields, in their order"`
	KeyColumn string             `json:"key_column" doc:"that the items' keys come from"`
	Rows      []start.PreviewRow `json:"rows" nullable:"false" doc:"the first ones, 20 at most"`
	Read      int                `json:"read" doc:"rows read without a problem"`
	Schema    json.RawMessage    `json:"schema" doc:"a JSON Schema that these rows fit, as a proposal"`
	Warnings  []string           `json:"warnings" nullable:"false"`
}

const previewDescription = `The body is a file of items or its first 256 KiB, plain or as the part items of
multipart/form-data. It is read as start-run reads it, with the same problems; nothing is stored. Duplicate keys only
cause a warning: the settings of the start decide about them.`

type previewInput struct {
	Format string `query:"format" enum:"csv,ndjson,parquet" doc:"detected when absent"`
	Key    string `query:"key" doc:"the column or field that is the item's key"`
	ShapeQuery
	Truncated bool `query:"truncated" doc:"the file continues: its last row may be cut, and is skipped"`

	apicore.Stream
}

func (s *Starts) registerPreview(api huma.API) {
	body := apicore.Files(append(itemTypes(), "application/octet-stream")...)
	body.Content["multipart/form-data"] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeObject,
		Required: []string{PartItems}, Properties: map[string]*huma.Schema{PartItems: body.Content[MimeParquet].Schema}}}
	apicore.Register(s.Core, api, apicore.In(apicore.Anywhere,
		apicore.Streamed(apicore.Post("preview-items", "/items/preview",
			"Preview the first rows of a file", previewDescription), body)), s.previewItems)
}

func (s *Starts) previewItems(ctx context.Context, in *previewInput) (Preview, error) {
	if err := apicore.CheckText("key", in.Key, intake.MaxKeyBytes); err != nil {
		return Preview{}, err
	}
	items, err := in.items()
	if err != nil {
		return Preview{}, err
	}
	look, err := in.Over(&gather.Items{})
	if err != nil {
		return Preview{}, err
	}
	config, err := s.IntakeConfig(ctx, in.Format, in.Key, look)
	if err != nil {
		return Preview{}, err
	}
	rows, err := intake.Open(items, config)
	if err != nil {
		return Preview{}, explainCut(err)
	}
	defer func() { _ = rows.Close() }() // read only, nothing is lost
	out, err := preview(rows, in.Key)
	return out, explainCut(err)
}

var errCut = errors.New("the rest of the file was not sent")

// cutItems is the beginning of a file, without its end.
type cutItems struct{ io.Reader }

func (c cutItems) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err == io.EOF {
		err = errCut
	}
	return n, err
}

func (in *previewInput) items() (io.Reader, error) {
	from := in.Body()
	if kind, params, err := mime.ParseMediaType(in.Kind()); err == nil && kind == "multipart/form-data" {
		bounded := &previewBody{from, maxPreviewBody}
		parts := multipart.NewReader(bounded, params["boundary"])
		part, err := parts.NextPart()
		if err != nil || part.FormName() != PartItems {
			return nil, apicore.BadInput("the multipart body needs one part, called items: the beginning of the file")
		}
		from = part
	}
	items := wholeItems(&previewBody{from, maxPreview})
	if !in.Truncated {
		return items, nil
	}
	whole := bufio.NewReader(items)
	if start, _ := whole.Peek(len(parquetMagic)); string(start) == parquetMagic {
		return nil, apicore.BadInput("a Parquet file says at its end what is in it, so it can only be previewed whole")
	}
	return cutItems{whole}, nil
}

type previewBody struct {
	from io.Reader
	left int
}

func (b *previewBody) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, workqueue.TooLarge("more than %d KiB came; send that much of the file, with truncated=true", maxPreview>>10)
	}
	return n, err
}

func preview(rows *intake.Reader, key string) (Preview, error) {
	out := Preview{Format: rows.Format(), Columns: []string{}, Rows: []start.PreviewRow{}, Warnings: []string{}}
	twins := duplicateFinder{first: map[string]int{}}
	var guess itemschema.Guess
	unit := cmp.Or(rows.Unit(), "line")
	var item row.Item
	for {
		err := rows.Next(&item)
		if errors.Is(err, io.EOF) || errors.Is(err, errCut) && out.Read > 0 {
			break
		}
		if err != nil {
			return Preview{}, err
		}
		if out.Read == maxPreviewRead {
			out.Warnings = append(out.Warnings, fmt.Sprintf("only the first %d rows were checked", maxPreviewRead))
			break
		}
		out.Read++
		if err := guess.Add(item.Payload); err != nil {
			return Preview{}, fmt.Errorf("check row %d: %w", out.Read, err)
		}
		if twins.add(&item) && twins.items == 1 {
			out.Warnings = append(out.Warnings, twins.warning(&item, unit))
		}
		if len(out.Rows) < maxPreviewRows {
			out.Rows = append(out.Rows, start.PreviewRow{Line: item.Line, Key: item.Key, Payload: slices.Clone(item.Payload)})
			out.Columns = addColumns(out.Columns, item.Payload)
		}
	}
	if twins.items > 1 {
		out.Warnings = append(out.Warnings, fmt.Sprintf("%d rows have a duplicate key", twins.items))
	}
	out.Schema = guess.Schema()
	out.Warnings = append(out.Warnings, rows.Notes()...)
	if out.KeyColumn = rows.Key(); key == "" && out.KeyColumn != "key" && out.KeyColumn != "id" {
		out.Warnings = append(out.Warnings, fmt.Sprintf("keys are taken from the first column, %q, as there is no column "+
			"called key or id", apicore.Echo(out.KeyColumn)))
	}
	return out, nil
}

func addColumns(columns []string, object []byte) []string {
	for _, name := range intake.FieldNames(object) {
		if len(columns) < maxColumns && !slices.Contains(columns, name) {
			columns = append(columns, name)
		}
	}
	return columns
}

type duplicateFinder struct {
	first map[string]int // lines of first occurrences
	items int            // with a key seen before
}

func (t *duplicateFinder) add(item *row.Item) (twice bool) {
	if _, twice = t.first[item.Key]; twice {
		t.items++
	} else {
		t.first[item.Key] = item.Line
	}
	return twice
}

func (t *duplicateFinder) warning(item *row.Item, unit string) string {
	return fmt.Sprintf("%s %d: key %q is on %s %d already; a start refuses that unless told to skip or to "+
		"allow duplicates", unit, item.Line, apicore.Echo(item.Key), unit, t.first[item.Key])
}

func explainCut(err error) error {
	if errors.Is(err, errCut) {
		return apicore.BadInput("what was sent ends before the first row does; send more of the file, up to 256 KiB")
	}
	return err
}

// DryRun is the result a start would have. Nothing was stored.
type DryRun struct {
	DryRun      bool               `json:"dry_run" enum:"true"`
	Name        string             `json:"name,omitempty"`
	Plan        string             `json:"plan"`
	PlanVersion int                `json:"plan_version,omitempty" doc:"of a saved plan"`
	Existing    *workqueue.RunID   `json:"existing,omitempty" doc:"the run that the idempotency key has started"`
	Items       int64              `json:"items"`
	Skipped     int64              `json:"skipped" doc:"duplicates that would be left out"`
	Invalid     int64              `json:"invalid,omitempty" doc:"items that do not fit the schema, so would fail"`
	Bytes       int64              `json:"bytes" doc:"of the items' payloads"`
	Held        int64              `json:"held,omitempty" doc:"items that would wait for the canary"`
	Key         string             `json:"key,omitempty" doc:"the column or field that the keys come from"`
	Steps       []DryRunStep       `json:"steps" nullable:"false"`
	First       []start.PreviewRow `json:"first" nullable:"false" doc:"the first items, ten at most"`
	Warnings    []string           `json:"warnings" nullable:"false"`

	Forecast *forecast.Forecast `json:"forecast,omitempty" doc:"if it started now; absent: the run exists already"`
}

// DryRunStep is what a step would do.
type DryRunStep struct {
	Name         string         `json:"name"`
	Kind         workqueue.Kind `json:"kind" enum:"endpoint,direct,http,sql,local"`
	Endpoint     string         `json:"endpoint" doc:"or another target: http:HOST, sql:SOURCE, local:FUNCTION"`
	Needs        []string       `json:"needs,omitempty" doc:"steps that it needs"`
	Chunk        int            `json:"chunk" doc:"items in a request; of an automatic chunk, now"`
	ChunkAuto    bool           `json:"chunk_auto,omitempty" doc:"nodes find the size"`
	InFlight     int            `json:"in_flight" doc:"most requests in flight"`
	InFlightAuto bool           `json:"in_flight_auto,omitempty" doc:"nodes find the limit up to in_flight"`
	Requests     int64          `json:"requests" doc:"by this chunk; more when payloads are large"`
	Services     int            `json:"services" doc:"instances that listen; of other kinds, nodes that can do it"`
}

func (s *Starts) dryRun(r *http.Request, in *startInput) (DryRun, error) {
	intent, err := s.intend(r, in)
	if err != nil {
		return DryRun{}, err
	}
	defer intent.Close()
	req := &intent.req
	tried, err := start.New(s.Store).TryLoad(r.Context(), *req, s.config.SpoolDir, intent.compared.Items())
	if err != nil {
		return DryRun{}, err
	}
	out := DryRun{DryRun: true, Name: req.Name, Plan: req.Plan, PlanVersion: req.PlanVersion, Items: tried.Items,
		Skipped: tried.Skipped, Invalid: tried.Invalid, Bytes: tried.Bytes, Held: tried.Held,
		Key: intent.rows.Key(), First: append([]start.PreviewRow{}, tried.First...)}
	if tried.Existing {
		out.Existing = &tried.Run
	}
	if out.Steps, err = s.drySteps(r.Context(), req.Steps, &tried); err != nil {
		return DryRun{}, err
	}
	out.Warnings = intent.warnings(s.Unheard(r.Context(), servicesOf(r.Context(), s.Store, req.Steps)))
	if !tried.Existing {
		var late string
		out.Forecast, late, err = inspect.New(s.Store).Foresee(r.Context(), req, tried.Items-tried.Invalid)
		if late != "" {
			out.Warnings = append(out.Warnings, late)
		}
	}
	return out, err
}

func (s *Starts) drySteps(ctx context.Context, specs []workqueue.StepSpec, tried *start.Tried) (
	[]DryRunStep, error,
) {
	listeners := map[string]int{}
	if len(servicesOf(ctx, s.Store, specs)) > 0 && s.NC.IsConnected() {
		found, err := wire.Discover(ctx, s.NC, apicore.ListenWait)
		if err != nil {
			return nil, err
		}
		for i := range found {
			listeners[found[i].Endpoint]++
		}
	}
	steps := make([]DryRunStep, len(specs))
	for i := range specs {
		spec := &specs[i]
		step := DryRunStep{Name: spec.Name, Kind: spec.Kind, Endpoint: spec.Endpoint, Chunk: spec.Chunk,
			ChunkAuto: spec.ChunkAuto, InFlight: spec.InFlight, InFlightAuto: spec.InFlightAuto,
			Services: listeners[spec.Endpoint]}
		for _, need := range spec.Needs {
			step.Needs = append(step.Needs, specs[need].Name)
		}
		if !tried.Existing { // not for an existing run
			step.Chunk, step.Requests = tried.Steps[i].Chunk, tried.Steps[i].Requests
			var settings gather.HTTP
			if spec.Kind == workqueue.KindHTTP && json.Unmarshal(spec.Config, &settings) == nil && !settings.WholeChunk {
				step.Requests = tried.Items
			}
		}
		if !IsEndpoint(spec.Endpoint) {
			nodes, err := inspect.New(s.Store).NodesFor(ctx, spec.Endpoint)
			if err != nil {
				return nil, err
			}
			step.Services = len(nodes)
		}
		steps[i] = step
	}
	return steps, nil
}

func (s *Starts) answerDryRun(w http.ResponseWriter, r *http.Request, in *startInput) {
	found, err := s.dryRun(r, in)
	if err != nil {
		apicore.SendProblem(w, s.Problem(r.Context(), err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = apicore.SendJSON(w, found) // nothing is lost with a caller that is gone
}
