package api

import (
	"context"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

func (s *adminRoutes) registerAudit(api huma.API) {
	list := kernel.Broad(kernel.Get("list-audit", "/audit",
		"What operators did, newest first: who, what, before and after"))
	kernel.Register(s.Kernel, api, list, s.listAudit)
}

type auditInput struct {
	Run    string    `query:"run" doc:"only what is about this run: an id, a piece of one, a name, or last"`
	Actor  string    `query:"actor" maxLength:"200" doc:"only what this one did; tranche is what nodes did by themselves"`
	Action string    `query:"action" maxLength:"64" doc:"only actions of this name" example:"rerun"`
	Since  time.Time `query:"since" doc:"only what was done then or later"`
	Before int64     `query:"before" minimum:"0" doc:"the value of next of the page before"`
	Limit  int       `query:"limit" minimum:"1" maximum:"500" default:"50"`
}

func (s *adminRoutes) listAudit(ctx context.Context, in *auditInput) (inspect.AuditPage, error) {
	filter := inspect.AuditFilter{
		Actor: in.Actor, Action: in.Action, Since: in.Since, Before: in.Before, Limit: in.Limit,
	}
	if in.Run != "" {
		id, err := inspect.New(s.Store).Resolve(ctx, in.Run)
		if err != nil {
			return inspect.AuditPage{}, err
		}
		filter.Run = id
	}
	return inspect.New(s.Store).Audit(ctx, filter)
}
