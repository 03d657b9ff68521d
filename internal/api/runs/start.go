package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/schedule"
	"github.com/tranchehq/tranche/workqueue/start"
)

// The parts of a multipart start, in this order.
const (
	PartRun   = "run"   // RunSettings as JSON
	PartItems = "items" // the items
)

const (
	maxSettings     = 1 << 20
	maxDecompressed = 1 << 40

	// MaxSourceBytes limits the name of the items' source.
	MaxSourceBytes      = 500
	maxIdempotencyBytes = 500
)

// Started is a started run or, if Existing, the one started before with the same idempotency key.
type Started struct {
	Run         workqueue.RunID `json:"run"`
	Name        string          `json:"name,omitempty"`
	Plan        string          `json:"plan"`
	PlanVersion int             `json:"plan_version,omitempty" doc:"of a saved plan"`
	Items       int64           `json:"items"`
	Skipped     int64           `json:"skipped"`
	Invalid     int64           `json:"invalid,omitempty" doc:"items that do not fit the schema: they have failed"`
	Existing    bool            `json:"existing"`
	Key         string          `json:"key,omitempty" doc:"the column or field that the keys came from"`
	DoneBy      *time.Time      `json:"done_by,omitempty" doc:"its deadline"`
	Warnings    []string        `json:"warnings"`
}

// StartedOf returns the answer of a repeated start.
func StartedOf(run *inspect.RunView) any {
	return Started{Run: run.ID, Name: run.Name, Plan: run.Plan, PlanVersion: run.Version, Items: run.Items,
		Skipped: run.Skipped, Existing: true, DoneBy: run.DoneBy, Warnings: []string{}}
}

type startInput struct {
	apicore.Actor
	StartQuery
	DryRun bool `query:"dry_run" doc:"store nothing; show what would be started, or what is wrong"`
}

func (in *startInput) Resolve(ctx huma.Context) (problems []error) {
	known := gather.OverrideFields()
	known = append(known, queryNames(reflect.TypeFor[startInput]())...)
	of := ctx.URL()
	for _, name := range slices.Sorted(maps.Keys(of.Query())) {
		if !slices.Contains(known, name) {
			problems = append(problems, &huma.ErrorDetail{Message: "unknown query parameter", Location: "query." + name})
		}
	}
	return problems
}

