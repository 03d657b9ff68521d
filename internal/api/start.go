package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/workqueue"
)

// The parts of a multipart start, in this order.
const (
	PartRun   = "run"   // RunSettings as JSON
	PartItems = "items" // the items
)

const (
	maxSettings     = 1 << 20
	maxDrained      = 1 << 30 // of an input that was refused
	drainTimeout    = 10 * time.Second
	maxDecompressed = 1 << 40

	maxNameBytes        = 200
	maxSourceBytes      = 500
	maxIdempotencyBytes = 500
)

// RunSettings is how to run the items that come with it. Either Endpoint or Plan is set.
type RunSettings struct {
	Endpoint       string            `json:"endpoint,omitempty"`
	Plan           string            `json:"plan,omitempty" doc:"a plan in YAML"`
	PlanName       string            `json:"plan_name,omitempty" doc:"its name, when it does not give itself one"`
	Key            string            `json:"key,omitempty" doc:"the column or field that is the item's key"`
	Format         string            `json:"format,omitempty" doc:"csv or ndjson; recognised when absent"`
	Name           string            `json:"name,omitempty"`
	Params         map[string]string `json:"params,omitempty"`
	Chunk          int               `json:"chunk,omitempty" doc:"0: what the plan says"`
	InFlight       int               `json:"in_flight,omitempty" doc:"0: what the plan says"`
	Priority       int               `json:"priority,omitempty"`
	IdempotencyKey string            `json:"idempotency_key,omitempty"`
	OnDuplicate    string            `json:"on_duplicate,omitempty" doc:"error, skip or allow"`
	Source         string            `json:"source,omitempty" doc:"where the items come from, for people"`
}

// Started is a run that was started, or, when Existing, the one that the idempotency key had started before.
type Started struct {
	Run      workqueue.RunID `json:"run"`
	Name     string          `json:"name,omitempty"`
	Items    int64           `json:"items"`
	Skipped  int64           `json:"skipped"`
	Existing bool            `json:"existing"`
	Key      string          `json:"key,omitempty" doc:"the column or field that the keys came from"`
	Warnings []string        `json:"warnings"`
}

type startInput struct {
	Actor
	Endpoint       string   `query:"endpoint"`
	Key            string   `query:"key"`
	Format         string   `query:"format" enum:"csv,ndjson"`
	Name           string   `query:"name"`
	Param          []string `query:"param,explode" doc:"name=value; may stand more than once"`
	Chunk          int      `query:"chunk"`
	InFlight       int      `query:"in_flight"`
	Priority       int      `query:"priority"`
	IdempotencyKey string   `query:"idempotency_key"`
	OnDuplicate    string   `query:"on_duplicate" enum:"error,skip,allow"`
	Source         string   `query:"source"`
}

const startDescription = `The body is the items, as CSV or NDJSON, plain or compressed with gzip or zstd, and the query
holds the settings. Or it is multipart/form-data with two parts in this order: run, the settings as JSON (also plan, a
plan in YAML, and plan_name), and items. Either way items stream in. After an error there is no run.`

func (s *Server) registerStart(api huma.API) {
	huma.Register(api, huma.Operation{
		OperationID: "start-run", Method: http.MethodPost, Path: "/runs", Summary: "Start a run",
		Description: startDescription, DefaultStatus: http.StatusCreated,
		Responses: map[string]*huma.Response{"201": {
			Description: "The run is under way; 200 when the idempotency key had started it before.",
			Content: map[string]*huma.MediaType{"application/json": {
				Schema: huma.SchemaFromType(api.OpenAPI().Components.Schemas, typeOf[Started]()),
			}},
		}},
	}, func(_ context.Context, in *startInput) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: func(ctx huma.Context) {
			r, w := humago.Unwrap(ctx)
			s.start(w, r, in)
		}}, nil
	})
}

func (s *Server) start(w http.ResponseWriter, r *http.Request, in *startInput) {
	started, err := s.load(r, in)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", Prefix+"/runs/"+started.Run.String())
	code := http.StatusCreated
	if started.Existing {
		code = http.StatusOK
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(started) // a caller that is gone can ask by its idempotency key
}

// refuse answers at once and then reads on for a while: a client that is still sending would otherwise see its
// connection reset instead of the answer.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	control := http.NewResponseController(w)
	duplex := control.EnableFullDuplex() == nil
	if body, ok := r.Body.(*timedBody); ok {
		body.within(drainTimeout)
	}
	w.Header().Set("Connection", "close")
	sendProblem(w, s.problem(r.Context(), err))
	if duplex && control.Flush() == nil {
		_, _ = io.CopyN(io.Discard, r.Body, maxDrained)
	}
}

