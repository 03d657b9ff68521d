package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue/identity"
)

const seeSessions = "tranche session list"

// SessionList is the browsers that are logged in.
type SessionList struct {
	Sessions []identity.WebSessionView `json:"sessions" nullable:"false"`
}

// RevokeSessions says whose sessions end.
type RevokeSessions struct {
	User string `json:"user" minLength:"1" maxLength:"200" doc:"as the list of sessions and the audit log call them"`
}

// RevokedSessions is what has ended.
type RevokedSessions struct {
	User     string `json:"user"`
	Sessions int64  `json:"sessions" doc:"how many have ended"`
}

func (s *adminRoutes) registerSessions(api huma.API) {
	list := kernel.Get("list-sessions", "/sessions", "List who is logged in by a browser, the latest first")
	kernel.Register(s.Kernel, api, kernel.AboutCredentials(kernel.ByAdmin(list)), s.listSessions)
	kernel.Register(s.Kernel, api, kernel.AboutCredentials(kernel.ByAdmin(huma.Operation{
		OperationID: "revoke-sessions", Method: http.MethodPost, Path: "/sessions/revoke",
		Summary: "End all sessions of a user",
		Description: "Within 5 seconds, on all nodes. Who still has a token, or an account at the provider of identities " +
			"that has a role here, can log in again: take that away first.",
	})), s.revokeSessions)
}

func (s *adminRoutes) listSessions(ctx context.Context, _ *struct{}) (SessionList, error) {
	all, err := identity.New(s.Store).WebSessions(ctx)
	return SessionList{Sessions: all}, err
}

type revokeSessionsInput struct {
	kernel.Actor
	Body RevokeSessions
}

func (s *adminRoutes) revokeSessions(ctx context.Context, in *revokeSessionsInput) (RevokedSessions, error) {
	ended, err := identity.New(s.Store).RevokeWebSessions(ctx, in.Body.User, in.Name)
	if err == nil && s.Access != nil {
		s.Access.Forget()
	}
	return RevokedSessions{User: in.Body.User, Sessions: ended}, kernel.Seen(err, seeSessions)
}
