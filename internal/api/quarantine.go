package api

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// QuarantinedDocument is a quarantined message with its body as people read it.
type QuarantinedDocument struct {
	deadletter.QuarantinedView

	Body kernel.Content `json:"body" doc:"of its first 64 KiB, which is what is kept"`
}

func (s *endpointRoutes) registerQuarantine(api huma.API) {
	kernel.Register(s.Kernel, api, kernel.Get("list-quarantined", "/quarantine",
		"List messages that could not be taken, newest first"),
		s.listQuarantined)
	kernel.Register(s.Kernel, api, kernel.Get("get-quarantined", "/quarantine/{id}", "A message that could not be taken"),
		s.getQuarantined)
}

type listQuarantinedInput struct {
	Run   string `query:"run" doc:"only those about this run: an id, a piece of one, a name, or last"`
	After int64  `query:"after" minimum:"0" doc:"the value of next of the page before"`
	Limit int    `query:"limit" minimum:"1" maximum:"500" default:"50"`
}

func (s *endpointRoutes) listQuarantined(ctx context.Context, in *listQuarantinedInput) (deadletter.QuarantinePage, error) {
	filter := deadletter.QuarantineFilter{Limit: in.Limit, After: in.After}
	if in.Run != "" {
		id, err := inspect.New(s.Store).Resolve(ctx, in.Run)
		if err != nil {
			return deadletter.QuarantinePage{}, err
		}
		filter.Run = id
	}
	page, err := deadletter.New(s.Store).QuarantinedMessages(ctx, filter)
	if page.Messages == nil {
		page.Messages = []deadletter.QuarantinedView{}
	}
	for i := range page.Messages {
		page.Messages[i].Headers = nil // they come with the message
	}
	return page, err
}

type quarantinedInput struct {
	ID int64 `path:"id" minimum:"1"`
}

func (s *endpointRoutes) getQuarantined(ctx context.Context, in *quarantinedInput) (QuarantinedDocument, error) {
	view, err := deadletter.New(s.Store).QuarantinedMessage(ctx, in.ID)
	if err != nil {
		return QuarantinedDocument{}, kernel.Seen(err, kernel.SeeQuarantine)
	}
	body := view.Body
	view.Body = nil
	return QuarantinedDocument{
		QuarantinedView: view, Body: kernel.ContentOf(body, first(view.Headers, wire.HeaderEncoding), true),
	}, nil
}
