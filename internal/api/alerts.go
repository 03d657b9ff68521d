package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/workqueue"
	alertstore "github.com/tranchehq/tranche/workqueue/alert"
)

const (
	seeAlerts = "tranche alert list"

	// maxAlertBody is how much of a rule is read, to report that it is too large.
	maxAlertBody = 4 * alerts.MaxBytes
)

// TestedAlert is a test message in progress.
type TestedAlert struct {
	Name    string    `json:"name"`
	Message uuid.UUID `json:"message" doc:"its ID; the list of messages has its outcome"`
}

const applyAlertDescription = `The body is an alert in YAML, or in JSON. Its name field, or else the query, names it.
An unchanged alert changes nothing. Messages that were sent are not sent again; waiting ones go to the new receiver. A
receiver that the server's connections file does not allow is refused.`

type alertRoutes struct {
	*apicore.Core

	store     alertstore.Store
	receivers *alerts.Receivers // nil: this server sends no notifications
}

func (o *alertRoutes) Register(api huma.API) {
	registerDocuments(o.Core, api, &documents[alertstore.AlertList, *alertstore.AlertView]{
		noun: "alert", scope: apicore.Anywhere, most: maxAlertBody,
		lists: "List alerts, with delivery errors", gets: "An alert",
		applies: documentWords{"Save or change an alert", applyAlertDescription},
		pauses:  documentWords{"Pause an alert", "Undelivered messages wait."},
		resumes: documentWords{"Resume an alert", "It then reports what is active and was not reported, and what ended. " +
			"Events of the meantime, like completions, are not reported."},
		drops: documentWords{"Delete an alert", "Undelivered messages are dropped. Applied " +
			"again, it has the next version."},
		list: o.store.List, get: o.store.Alert, version: func(v **alertstore.AlertView) int { return (*v).Version },
		apply: o.apply, set: o.set, drop: o.set,
	})
	apicore.Register(o.Core, api, apicore.Get("list-alert-messages", "/alerts/{name}/messages",
		"Messages of an alert, newest first"), o.messages)
	apicore.Register(o.Core, api, apicore.ByOperator(huma.Operation{
		OperationID: "test-alert", Method: http.MethodPost, Path: "/alerts/{name}/test",
		Summary: "Send a test message",
		Description: "The leader sends it, also for a paused alert, and tries once; the list of messages says what " +
			"became of it. It ends a pause after failed attempts.",
		DefaultStatus: http.StatusAccepted,
	}), o.test)
}

func (o *alertRoutes) apply(ctx context.Context, in *documentText) (none workqueue.AppliedDocument, err error) {
	spec, err := alerts.Parse(in.Name, in.RawBody)
	if err != nil {
		return none, err
	}
	if o.receivers == nil {
		return none, apicore.BadInput("this server sends no alerts; tranche serve does")
	}
	if !workqueue.Sees(ctx, alertstore.Owner(spec.Namespaces)) {
		return none, apicore.Denied(http.StatusForbidden, fmt.Sprintf("namespaces: want one of your own, such as [%s]; "+
			"without --namespace, operators of the whole installation may give others, or none", workqueue.Namespaces(ctx)[0]))
	}
	if spec.To.Kind == "command" && !apicore.Allows(ctx, access.Operator) {
		return none, apicore.Denied(http.StatusForbidden,
			"to.command: only an operator of the whole installation may run a program; use another receiver")
	}
	if bad, ok := errors.AsType[*alerts.BadReceiverError](o.receivers.Check(&spec.To)); ok {
		return none, spec.Wrong(bad.Field, bad.Why)
	}
	doc, err := json.Marshal(spec)
	if err != nil {
		return none, err
	}
	defer o.Wake(alerts.LookTask)
	applied, err := o.store.Apply(ctx, in.document(spec.Name, doc), in.Actor.Name)
	if _, taken := errors.AsType[*workqueue.ElsewhereError](err); taken {
		err = spec.Wrong("name", "it is taken, maybe by a deleted alert; use another name")
	}
	return applied, err
}

func (o *alertRoutes) set(ctx context.Context, name, state, actor string) (workqueue.ControlledDocument, error) {
	defer o.Wake(alerts.LookTask)
	return o.store.Set(ctx, name, state, actor)
}

func (o *alertRoutes) messages(
	ctx context.Context, filter *alertstore.MessageFilter,
) (alertstore.AlertMessages, error) {
	if _, err := o.store.Alert(ctx, filter.Alert); err != nil {
		return alertstore.AlertMessages{}, apicore.Seen(err, seeAlerts)
	}
	return o.store.Messages(ctx, *filter)
}

func (o *alertRoutes) test(ctx context.Context, in *DocumentChange) (out TestedAlert, err error) {
	out.Name = in.Document
	now, err := o.store.Now(ctx)
	if err != nil {
		return out, err
	}
	body, err := alerts.TestMessage(in.Document, now)
	if err != nil {
		return out, err
	}
	out.Message, err = o.store.Test(ctx, in.Document, body, in.Name)
	o.Wake(alerts.SendTask)
	return out, apicore.Seen(err, seeAlerts)
}
