package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/api/kernel"
	alertstore "github.com/tranchehq/tranche/workqueue/alert"
)

const (
	seeAlerts = "tranche alert list"

	// maxAlertBody is what is read of a rule, to say when it is too large.
	maxAlertBody = 4 * alerts.MaxBytes
)

// AlertPath is the rule that an operation is about.
type AlertPath struct {
	Alert string `path:"name" doc:"an alert's name"`
}

// AlertList is the answer to a list of rules.
type AlertList struct {
	Alerts []alertstore.AlertSummary `json:"alerts" nullable:"false"`

	Next string `json:"next,omitempty" doc:"value of after for the next page; absent on the last"`
}

// AlertMessages is the answer to a list of what a rule has told.
type AlertMessages struct {
	Messages []alertstore.AlertMessage `json:"messages" nullable:"false"`
	Next     *time.Time                `json:"next,omitempty" doc:"value of before for the next page; absent on the last"`
}

// TestedAlert is a test that is on its way.
type TestedAlert struct {
	Name    string    `json:"name"`
	Message uuid.UUID `json:"message" doc:"its id; the list of messages says what becomes of it"`
}

const applyAlertDescription = `The body is an alert in YAML, or in JSON. Its name field, or else the query, names it.
What is the same as before changes nothing. What was told stays told, and messages that wait go to the receiver of the
new text. A receiver that this server could not reach by its operator's file is refused.`

// alertRoutes keep alerts.
type alertRoutes struct {
	*kernel.Kernel

	store     alertstore.Store
	receivers *alerts.Receivers // nil: this server tells no one anything
}

// Register adds the routes.
func (o *alertRoutes) Register(api huma.API) {
	kernel.Register(o.Kernel, api, kernel.Get("list-alerts", "/alerts",
		"List alerts by name, with whom they could not tell"), o.list)
	kernel.Register(o.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "apply-alert", Method: http.MethodPost, Path: "/alerts",
		Summary: "Put an alert on record, or change it", Description: applyAlertDescription, MaxBodyBytes: maxAlertBody,
	}), o.apply)
	kernel.Register(o.Kernel, api, kernel.Get("get-alert", "/alerts/{name}", "An alert, whole"), o.get)
	kernel.Register(o.Kernel, api, kernel.Get("list-alert-messages", "/alerts/{name}/messages",
		"What an alert has told, newest first"),
		o.messages)
	kernel.Register(o.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "test-alert", Method: http.MethodPost, Path: "/alerts/{name}/test",
		Summary: "Have an alert tell its receiver that this is a test",
		Description: "The leader sends it, also for a paused alert, and tries once; the list of messages says what " +
			"became of it. A pause after attempts that failed is over.",
		DefaultStatus: http.StatusAccepted,
	}), o.test)
	kernel.Register(o.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "pause-alert", Method: http.MethodPost, Path: "/alerts/{name}/pause",
		Summary:     "Let an alert tell nothing until it is resumed",
		Description: "Messages that were not delivered yet wait.",
	}), o.set(alertstore.StatePaused))
	kernel.Register(o.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "resume-alert", Method: http.MethodPost, Path: "/alerts/{name}/resume",
		Summary: "End the pause of an alert",
		Description: "It tells what holds then and was not told, and what is over. What only happened meanwhile, like a " +
			"completion, it does not tell.",
	}), o.set(alertstore.StateActive))
	kernel.Register(o.Kernel, api, kernel.ByOperator(huma.Operation{
		OperationID: "delete-alert", Method: http.MethodDelete, Path: "/alerts/{name}",
		Summary:     "Take an alert off the record",
		Description: "Messages that were not delivered are dropped. Applied again, it has the next version.",
	}), o.remove)
}

type alertTextInput struct {
	kernel.Actor
	Name    string `query:"name" doc:"the alert's name, when it does not give itself one"`
	RawBody []byte `contentType:"application/yaml"`
}