func queryNames(input reflect.Type) (names []string) {
	for field := range input.Fields() {
		if field.Anonymous {
			names = append(names, queryNames(field.Type)...)
		}
		if name, _, _ := strings.Cut(field.Tag.Get("query"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}

const startDescription = `The body is the items: CSV, NDJSON or Parquet, plain, gzip or zstd. The query has the
settings. Or it is multipart/form-data with two parts in this order: run, the settings as JSON (also plan, a plan in
YAML, and plan_name), and items. Give one of endpoint, plan and plan_ref; other settings replace the plan's for this
run. Items are streamed. An error leaves no run. With dry_run=true everything is read and checked the same way, and
nothing is stored.`

// Starts starts runs and takes their items.
type Starts struct {
	*Routes

	Spool *intake.Room
	heard heard
}

func itemTypes() []string { return []string{"text/csv", apicore.MimeNDJSON, MimeParquet} }

func (s *Starts) registerStart(api huma.API) {
	s.registerPreview(api)
	body := apicore.Files(itemTypes()...)
	body.Required = false
	body.Content["multipart/form-data"] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeObject,
		Required: []string{PartRun, PartItems}, Properties: map[string]*huma.Schema{
			PartRun: apicore.SchemaOf[RunSettings](api), PartItems: body.Content[MimeParquet].Schema}}}
	started := apicore.SchemaOf[Started](api)
	answers := apicore.Answers(
		"The run that the idempotency key had started before; or, with dry_run=true, what would be started.",
		"application/json", &huma.Schema{AnyOf: []*huma.Schema{started, apicore.SchemaOf[DryRun](api)}})
	answers["201"] = apicore.Answers("The run is in progress; 200 when the idempotency key had started it before.",
		"application/json", started)["200"]
	apicore.RegisterAnswer(s.Core, api, apicore.In(apicore.Into, apicore.Streamed(apicore.ByOperator(huma.Operation{
		OperationID: "start-run", Method: http.MethodPost, Path: "/runs", Summary: "Start a run",
		Parameters: overridesQuery(), SkipValidateParams: true, // startInput.Resolve checks them
		Description: startDescription, DefaultStatus: http.StatusCreated,
		Responses: answers,
	}), body)), func(_ context.Context, in *startInput) (*huma.StreamResponse, error) {
		return apicore.Raw(func(w http.ResponseWriter, r *http.Request) { s.start(w, r, in) }), nil
	})
}

func (s *Starts) start(w http.ResponseWriter, r *http.Request, in *startInput) {
	if in.DryRun {
		s.answerDryRun(w, r, in)
		return
	}
	started, err := s.load(r, in)
	if err != nil {
		apicore.SendProblem(w, s.Problem(r.Context(), err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", s.config.BasePath+apicore.Prefix+"/runs/"+started.Run.String())
	code := http.StatusCreated
	if started.Existing {
		code = http.StatusOK
	}
	w.WriteHeader(code)
	_ = apicore.SendJSON(w, started) // a lost caller can repeat the start with its idempotency key
}

func (s *Starts) load(r *http.Request, in *startInput) (Started, error) {
	intent, err := s.intend(r, in)
	if err != nil {
		return Started{}, err
	}
	return s.started(r.Context(), intent, s.config.Engine.Start)
}

type loading = func(context.Context, start.LoadRequest, func(*start.LoadItem) error) (start.Loaded, error)

func (s *Starts) started(ctx context.Context, intent *intent, load loading) (Started, error) {
	defer intent.Close()
	req := &intent.req
	loaded, err := load(ctx, *req, intent.compared.Items())
	if err != nil {
		return Started{}, err
	}
	warnings := s.unheard(ctx, servicesOf(ctx, s.Store, req.Steps))
	if loaded.Existing {
		req.Name, req.PlanVersion, req.DoneBy = loaded.Name, loaded.PlanVersion, loaded.DoneBy
	} else if req.DoneBy != nil {
		warnings = append(warnings, late(ctx, s.Store, loaded.Run)...)
	}
	return Started{
		Run: loaded.Run, Name: req.Name, Plan: req.Plan, PlanVersion: req.PlanVersion, Items: loaded.Items,
		Skipped: loaded.Skipped, Invalid: loaded.Invalid, Existing: loaded.Existing, Key: intent.rows.Key(),
		DoneBy: req.DoneBy, Warnings: intent.warnings(warnings),
	}, nil
}

// StartTx starts a run within a caller's transaction. See [start.Store.LoadTx].
func (s *Starts) StartTx(ctx context.Context, tx pgx.Tx, settings RunSettings, items io.Reader, actor string,
) (Started, error) {
	if err := s.MayChange(); err != nil {
		return Started{}, err
	}
	if settings.elsewhere() {
		return Started{}, apicore.BadInput("a run in a transaction takes the given items; leave out sql, stream and from_run")
	}
	intent, err := s.intentOf(ctx, settings, items, actor)
	if err != nil {
		return Started{}, err
	}
	return s.started(ctx, intent, func(ctx context.Context, req start.LoadRequest, next func(*start.LoadItem) error,
	) (start.Loaded, error) {
		return start.New(s.Store).LoadTx(ctx, tx, req, next)
	})
}

type intent struct {
	req      start.LoadRequest
	rows     *intake.Reader
	compared *Comparison
}

func (i *intent) warnings(others []string) []string {
	return append([]string{}, slices.Concat(others, i.compared.Warnings, i.rows.Notes())...) // never nil
}

func (i *intent) Close() { _ = i.rows.Close() } // read only, nothing is lost

func (s *Starts) intend(r *http.Request, in *startInput) (*intent, error) {
	if err := s.MayChange(); err != nil {
		return nil, err
	}
	settings, items, err := settingsOf(r, in)
	if err != nil {
		return nil, err
	}
	return s.intentOf(r.Context(), settings, items, in.Actor.Name)
}

func (s *Starts) intentOf(ctx context.Context, settings RunSettings, items io.Reader, actor string) (*intent, error) {
	if strings.HasPrefix(settings.IdempotencyKey, schedule.ScheduleKeys) {
		return nil, apicore.BadInput("idempotency_key: keys that begin with " + schedule.ScheduleKeys +
			" are those of schedules; choose another one")
	}
	req, look, err := s.Request(ctx, settings, actor)
	if err != nil {
		return nil, err
	}
	if settings.FromRun != "" { // the last run may be another one by now
		settings.FromRun = req.FromRun.String()
	}
	contract, err := s.ContractOf(ctx, &req)
	if err != nil {
		return nil, err
	}
	rows, err := s.rowsOf(ctx, &settings, look, items, contract.known)
	if err != nil {
		return nil, err
	}
	req.Unit, req.Content = rows.Unit(), startContent(&settings)
	return &intent{req, rows, contract.Compare(rows)}, nil
}

func settingsOf(r *http.Request, in *startInput) (RunSettings, io.Reader, error) {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		settings, err := in.settings(r.URL.Query())
		return settings, r.Body, err
	}
	parts := multipart.NewReader(r.Body, params["boundary"])
	var settings RunSettings
	part, err := parts.NextPart()
	if err != nil || part.FormName() != PartRun {
		return settings, nil, missingPart(PartRun)
	}
	if err := apicore.ReadJSON(part, maxSettings, "part run", &settings); err != nil {
		return settings, nil, err
	}
	items, err := parts.NextPart()
	if errors.Is(err, io.EOF) && settings.elsewhere() {
		return settings, nil, nil
	}
	if err != nil || items.FormName() != PartItems {
		return settings, nil, missingPart(PartItems)
	}
	return settings, onlyItems{items, parts}, nil
}

// onlyItems refuses parts after the items, which would be left out.
type onlyItems struct {
	io.Reader

	parts *multipart.Reader
}

func (o onlyItems) Read(p []byte) (int, error) {
	n, err := o.Reader.Read(p)
	if !errors.Is(err, io.EOF) {
		return n, err
	}
	switch more, next := o.parts.NextPart(); {
	case next == nil:
		return n, &row.InputError{Reason: fmt.Sprintf("the multipart body has part %q after items, which ends it; "+
			"send all items in one part", apicore.Echo(more.FormName()))}
	case errors.Is(next, io.EOF):
		return n, err
	default:
		return n, next
	}
}

func missingPart(name string) error {
	return apicore.BadInput("the multipart body needs the parts run and items, in this order; " + name + " is missing")
}

func stepSpecs(plan *gather.Plan) ([]workqueue.StepSpec, error) {
	steps := make([]workqueue.StepSpec, len(plan.Steps))
	for i := range plan.Steps {
		step := &plan.Steps[i]
		config, err := kindConfig(step)
		if err != nil {
			return nil, err
		}
		steps[i] = workqueue.StepSpec{
			Name: step.Name, Endpoint: step.TargetKey(), StepSettings: step.StepSettings,
			Kind: workqueue.Kind(step.Kind()), Needs: numbersOf(plan, step.Needs),
			Inputs: numbersOf(plan, step.InputParts()), NoItem: !step.SeesItem(), Optional: step.Optional,
			Barrier: step.Barrier, Approval: step.Approval, Config: config,
		}
	}
	return steps, nil
}

func orderOf(plan *gather.Plan) *workqueue.RunOrder {
	if !plan.Order.Set() {
		return nil
	}
	return &workqueue.RunOrder{Rule: plan.Order, Stop: plan.Stops()}
}

func numbersOf(plan *gather.Plan, names []string) []int {
	numbers := make([]int, len(names))
	for i, name := range names {
		numbers[i] = slices.IndexFunc(plan.Steps, func(s gather.Step) bool { return s.Name == name })
	}
	return numbers
}

func kindConfig(step *gather.Step) (json.RawMessage, error) {
	settings := step.KindSettings()
	if settings == nil {
		return nil, nil
	}
	config, err := json.Marshal(settings)
	if err != nil {
		return nil, fmt.Errorf("write the settings of step %s: %w", step.Name, err)
	}
	return config, nil
}

// heard caches endpoints that a service listened on just now, and until when that counts. Querying JetStream costs
// more than much of a small run.
type heard struct {
	mu    sync.Mutex
	until map[string]time.Time
}

const (
	// heardFor is how long an endpoint counts as listened on.
	heardFor = 5 * time.Second
	maxHeard = 10_000
)

func (s *Starts) unheard(ctx context.Context, names []string) []string {
	if s.NC.IsConnected() {
		names = s.heard.others(names, time.Now())
	}
	warnings := s.Unheard(ctx, names)
	if len(warnings) == 0 {
		s.heard.add(names, time.Now().Add(heardFor))
	}
	return warnings
}

func (h *heard) others(names []string, now time.Time) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return now.Before(h.until[name]) })
}

func (h *heard) add(names []string, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until == nil || len(h.until) > maxHeard {
		h.until = map[string]time.Time{}
	}
	for _, name := range names {
		h.until[name] = until
	}
}
