package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/identity"
)

type sessionCommands struct {
	List   sessionList   `cmd:"" help:"List who is logged in, the latest first."`
	Revoke sessionRevoke `cmd:"" help:"End all sessions of a user within 5 seconds."`
}

// ListSessions is the API's.
func (s *storedTokens) ListSessions(
	ctx context.Context, _ ...client.CallOption,
) (none client.SessionList, err error) {
	all, err := identity.New(s.store).WebSessions(ctx)
	if err != nil {
		return none, err
	}
	return asSent[client.SessionList](s.term, api.SessionList{Sessions: all})
}

// RevokeSessions is the API's.
func (s *storedTokens) RevokeSessions(
	ctx context.Context, set client.RevokeSessions, _ ...client.CallOption,
) (none client.RevokedSessions, err error) {
	ended, err := identity.New(s.store).RevokeWebSessions(ctx, set.User, osUser())
	if err != nil {
		return none, err
	}
	return asSent[client.RevokedSessions](s.term, api.RevokedSessions{User: set.User, Sessions: ended})
}

type sessionList struct{ tokenPlace }

// Run lists sessions.
func (l *sessionList) Run(ctx context.Context, term *console) (err error) {
	keeper, release, err := l.open(ctx, term)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	list, err := keeper.ListSessions(ctx, term.keep())
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	if len(list.Sessions) == 0 {
		return term.printf("nobody is logged in\n")
	}
	text := table{}
	text.row("USER", "ROLE", "BY", "SINCE", "LAST USED", "EXPIRES")
	for i := range list.Sessions {
		k := &list.Sessions[i]
		by := "provider"
		if k.Token != nil {
			by = "token " + (*k.Token)[:8]
		}
		text.row(inert(k.User), k.Role, by, moment(k.CreatedAt), moment(k.ActiveAt), moment(k.ExpiresAt))
	}
	return term.printf("%s", text.String())
}

type sessionRevoke struct {
	User string `arg:"" help:"As tranche session list and the audit log call them."`
	tokenPlace
}

// Run ends sessions.
func (r *sessionRevoke) Run(ctx context.Context, term *console) (err error) {
	keeper, release, err := r.open(ctx, term)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	gone, err := keeper.RevokeSessions(ctx, client.RevokeSessions{User: r.User}, term.keep())
	if errors.Is(err, workqueue.ErrNotFound) {
		return fmt.Errorf("%w; see tranche session list", err)
	}
	if err != nil {
		return err
	}
	if term.json {
		return term.sent()
	}
	return term.printf("%d sessions of %s have ended\n", gone.Sessions, inert(gone.User))
}
