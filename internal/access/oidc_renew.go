package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"go.uber.org/zap"
	"golang.org/x/oauth2"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/workqueue"
)

const (
	// renewAge is how old what the provider said of a session gets before it is asked again, and renewPause how often it
	// is looked which are. With what an answer takes they leave a try or two within workqueue.ProviderTime.
	renewAge   = 90 * time.Second
	renewPause = 30 * time.Second
	// renewBatch and renewAtOnce bound how many are asked about in a turn, and at once.
	renewBatch  = 1000
	renewAtOnce = 8
)

// RenewalStore is what a Renewer needs of the database.
type RenewalStore interface {
	DueSessions(ctx context.Context, since, idle time.Duration, limit int) ([]workqueue.DueSession, error)
	RenewSession(ctx context.Context, due *workqueue.DueSession, renewal []byte) error
	EndDueSession(ctx context.Context, due *workqueue.DueSession, why string) error
}

// Renewer asks the provider of identities again about those who are logged in by it, and ends the sessions of whom it
// does not vouch for any more, or not in the same way. Those it could not be asked about end by themselves.
type Renewer struct {
	oidc  *OIDC
	store RenewalStore
	log   *zap.Logger
}

// NewRenewer returns a renewer; a nil logger means none.
func NewRenewer(o *OIDC, store RenewalStore, log *zap.Logger) (*Renewer, error) {
	if o == nil || store == nil {
		return nil, errors.New("access: a renewer needs a provider and a store")
	}
	if log == nil {
		log = zap.NewNop()
	}
	return &Renewer{o, store, log}, nil
}

// Run asks about all who are due. It is a duty: one at a time is enough, of which a refresh token may want to be used.
func (r *Renewer) Run(ctx context.Context, _ workqueue.Lease) (again time.Duration, err error) {
	due, err := r.store.DueSessions(ctx, renewAge, DefaultSessionIdle, renewBatch)
	if err != nil {
		return renewPause, err
	}
	asking, ctx := errgroup.WithContext(ctx) // a provider that is away is away for all of them
	asking.SetLimit(renewAtOnce)
	for i := range due {
		asking.Go(func() error { return r.renew(ctx, &due[i]) })
	}
	if err := asking.Wait(); err != nil {
		return renewPause, err
	}
	if len(due) == renewBatch {
		return time.Millisecond, nil
	}
	return renewPause, nil
}

func (r *Renewer) renew(ctx context.Context, due *workqueue.DueSession) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the first error is told; this one is asked about the next time
	}
	renewal, err := r.oidc.renew(ctx, due)
	if denied, ok := errors.AsType[*DeniedError](err); ok {
		r.log.Info("a session has ended: the provider does not vouch for it any more", zap.String("user", due.User),
			zap.String("why", denied.Why))
		return r.store.EndDueSession(ctx, due, denied.Why)
	}
	if err != nil {
		return err
	}
	return r.store.RenewSession(ctx, due, renewal)
}

// renew asks the provider by the refresh token of a session, and returns the next one, sealed. A DeniedError says that
// the session is to end.
func (o *OIDC) renew(ctx context.Context, due *workqueue.DueSession) (renewal []byte, err error) {
	refresh, ok := o.sealer.open(sealRenewal, due.Renewal)
	if !ok {
		return nil, &DeniedError{Why: "its renewal was sealed by another client secret"}
	}
	provider, err := o.find(ctx)
	if err != nil {
		return nil, err
	}
	ctx = oidc.ClientContext(ctx, o.client)
	token, err := o.oauth(provider).TokenSource(ctx, &oauth2.Token{RefreshToken: string(refresh)}).Token()
	if err != nil {
		return nil, exchangeError(err, "the provider of identities has ended the login")
	}
	who, err := o.stillIs(ctx, provider, token)
	if err != nil {
		return nil, err
	}
	if who.Subject != due.Subject || who.Name != due.User || string(who.Role) != due.Role {
		return nil, &DeniedError{Why: fmt.Sprintf("it is %s with the role %s now", who.Name, who.Role)}
	}
	return o.sealer.seal(sealRenewal, []byte(token.RefreshToken)), nil // the same, or one that takes its place
}

// stillIs is whom a token is about that came by renewing: in what came with it, or else as the provider says on asking.
func (o *OIDC) stillIs(ctx context.Context, provider *oidc.Provider, token *oauth2.Token) (Identity, error) {
	if raw, said := token.Extra("id_token").(string); said {
		checked, err := o.verified(ctx, provider, raw)
		if err != nil {
			return Identity{}, err
		}
		return o.identity(checked.Subject, checked.Claims)
	}
	info, err := provider.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return Identity{}, &ProviderError{err}
	}
	return o.identity(info.Subject, info.Claims)
}

// exchangeError tells a provider that refuses from one that is away.
func exchangeError(err error, why string) error {
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	if ok && refused.Response.StatusCode < http.StatusInternalServerError &&
		refused.Response.StatusCode != http.StatusTooManyRequests {
		return &DeniedError{Why: why}
	}
	return &ProviderError{err}
}