func (s *Server) load(r *http.Request, in *startInput) (Started, error) {
	if err := s.mayChange(in.Actor.Name); err != nil {
		return Started{}, err
	}
	settings, items, err := settingsOf(r, in)
	if err != nil {
		return Started{}, err
	}
	req, err := s.request(settings, in.Actor.Name)
	if err != nil {
		return Started{}, err
	}
	rows, err := intake.Open(wholeItems{items, r.Body}, intake.Config{
		Format: intake.Format(settings.Format), Key: settings.Key, MaxDecompressed: maxDecompressed,
		MaxDepth: endpoints.DefaultMaxDepth,
	})
	if err != nil {
		return Started{}, err
	}
	var row intake.Item
	loaded, err := s.engine.Start(r.Context(), req, func(item *workqueue.LoadItem) error {
		if err := rows.Next(&row); err != nil {
			return err
		}
		item.Key, item.Payload, item.Line = row.Key, row.Payload, row.Line
		return nil
	})
	if err != nil {
		return Started{}, err
	}
	names := make([]string, len(req.Steps))
	for i := range req.Steps {
		names[i] = req.Steps[i].Endpoint
	}
	return Started{
		Run: loaded.Run, Name: req.Name, Items: loaded.Items, Skipped: loaded.Skipped, Existing: loaded.Existing,
		Key: rows.Key(), Warnings: s.unheard(r.Context(), names),
	}, nil
}

// settingsOf reads the settings from where they stand, and returns the rest of the body as the items.
func settingsOf(r *http.Request, in *startInput) (RunSettings, io.Reader, error) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		settings, err := in.settings()
		return settings, r.Body, err
	}
	parts := multipart.NewReader(r.Body, params["boundary"])
	var settings RunSettings
	part, err := namedPart(parts, PartRun)
	if err != nil {
		return settings, nil, err
	}
	decoder := json.NewDecoder(io.LimitReader(part, maxSettings))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&settings); err != nil {
		return settings, nil, &inputError{"part run: " + cut(err.Error(), 2*maxEchoed) +
			"; it must be one JSON object with the settings"}
	}
	items, err := namedPart(parts, PartItems)
	return settings, items, err
}

func namedPart(parts *multipart.Reader, name string) (io.Reader, error) {
	part, err := parts.NextPart()
	if err != nil || part.FormName() != name {
		return nil, &inputError{"the multipart body needs the parts run and items, in this order; " + name + " is missing"}
	}
	return part, nil
}

func (in *startInput) settings() (RunSettings, error) {
	settings := RunSettings{
		Endpoint: in.Endpoint, Key: in.Key, Format: in.Format, Name: in.Name, Chunk: in.Chunk, InFlight: in.InFlight,
		Priority: in.Priority, IdempotencyKey: in.IdempotencyKey, OnDuplicate: in.OnDuplicate, Source: in.Source,
		Params: map[string]string{},
	}
	for _, p := range in.Param {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return settings, &inputError{fmt.Sprintf("param %q is not name=value", cut(p, maxEchoed))}
		}
		settings.Params[name] = value
	}
	return settings, nil
}

// request checks the settings and makes a load of them.
func (s *Server) request(set RunSettings, actor string) (workqueue.LoadRequest, error) {
	if err := set.validate(); err != nil {
		return workqueue.LoadRequest{}, err
	}
	plan, err := set.plan()
	if err != nil {
		return workqueue.LoadRequest{}, err
	}
	spec, err := json.Marshal(plan)
	if err != nil {
		return workqueue.LoadRequest{}, fmt.Errorf("write plan %s: %w", plan.Name, err)
	}
	steps := make([]workqueue.StepSpec, len(plan.Steps))
	for i, step := range plan.Steps {
		steps[i] = workqueue.StepSpec{
			Name: step.Name, Endpoint: step.Endpoint, Chunk: step.Chunk, InFlight: step.InFlight,
			MaxAttempts: step.MaxAttempts, Timeout: step.Timeout, RetryBackoff: step.RetryBackoff,
			InFlightAuto: step.InFlightAuto, ChunkAuto: step.ChunkAuto, ChunkBytes: step.ChunkBytes,
			ChunkTime: step.ChunkTime, Rate: step.Rate, MaxBackoff: step.MaxBackoff, RetryCodes: step.RetryCodes,
			NeverRetry: step.NeverRetry,
		}
	}
	params := maps.Clone(set.Params)
	if params == nil {
		params = map[string]string{}
	}
	return workqueue.LoadRequest{
		Name: set.Name, Plan: plan.Name, Spec: spec, Params: params, Priority: set.Priority, Steps: steps,
		OnDuplicate: workqueue.OnDuplicate(set.OnDuplicate), Source: set.Source, CreatedBy: actor,
		IdempotencyKey: set.IdempotencyKey, Session: s.engine.Session(),
	}, nil
}

