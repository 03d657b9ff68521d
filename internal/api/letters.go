package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/danielgtaylor/huma/v2"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

// DeadLetterDocument is a dead letter with a readable body.
type DeadLetterDocument struct {
	deadletter.DeadLetter

	Body apicore.Content `json:"body"`
}

// LetterSelection selects dead letters: exactly one of IDs, Endpoint and All is set. The last two select waiting
// ones.
type LetterSelection struct {
	IDs      []string `json:"ids,omitempty" maxItems:"1000" nullable:"false" doc:"IDs, or parts of them"`
	Endpoint string   `json:"endpoint,omitempty" doc:"all waiting ones of this endpoint"`
	All      bool     `json:"all,omitempty" doc:"all waiting ones"`
}

// RequeueSettings is a selection; Force includes letters requeued three times already.
type RequeueSettings struct {
	LetterSelection

	Force bool `json:"force,omitempty" doc:"also those requeued three times without success"`
}

// Dropped counts the dropped dead letters.
type Dropped struct {
	Dropped int `json:"dropped"`
}

func (s *endpointRoutes) registerLetters(api huma.API) {
	apicore.Register(s.Core, api, apicore.In(apicore.Anywhere, apicore.Get("list-dead-letters", "/dead-letters",
		"List dead letters, newest first")), s.listLetters)
	apicore.Register(s.Core, api, apicore.In(apicore.Anywhere, apicore.ReadsItems(apicore.Held(apicore.Get(
		"get-dead-letter", "/dead-letters/{id}", "A dead letter with its headers and body")))), s.getLetter)
	apicore.Register(s.Core, api, apicore.Post("requeue-dead-letters", "/dead-letters/requeue",
		"Send dead letters again",
		"Refused letters are listed with a reason; the rest are sent."), s.requeueLetters)
	apicore.Register(s.Core, api, apicore.Post("drop-dead-letters", "/dead-letters/drop",
		"Drop dead letters, with their bodies", ""), s.dropLetters)
	apicore.Register(s.Core, api, apicore.Get("list-quarantined", "/quarantine",
		"List quarantined messages, newest first"), s.listQuarantined)
	apicore.Register(s.Core, api, apicore.ReadsItems(apicore.Get("get-quarantined", "/quarantine/{id}",
		"A quarantined message")),
		s.getQuarantined)
}

type listLettersInput struct {
	deadletter.DeadFilter

	After string `query:"after" doc:"next of the previous page"`
}

func (s *endpointRoutes) listLetters(ctx context.Context, in *listLettersInput) (deadletter.DeadLetterPage, error) {
	if in.After != "" {
		if err := in.DeadFilter.After.UnmarshalText([]byte(in.After)); err != nil {
			return deadletter.DeadLetterPage{}, apicore.BadInput(
				"after is not the id of a dead letter; use the value of next of the page before")
		}
	}
	page, err := deadletter.New(s.Store).DeadLetters(ctx, in.DeadFilter)
	for i := range page.Letters {
		page.Letters[i].Headers = nil // only in the letter itself
	}
	return page, err
}

type letterInput struct {
	ID string `path:"id" doc:"ID, or part of one (4 digits or more)"`
	apicore.WholeBody
}

func (s *endpointRoutes) getLetter(ctx context.Context, in *letterInput) (DeadLetterDocument, error) {
	letter, err := deadletter.New(s.Store).DeadLetter(ctx, in.ID)
	if err != nil {
		return DeadLetterDocument{}, apicore.Seen(err, apicore.SeeLetters)
	}
	body := letter.Body
	letter.Body = nil
	return DeadLetterDocument{
		DeadLetter: letter, Body: apicore.ContentOf(body, nats.Header(letter.Headers).Get(wire.HeaderEncoding), in.Full),
	}, nil
}

type requeueInput struct {
	apicore.Changer
	Body RequeueSettings
}

