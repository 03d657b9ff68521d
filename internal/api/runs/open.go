package runs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/start"
)

// MaxAddBody limits the body of one add, as received.
const MaxAddBody = 256 << 20

// OpenSettings is RunSettings for a run that gets its items later, without the members about items.
type OpenSettings struct {
	RunSettings
	SealWithin string `json:"seal_within,omitempty" doc:"overdue if not sealed by then; 24h when absent" example:"6h"`
	OnOverdue  string `json:"on_overdue,omitempty" doc:"what then: report (ends when idle 7 days), seal, cancel"`
}

// Opened is an open run or, if Existing, the one opened before with the same idempotency key.
type Opened struct {
	Run          workqueue.RunID `json:"run"`
	Name         string          `json:"name,omitempty"`
	Plan         string          `json:"plan"`
	PlanVersion  int             `json:"plan_version,omitempty" doc:"of a saved plan"`
	SealDeadline time.Time       `json:"seal_deadline"`
	Existing     bool            `json:"existing"`
	Warnings     []string        `json:"warnings"`
}

// AddedItems is the result of an add or, if Existing, its first result.
type AddedItems struct {
	start.Added
	Key      string   `json:"key,omitempty" doc:"the column or field that the keys came from"`
	Warnings []string `json:"warnings,omitempty" doc:"findings about the input"`
}

// SealSettings are the settings of a seal.
type SealSettings struct {
	Expect *int64 `json:"expect,omitempty" minimum:"0" doc:"seal only if the run has this many items"`
	Reason string `json:"reason,omitempty" maxLength:"500" doc:"why, for the audit log"`
}

// SealedRun is a run closed to new items.
type SealedRun struct{ start.Sealed }

const openDescription = `Work begins while items are added: each full group of 8192 immediately, the rest when the
run is sealed. A canary is refused. Percentages, like max_failed=1%, apply once the run is sealed and its size is
known.`

const addDescription = `The body is items in the formats of start-run, up to 256 MiB and 1,000,000, added all or none.
The same idempotency_key with the same body gets the same answer; with another body it is a conflict. Keys that the
run already has are handled as open-run's on_duplicate says.`

func (s *Starts) registerOpen(api huma.API) {
	apicore.Register(s.Core, api, apicore.In(apicore.Into, apicore.ReadsJSON[OpenSettings](api, apicore.Post(
		"open-run", "/runs/open", "Open a run for items over time", openDescription), maxSettings)), s.openRun)
	apicore.Register(s.Core, api, apicore.Streamed(apicore.Post("add-items", "/runs/{run}/items",
		"Add items to an open run", addDescription), apicore.Files(itemTypes()...)), s.addItems)
	apicore.Register(s.Core, api, apicore.Post("seal-run", "/runs/{run}/seal",
		"Close an open run to new items", ""), s.sealRun)
}

type openInput struct {
	apicore.Changer
	apicore.JSON[OpenSettings]
}

func (s *Starts) openRun(ctx context.Context, in *openInput) (Opened, error) {
	set := in.Sent()
	var err error
	if set.Key != "" || set.Format != "" || set.elsewhere() {
		return Opened{}, apicore.BadInput("key, format, sql and stream are about items; an open run gets them later, by adds")
	}
	open := start.OpenRequest{OnOverdue: start.OnOverdue(set.OnOverdue)}
	if set.SealWithin != "" {
		if open.SealWithin, err = time.ParseDuration(set.SealWithin); err != nil || open.SealWithin <= 0 {
			return Opened{}, apicore.BadInput(fmt.Sprintf("seal_within is %q; want a time like 6h or 90m",
				apicore.Echo(set.SealWithin)))
		}
	}
	var look *gather.Items
	if open.LoadRequest, look, err = s.Request(ctx, set.RunSettings, in.Name); err != nil {
		return Opened{}, err
	}
	if look.OnInvalid != "" {
		return Opened{}, apicore.BadInput("on_invalid: " + look.OnInvalid + " is for runs that are started with all their " +
			"items; " +
			"what does not fit the schema of an open run is refused with its add: leave it out")
	}
	contract, err := s.ContractOf(ctx, &open.LoadRequest)
	if err != nil {
		return Opened{}, err
	}
	opened, err := s.config.Engine.OpenRun(ctx, open)
	if err != nil {
		return Opened{}, err
	}
	return Opened{Run: opened.Run, Name: opened.Name, Plan: open.Plan, PlanVersion: open.PlanVersion,
		SealDeadline: opened.SealDeadline, Existing: opened.Existing,
		Warnings: append(s.Unheard(ctx, servicesOf(ctx, s.Store, open.Steps)), contract.without...)}, nil
}

type addInput struct {
	apicore.RunPath
	apicore.Changer
	IdempotencyKey string `query:"idempotency_key" doc:"the same key with the same items is answered as before"`
	Key            string `query:"key" doc:"the column or field that is the item's key"`
	Format         string `query:"format" enum:"csv,ndjson,parquet" doc:"detected when absent"`
	Contract       string `query:"contract" enum:"reject,warn,off" doc:"when no item has a field that a service requires"`
	ShapeQuery

	apicore.Stream
}