func (o *alertRoutes) apply(ctx context.Context, in *alertTextInput) (alertstore.AppliedAlert, error) {
	none := alertstore.AppliedAlert{}
	if err := kernel.CheckText("name", in.Name, kernel.MaxNameBytes); err != nil {
		return none, err
	}
	spec, err := alerts.Parse(in.Name, in.RawBody)
	if err != nil {
		return none, err
	}
	if o.receivers == nil {
		return none, kernel.BadInput("this server tells no one anything: alerts are sent by tranche serve")
	}
	if bad, ok := errors.AsType[*alerts.BadReceiverError](o.receivers.Check(&spec.To)); ok {
		return none, spec.Wrong(bad.Field, bad.Why)
	}
	doc, err := json.Marshal(spec)
	if err != nil {
		return none, err
	}
	text := alertstore.Text{Name: spec.Name, Spec: doc, Source: string(in.RawBody)}
	applied, err := o.store.Apply(ctx, text, in.Actor.Name)
	o.Wake(alerts.LookTask)
	return applied, err
}

func (o *alertRoutes) list(ctx context.Context, in *struct {
	After string `query:"after" doc:"only alerts whose name follows this one"`
	Limit int    `query:"limit" minimum:"1" maximum:"500" default:"100"`
},
) (AlertList, error) {
	list, more, err := o.store.List(ctx, in.After, in.Limit)
	if err != nil {
		return AlertList{}, kernel.Seen(err, seeAlerts)
	}
	out := AlertList{Alerts: append([]alertstore.AlertSummary{}, list...)}
	if more {
		out.Next = list[len(list)-1].Name
	}
	return out, nil
}

func (o *alertRoutes) get(ctx context.Context, in *AlertPath) (*alertstore.AlertView, error) {
	view, err := o.store.Alert(ctx, in.Alert)
	return view, kernel.Seen(err, seeAlerts)
}

func (o *alertRoutes) messages(ctx context.Context, in *struct {
	AlertPath
	Before time.Time `query:"before" doc:"only messages that were made before"`
	Limit  int       `query:"limit" minimum:"1" maximum:"500" default:"50"`
},
) (AlertMessages, error) {
	if _, err := o.store.Alert(ctx, in.Alert); err != nil {
		return AlertMessages{}, kernel.Seen(err, seeAlerts)
	}
	var before *time.Time
	if !in.Before.IsZero() {
		before = &in.Before
	}
	list, more, err := o.store.Messages(ctx, in.Alert, before, in.Limit)
	out := AlertMessages{Messages: append([]alertstore.AlertMessage{}, list...)}
	if more {
		out.Next = &list[len(list)-1].MadeAt
	}
	return out, err
}

type alertActionInput struct {
	AlertPath
	kernel.Actor
}

func (o *alertRoutes) test(ctx context.Context, in *alertActionInput) (out TestedAlert, err error) {
	out.Name = in.Alert
	now, err := o.store.Now(ctx)
	if err != nil {
		return out, err
	}
	body, err := alerts.TestMessage(in.Alert, now)
	if err != nil {
		return out, err
	}
	out.Message, err = o.store.Test(ctx, in.Alert, body, in.Name)
	o.Wake(alerts.SendTask)
	return out, kernel.Seen(err, seeAlerts)
}

func (o *alertRoutes) set(state string) func(context.Context, *alertActionInput) (alertstore.ControlledAlert, error) {
	return func(ctx context.Context, in *alertActionInput) (alertstore.ControlledAlert, error) {
		out, err := o.store.Set(ctx, in.Alert, state, in.Name)
		o.Wake(alerts.LookTask)
		return out, kernel.Seen(err, seeAlerts)
	}
}

func (o *alertRoutes) remove(ctx context.Context, in *alertActionInput) (alertstore.ControlledAlert, error) {
	out, err := o.store.Delete(ctx, in.Alert, in.Name)
	return out, kernel.Seen(err, seeAlerts)
}