func (s *endpointRoutes) requeueLetters(ctx context.Context, in *requeueInput) (deadletter.Requeue, error) {
	sel, err := in.Body.selection(ctx)
	if err != nil {
		return deadletter.Requeue{}, err
	}
	sel.Force = in.Body.Force
	out, err := s.letters.Requeue(ctx, sel, in.Name)
	if err == nil && out.Requeued+out.RefusedTotal == 0 {
		err = s.known(ctx, sel.Endpoint)
	}
	return out, apicore.Seen(err, apicore.SeeLetters)
}

type dropInput struct {
	apicore.Changer
	Body LetterSelection
}

func (s *endpointRoutes) dropLetters(ctx context.Context, in *dropInput) (Dropped, error) {
	sel, err := in.Body.selection(ctx)
	if err != nil {
		return Dropped{}, err
	}
	n, err := deadletter.New(s.Store).Drop(ctx, sel, in.Name)
	if err == nil && n == 0 {
		err = s.known(ctx, sel.Endpoint)
	}
	return Dropped{Dropped: n}, apicore.Seen(err, apicore.SeeLetters)
}

func (s *endpointRoutes) known(ctx context.Context, endpoint string) error {
	if endpoint == "" {
		return nil
	}
	names, err := deadletter.New(s.Store).Endpoints(ctx)
	if err != nil {
		return err
	}
	found, err := s.endpoints(ctx)
	if err != nil {
		return err
	}
	names = slices.AppendSeq(names, maps.Keys(found))
	if slices.Contains(names, endpoint) {
		return nil
	}
	meant := ""
	if near := row.Nearest(endpoint, names); near != "" {
		meant = " (did you mean " + near + "?)"
	}
	return fmt.Errorf("no dead letter is of endpoint %q%s, no service listens on it, and no running run uses it: %w",
		endpoint, meant, workqueue.ErrNotFound)
}

func (set *LetterSelection) selection(ctx context.Context) (deadletter.DeadSelection, error) {
	sel := deadletter.DeadSelection{Refs: set.IDs, Endpoint: set.Endpoint, All: set.All}
	if err := apicore.ChooseOne("ids, endpoint and all", len(set.IDs) > 0, set.Endpoint != "", set.All); err != nil {
		return sel, err
	}
	if set.Endpoint != "" {
		return sel, errors.Join(apicore.CheckEndpoint(set.Endpoint), apicore.WholeInstallation(ctx))
	}
	if set.All {
		return sel, apicore.WholeInstallation(ctx)
	}
	return sel, nil
}

// QuarantinedDocument is a quarantined message with a readable body.
type QuarantinedDocument struct {
	deadletter.QuarantinedView

	Body apicore.Content `json:"body" doc:"of its first 64 KiB, the part that is stored"`
}

type listQuarantinedInput struct {
	Run string `query:"run" doc:"only those about this run: ID, part of an ID, name, or last"`
	deadletter.QuarantineFilter
}

func (s *endpointRoutes) listQuarantined(
	ctx context.Context, in *listQuarantinedInput,
) (page deadletter.QuarantinePage, err error) {
	if in.QuarantineFilter.Run, err = s.FindRun(ctx, in.Run); err != nil {
		return page, err
	}
	page, err = deadletter.New(s.Store).QuarantinedMessages(ctx, in.QuarantineFilter)
	for i := range page.Messages {
		page.Messages[i].Headers = nil // only in the message itself
	}
	return page, err
}

type quarantinedInput struct {
	ID int64 `path:"id" minimum:"1"`
}

func (s *endpointRoutes) getQuarantined(ctx context.Context, in *quarantinedInput) (QuarantinedDocument, error) {
	view, err := deadletter.New(s.Store).QuarantinedMessage(ctx, in.ID)
	if err != nil {
		return QuarantinedDocument{}, apicore.Seen(err, "tranche quarantine list")
	}
	body := view.Body
	view.Body = nil
	return QuarantinedDocument{
		QuarantinedView: view, Body: apicore.ContentOf(body, nats.Header(view.Headers).Get(wire.HeaderEncoding), true),
	}, nil
}
