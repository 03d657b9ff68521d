package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue/collector"
)

// OperationPage is a page of the operations of a collector.
type OperationPage struct {
	Ops  []collector.OpView `json:"ops" nullable:"false"`
	Next int64              `json:"next,omitempty" doc:"value of after for the next page; absent on the last"`
}

// AddedOperations is what became of operations that were added.
type AddedOperations struct {
	Collector string `json:"collector"`
	collector.AddedOps
	DryRun bool               `json:"dry_run,omitempty" doc:"true: nothing was added, and this is what would have been"`
	Sample []SampledOperation `json:"sample,omitempty" doc:"of a dry run: the first operations, as they would be stored"`
}

// SampledOperation is an operation as it would be stored.
type SampledOperation struct {
	ID       string          `json:"id,omitempty" doc:"absent: it would be given one"`
	Key      string          `json:"key"`
	Fold     string          `json:"fold,omitempty" doc:"what it would be folded by"`
	Priority int             `json:"priority,omitempty"`
	Payload  json.RawMessage `json:"payload"`
}

// OperationChoice says which operations are meant. What is given has to hold together; one of it has to be given.
type OperationChoice struct {
	IDs  []string `json:"ids,omitempty" maxItems:"10000" nullable:"false" doc:"these"`
	Keys []string `json:"keys,omitempty" maxItems:"10000" nullable:"false" doc:"those of these keys"`
	Code string   `json:"code,omitempty" maxLength:"200" doc:"those whose last error had this code"`
	All  bool     `json:"all,omitempty" doc:"all"`
}

// DropChoice says which operations are given up.
type DropChoice struct {
	OperationChoice

	Waiting bool `json:"waiting,omitempty" doc:"also those that are not parked; else parked ones only"`
}

// RequeuedOperations says how many operations are tried again.
type RequeuedOperations struct {
	Requeued int64 `json:"requeued"`
}

// DroppedOperations says how many operations were given up.
type DroppedOperations struct {
	Dropped int64 `json:"dropped"`
}

const addOperationsDescription = `The body is operations, one JSON object after the other, or {"ops":[…]} with a list of
them: {"id":"order-17","key":"CUST-7","priority":0,"payload":{…}}. Only the payload has to be there, and the key when
the collector has no order_by. They are added all or not at all, and stored when the answer comes; up to 100,000 and 32
MiB at once. An id that was added before, in the time for which the collector remembers ids, is counted as a duplicate
and not added again: so a request whose answer was lost can be sent again. With dry_run nothing is added: the answer
says what would be, or what is wrong. Adds are not in the audit log, since there are too many.`

func (s *collectorRoutes) registerOperations(api huma.API) {
	kernel.Register(s.Kernel, api, kernel.Streamed(kernel.ByOperator(huma.Operation{
		OperationID: "add-operations", Method: http.MethodPost, Path: "/collectors/{name}/ops",
		Summary: "Add operations to a collector", Description: addOperationsDescription,
	})), s.addOperations)
	lines := &huma.Schema{Type: huma.TypeString, Format: "binary"}
	api.OpenAPI().Paths["/collectors/{name}/ops"].Post.RequestBody = &huma.RequestBody{Required: true,
		Content: map[string]*huma.MediaType{kernel.MimeNDJSON: {Schema: lines}}}
	kernel.Register(s.Kernel, api, kernel.Held(kernel.Get("list-operations", "/collectors/{name}/ops",
		"List the operations of a collector, in the order in which they were added")), s.listOperations)
	kernel.Register(s.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "requeue-operations", Method: http.MethodPost, Path: "/collectors/{name}/requeue",
		Summary:     "Have operations tried again that are parked, or wait for their next try",
		Description: "They have all their attempts again, and go with the next flush of their keys.",
	}), s.requeueOperations)
	kernel.Register(s.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "drop-operations", Method: http.MethodPost, Path: "/collectors/{name}/drop",
		Summary:     "Give operations up",
		Description: "They are deleted. Those of a flush that is under way may have been done.",
	}), s.dropOperations)
}

type addOperationsInput struct {
	CollectorPath
	kernel.Actor
	DryRun bool `query:"dry_run" doc:"add nothing, and say what would be added, or what is wrong"`

	body io.Reader
}

// Resolve takes the body as it comes.
func (in *addOperationsInput) Resolve(ctx huma.Context) []error {
	in.body = ctx.BodyReader()
	return nil
}