// plan reads the plan, or makes the one of the endpoint, and lays the settings of this run over it.
func (set *RunSettings) plan() (*gather.Plan, error) {
	if (set.Endpoint == "") == (set.Plan == "") {
		return nil, &inputError{"give either an endpoint or a plan"}
	}
	plan, err := gather.Single(set.Endpoint), error(nil)
	if set.Plan != "" {
		plan, err = gather.Parse(cmp.Or(set.PlanName, "plan"), []byte(set.Plan))
	}
	if err != nil {
		return nil, &inputError{err.Error()}
	}
	for i := range plan.Steps {
		plan.Steps[i].Chunk = cmp.Or(set.Chunk, plan.Steps[i].Chunk)
		if set.InFlight != 0 {
			plan.Steps[i].InFlight, plan.Steps[i].InFlightAuto = set.InFlight, false
		}
	}
	if err := plan.Validate(); err != nil {
		return nil, &inputError{err.Error()}
	}
	return plan, nil
}

func (set *RunSettings) validate() error {
	switch {
	case set.Chunk < 0 || set.Chunk > bitfield.Size:
		return &inputError{fmt.Sprintf("chunk is %d; it must lie between 1 and %d", set.Chunk, bitfield.Size)}
	case set.InFlight < 0 || set.InFlight > gather.MaxInFlight:
		return &inputError{fmt.Sprintf("in_flight is %d; it must lie between 1 and %d", set.InFlight, gather.MaxInFlight)}
	case set.Priority < math.MinInt32 || set.Priority > math.MaxInt32:
		return &inputError{fmt.Sprintf("priority is %d; it must lie between %d and %d", set.Priority, math.MinInt32,
			math.MaxInt32)}
	case set.Name == workqueue.LastRun:
		return &inputError{`a run cannot be called "last", which always means the newest; choose another name`}
	}
	for _, t := range []struct {
		field, value string
		most         int
	}{
		{"name", set.Name, maxNameBytes}, {"source", set.Source, maxSourceBytes}, {"plan_name", set.PlanName, maxNameBytes},
		{"idempotency_key", set.IdempotencyKey, maxIdempotencyBytes}, {"key", set.Key, intake.MaxKeyBytes},
	} {
		if err := checkText(t.field, t.value, t.most); err != nil {
			return err
		}
	}
	switch workqueue.OnDuplicate(set.OnDuplicate) {
	case "", workqueue.DuplicateError, workqueue.DuplicateSkip, workqueue.DuplicateAllow:
	default:
		return &inputError{fmt.Sprintf("on_duplicate is %q; it must be error, skip or allow",
			cut(set.OnDuplicate, maxEchoed))}
	}
	switch intake.Format(set.Format) {
	case intake.Recognise, intake.CSV, intake.NDJSON:
		return nil
	default:
		return &inputError{fmt.Sprintf("format is %q; it must be csv or ndjson", cut(set.Format, maxEchoed))}
	}
}

// wholeItems makes a break in the stream the sender's fault, and never the end of the items. Its end is the end of the
// body, whatever a sender lets follow.
type wholeItems struct{ from, body io.Reader }

// Read implements io.Reader.
func (w wholeItems) Read(p []byte) (int, error) {
	n, err := w.from.Read(p)
	var slow net.Error
	switch {
	case err == io.EOF:
		if body, ok := w.body.(*timedBody); ok {
			body.ended()
		}
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = &inputError{"the items break off before their end; nothing was started, send them again"}
	case errors.As(err, &slow) && slow.Timeout():
		err = &inputError{"nothing more came of the items for too long; nothing was started, send them again"}
	}
	return n, err
}
