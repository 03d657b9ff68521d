package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

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
	list := get("list-sessions", "/sessions", "List who is logged in by a browser, the latest first")
	register(s.Kernel, api, aboutCredentials(byAdmin(list)), s.listSessions)
	register(s.Kernel, api, aboutCredentials(byAdmin(huma.Operation{
		OperationID: "revoke-sessions", Method: http.MethodPost, Path: "/sessions/revoke",
		Summary: "End all sessions of a user",
		Description: "Within 5 seconds, on all nodes. Who still has a token, or an account at the provider of identities " +
			"that has a role here, can log in again: take that away first.",
	})), s.revokeSessions)
}

func (s *adminRoutes) listSessions(ctx context.Context, _ *struct{}) (SessionList, error) {
	all, err := identity.New(s.store).WebSessions(ctx)
	return SessionList{Sessions: all}, err
}

type revokeSessionsInput struct {
	Actor
	Body RevokeSessions
}

func (s *adminRoutes) revokeSessions(ctx context.Context, in *revokeSessionsInput) (RevokedSessions, error) {
	if err := checkText("header "+ActorHeader, in.Name, maxActorBytes); err != nil {
		return RevokedSessions{}, err
	}
	ended, err := identity.New(s.store).RevokeWebSessions(ctx, in.Body.User, in.Name)
	if err == nil && s.access != nil {
		s.access.Forget()
	}
	return RevokedSessions{User: in.Body.User, Sessions: ended}, seen(err, seeSessions)
}