// addOperations needs nothing of the node: operations wait in PostgreSQL.
func (s *collectorRoutes) addOperations(ctx context.Context, in *addOperationsInput) (AddedOperations, error) {
	out := AddedOperations{Collector: in.Collector, DryRun: in.DryRun}
	var err error
	if !in.DryRun {
		out.AddedOps, err = s.producers.AddFrom(ctx, in.Collector, wholeOps{in.body})
		return out, kernel.Seen(err, seeCollectors)
	}
	var sample []collector.Op
	out.AddedOps, sample, err = s.producers.TryFrom(ctx, in.Collector, wholeOps{in.body})
	for i := range sample {
		op := &sample[i]
		out.Sample = append(out.Sample, SampledOperation{op.ID, op.Key, op.Fold, op.Priority, op.Payload})
	}
	return out, kernel.Seen(err, seeCollectors)
}

// wholeOps tells a body that breaks off from one that is wrong.
type wholeOps struct{ from io.Reader }

func (w wholeOps) Read(p []byte) (int, error) {
	n, err := w.from.Read(p)
	how, slow := kernel.CameTooSlowly(err)
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return n, err
	case slow:
		return n, kernel.BadInput("the body: " + how + "; nothing was added, send it again")
	default:
		return n, kernel.BadInput("the body breaks off before its end; nothing was added, send it again")
	}
}

type listOperationsInput struct {
	CollectorPath
	State string `query:"state" enum:"waiting,backoff,parked" doc:"only those in this state"`
	Key   string `query:"key" doc:"only those of this key"`
	ID    string `query:"id" doc:"only those with this id"`
	Code  string `query:"code" doc:"only those whose last error had this code"`
	After int64  `query:"after" minimum:"0" doc:"the value of next of the page before"`
	Limit int    `query:"limit" minimum:"1" maximum:"500" default:"50"`
}

func (s *collectorRoutes) listOperations(ctx context.Context, in *listOperationsInput) (OperationPage, error) {
	for field, value := range map[string]string{"key": in.Key, "id": in.ID, "code": in.Code} {
		if err := kernel.CheckText(field, value, collector.MaxOpKey); err != nil {
			return OperationPage{}, err
		}
	}
	ops, err := collector.New(s.Store).Ops(ctx, in.Collector, collector.OpsFilter{
		State: in.State, Key: in.Key, ID: in.ID, Code: in.Code, After: in.After, Limit: in.Limit + 1,
	})
	if err != nil {
		return OperationPage{}, kernel.Seen(err, seeCollectors)
	}
	page := OperationPage{Ops: append([]collector.OpView{}, ops...)}
	if len(page.Ops) > in.Limit {
		page.Ops = page.Ops[:in.Limit]
		page.Next = page.Ops[in.Limit-1].Number
	}
	return page, nil
}

type requeueOperationsInput struct {
	CollectorPath
	kernel.Actor
	Body OperationChoice
}

func (s *collectorRoutes) requeueOperations(ctx context.Context, in *requeueOperationsInput) (RequeuedOperations, error) {
	sel, err := in.Body.Selection(in.Name)
	if err != nil {
		return RequeuedOperations{}, err
	}
	n, err := s.engine.RequeueOps(ctx, in.Collector, sel, in.Name)
	return RequeuedOperations{Requeued: n}, kernel.Seen(err, seeCollectors)
}

type dropOperationsInput struct {
	CollectorPath
	kernel.Actor
	Body DropChoice
}

func (s *collectorRoutes) dropOperations(ctx context.Context, in *dropOperationsInput) (DroppedOperations, error) {
	sel, err := in.Body.Selection(in.Name)
	if err != nil {
		return DroppedOperations{}, err
	}
	sel.Waiting = in.Body.Waiting
	n, err := collector.New(s.Store).DropOps(ctx, in.Collector, sel, in.Name)
	return DroppedOperations{Dropped: n}, kernel.Seen(err, seeCollectors)
}

// Selection checks a choice.
func (c *OperationChoice) Selection(actor string) (collector.OpsSelection, error) {
	sel := collector.OpsSelection{All: c.All, IDs: c.IDs, Keys: c.Keys, Code: c.Code}
	narrowed := len(c.IDs) > 0 || len(c.Keys) > 0 || c.Code != ""
	switch {
	case c.All && narrowed:
		return sel, kernel.BadInput("all stands beside ids, keys or code; give all, or what narrows it")
	case !c.All && !narrowed:
		return sel, kernel.BadInput("say which operations: ids, keys, code, or all")
	}
	err := errors.Join(kernel.CheckText("header "+kernel.ActorHeader, actor, kernel.MaxActorBytes),
		kernel.CheckText("code", c.Code, kernel.MaxCodeBytes))
	for _, id := range c.IDs {
		err = errors.Join(err, kernel.CheckText("ids", id, collector.MaxOpID))
	}
	for _, key := range c.Keys {
		err = errors.Join(err, kernel.CheckText("keys", key, collector.MaxOpKey))
	}
	return sel, err
}