// keep spools a body of items: a transaction must not wait for a sender, and may have to read the items twice.
func (s *Starts) keep(ctx context.Context, body io.Reader) (*intake.Kept, error) {
	spool := s.SpoolOf(ctx)
	spool.Max = MaxAddBody
	return spool.Keep(wholeItems(body))
}

func (s *Starts) addItems(ctx context.Context, in *addInput) (out AddedItems, err error) {
	if err := apicore.CheckText("idempotency_key", in.IdempotencyKey, maxIdempotencyBytes); err != nil {
		return out, err
	}
	kept, err := s.keep(ctx, in.Body())
	if err != nil {
		return out, err
	}
	defer func() { _ = kept.Close() }() // read only, nothing is lost
	plan, err := planOfRun(ctx, s.Store, in.ID)
	if err != nil {
		return out, err
	}
	look, err := in.Over(&plan.Items)
	if err != nil {
		return out, err
	}
	plan.Items = *look
	plan.Items.Contract = cmp.Or(in.Contract, look.Contract)
	contract, err := s.contractOf(ctx, plan)
	if err != nil {
		return out, err
	}
	config, err := s.IntakeConfig(ctx, in.Format, in.Key, look)
	if err != nil {
		return out, err
	}
	config.Partial = true
	add := Adding{Config: config, Kept: kept, contract: contract}
	defer func() { _ = add.Close() }()
	shape, err := json.Marshal(in.ShapeQuery)
	if err != nil {
		return out, fmt.Errorf("write how items are read: %w", err)
	}
	digest := sha256.Sum256(fmt.Appendf(nil, "%x\x00%s\x00%s\x00%s", kept.Digest, in.Key, in.Format, shape))
	if err := add.Open(); err != nil {
		return out, err
	}
	added, err := s.config.Engine.Add(ctx, start.AddRequest{
		Run: in.ID, Key: in.IdempotencyKey, Digest: digest[:], Actor: in.Name, Unit: add.Rows.Unit(), Items: add.items,
	})
	if err != nil {
		return out, err
	}
	added.Run = in.ID
	return AddedItems{added, add.Rows.Key(), add.warnings()}, nil
}

// ItemsOf returns what a run's plan says about its items.
func ItemsOf(ctx context.Context, db *database.DB, run workqueue.RunID) (*gather.Items, error) {
	plan, err := planOfRun(ctx, db, run)
	if err != nil {
		return nil, err
	}
	return &plan.Items, nil
}

func planOfRun(ctx context.Context, db *database.DB, run workqueue.RunID) (*gather.Plan, error) {
	spec, err := start.New(db).Spec(ctx, run)
	if err != nil {
		return nil, err
	}
	plan := &gather.Plan{}
	if err := json.Unmarshal(spec, plan); err != nil {
		return nil, fmt.Errorf("run %s: %w", run, err)
	}
	return plan, nil
}

// Adding reads the items of an add, repeatedly if needed.
type Adding struct {
	Config intake.Config
	Kept   *intake.Kept
	Rows   *intake.Reader
	used   bool

	contract *Contract
	compared *Comparison
}

// Open starts reading.
func (a *Adding) Open() (err error) {
	a.Rows, err = intake.Open(a.Kept.Reader(), a.Config)
	return err
}

func (a *Adding) items() (func(*start.LoadItem) error, error) {
	if err := a.Again(); err != nil {
		return nil, err
	}
	a.compared = a.contract.Compare(a.Rows)
	return a.compared.Items(), nil
}

// warnings are findings about the items. A repeated add did not read them.
func (a *Adding) warnings() []string {
	if a.compared == nil {
		return a.Rows.Notes()
	}
	return slices.Concat(a.compared.Warnings, a.Rows.Notes())
}

// Again starts over if some items were read.
func (a *Adding) Again() (err error) {
	if a.used {
		err = errors.Join(a.Close(), a.Open())
	}
	a.used = true
	return err
}

// Close ends the reading.
func (a *Adding) Close() error {
	if a.Rows == nil {
		return nil
	}
	return a.Rows.Close()
}

func (s *Starts) sealRun(ctx context.Context, in *runChange[*SealSettings]) (SealedRun, error) {
	req := start.SealRequest{Run: in.ID, Actor: in.Name}
	if in.Body != nil {
		req.Expect, req.Reason = in.Body.Expect, in.Body.Reason
	}
	sealed, err := s.config.Engine.SealRun(ctx, req)
	sealed.Run = in.ID
	return SealedRun{sealed}, err
}

// servicesOf returns the endpoints that get the requests of steps.
func servicesOf(ctx context.Context, db *database.DB, steps []workqueue.StepSpec) (names []string) {
	var moved []string // perhaps to a canary
	for i := range steps {
		switch steps[i].Kind {
		case "", workqueue.KindEndpoint:
			moved = append(moved, steps[i].Endpoint)
		case workqueue.KindDirect:
			names = append(names, steps[i].Endpoint)
		}
	}
	if to, err := pace.New(db).Served(ctx, moved); err == nil {
		moved = to
	}
	return append(names, moved...)
}
