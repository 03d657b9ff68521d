package admin

import (
	"github.com/tranchehq/tranche/internal/api"
	"context"
	"errors"
	"fmt"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// Sessions are those who are logged in to the dashboard.
type Sessions struct {
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
	ended, err := identity.New(s.store).RevokeWebSessions(ctx, set.User, cli.OSUser())
	if err != nil {
		return none, err
	}
	return asSent[client.RevokedSessions](s.term, api.RevokedSessions{User: set.User, Sessions: ended})
}

type sessionList struct{ tokenPlace }

func (l *sessionList) Run(ctx context.Context, term *cli.Console) (err error) {
	keeper, release, err := l.open(ctx, term)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	list, err := keeper.ListSessions(ctx, term.Keep())
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	if len(list.Sessions) == 0 {
		return term.Printf("nobody is logged in\n")
	}
	text := cli.Table{}
	text.Row("USER", "ROLE", "BY", "SINCE", "LAST USED", "EXPIRES")
	for i := range list.Sessions {
		k := &list.Sessions[i]
		by := "provider"
		if k.Token != nil {
			by = "token " + (*k.Token)[:8]
		}
		text.Row(cli.Inert(k.User), k.Role, by, cli.Moment(k.CreatedAt), cli.Moment(k.ActiveAt), cli.Moment(k.ExpiresAt))
	}
	return term.Printf("%s", text.String())
}

type sessionRevoke struct {
	User string `arg:"" help:"As tranche session list and the audit log call them."`
	tokenPlace
}

// Run ends sessions.
func (r *sessionRevoke) Run(ctx context.Context, term *cli.Console) (err error) {
	keeper, release, err := r.open(ctx, term)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	gone, err := keeper.RevokeSessions(ctx, client.RevokeSessions{User: r.User}, term.Keep())
	if errors.Is(err, workqueue.ErrNotFound) {
		return fmt.Errorf("%w; see tranche session list", err)
	}
	if err != nil || term.JSON {
		return term.Answered(err)
	}
	return term.Printf("%d sessions of %s have ended\n", gone.Sessions, cli.Inert(gone.User))
}
