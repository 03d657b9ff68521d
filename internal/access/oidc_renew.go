package access

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"go.uber.org/zap"
	"golang.org/x/oauth2"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/identity"
)

const (
	// renewAge is how old what the provider said of a session gets before it is asked again, and renewPause how often it
	// is looked which are. With what an answer takes they leave a try or two within workqueue.ProviderTime.
	renewAge   = 90 * time.Second
	renewPause = 30 * time.Second
	// renewBatch and renewAtOnce bound how many are asked about in a turn, and at once.
	renewBatch  = 1000
	renewAtOnce = 8
	// renewFailures in a row end a turn: the provider is unavailable. renewRest is how long a session is left alone that
	// it could not be asked about, in which the next turns go to others.
	renewFailures = 10
	// A session that its provider could not be asked about is left alone; ten such in a row end the turn.
	renewRest = renewPause - 5*time.Second
	// renewTime bounds what follows an answer of the provider, and renewWriteTime the writing down of it: they go on when
	// the turn is interrupted, since the refresh token that was asked by may be used up.
	renewTime = 2 * providerTime
	// What a provider has answered is written, whatever else ends; then it is kept for the next turn.
	renewWriteTime = 5 * time.Second
)

// RenewalStore is what a Renewer needs of the database.
type RenewalStore interface {
	DueSessions(ctx context.Context, since, idle time.Duration, limit int) ([]identity.DueSession, error)
	RenewSession(ctx context.Context, due *identity.DueSession, renewal []byte) error
	EndDueSession(ctx context.Context, due *identity.DueSession, why string) error
}

// Renewer asks the provider of identities again about those who are logged in by it, and ends the sessions of whom it
// does not vouch for any more, or not in the same way. Those it could not be asked about end by themselves.
type Renewer struct {
	oidc  *OIDC
	store RenewalStore
	log   *zap.Logger

	mu     sync.Mutex
	missed map[string]missedRenewal // by the hash of the session
}

// missedRenewal is a session that the provider could not be asked about, or whose renewal could not be written down.
type missedRenewal struct {
	at  time.Time
	due []byte // its renewal in the database then
	got []byte // the one that has taken its place since, sealed; nil: none
}

// NewRenewer returns a renewer; a nil logger means none.
func NewRenewer(o *OIDC, store RenewalStore, log *zap.Logger) (*Renewer, error) {
	if o == nil || store == nil {
		return nil, errors.New("access: a renewer needs a provider and a store")
	}
	if log == nil {
		log = zap.NewNop()
	}
	return &Renewer{oidc: o, store: store, log: log, missed: map[string]missedRenewal{}}, nil
}

// Run asks about all who are due. It is a leader task: one at a time is enough, of which a refresh token may want to be
// used. What goes wrong with one session keeps no other from being asked about, unless it goes wrong with all.
func (r *Renewer) Run(ctx context.Context, _ workqueue.Lease) (again time.Duration, err error) {
	limit := renewBatch + r.forgetOld()
	due, err := r.store.DueSessions(ctx, renewAge, DefaultSessionIdle, limit)
	if err != nil {
		return renewPause, err
	}
	var (
		asking errgroup.Group
		inARow atomic.Int32
	)
	over := func() bool { return ctx.Err() != nil || inARow.Load() >= renewFailures }
	asking.SetLimit(renewAtOnce)
	for _, one := range r.inOrder(due) {
		asking.Go(func() error {
			if over() {
				return nil // it is asked about the next time
			}
			err := r.renew(ctx, one)
			switch _, away := errors.AsType[*ProviderError](err); {
			case away:
				inARow.Add(1)
			case err == nil:
				inARow.Store(0)
			}
			return err
		})
	}
	err = asking.Wait()
	if len(due) == limit && inARow.Load() < renewFailures {
		return time.Millisecond, err
	}
	return renewPause, err
}

// inOrder is the sessions to ask about: those that could not be asked about before come last, and not at once again.
func (r *Renewer) inOrder(due []identity.DueSession) []*identity.DueSession {
	r.mu.Lock()
	defer r.mu.Unlock()
	var order, later []*identity.DueSession
	for i := range due {
		missed, ok := r.missed[string(due[i].Hash)]
		switch {
		case !ok:
			order = append(order, &due[i])
		case time.Since(missed.at) >= renewRest:
			later = append(later, &due[i])
		}
	}
	return append(order, later...)
}

// forgetOld forgets the sessions that have ended since, and returns how many are left.
func (r *Renewer) forgetOld() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for hash, missed := range r.missed {
		if time.Since(missed.at) > identity.ProviderTime {
			delete(r.missed, hash)
		}
	}
	return len(r.missed)
}

func (r *Renewer) renew(ctx context.Context, due *identity.DueSession) error {
	renewal, err := r.oidc.renew(ctx, due, r.latest(due))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewWriteTime)
	defer cancel()
	if denied, ok := errors.AsType[*DeniedError](err); ok {
		r.log.Info("session ended: the provider no longer confirms it", zap.String("user", due.User),
			zap.String("why", denied.Why))
		return r.store.EndDueSession(ctx, due, denied.Why)
	}
	if err == nil {
		err = r.store.RenewSession(ctx, due, renewal)
	}
	r.note(due, renewal, err)
	return err
}

// latest is what the provider is to be asked by: what is in the database, or what has taken its place.
func (r *Renewer) latest(due *identity.DueSession) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	missed := r.missed[string(due.Hash)]
	if missed.got != nil && bytes.Equal(missed.due, due.Renewal) {
		return missed.got
	}
	return due.Renewal
}

// note keeps in mind that a session has or has not been renewed, and by what the provider is asked the next time when
// the answer could not be written down.
func (r *Renewer) note(due *identity.DueSession, renewal []byte, err error) {
	latest := cmp.Or(string(renewal), string(r.latest(due)))
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.missed, string(due.Hash))
	if err == nil {
		return
	}
	for other := range r.missed {
		if len(r.missed) < maxTrusted {
			break
		}
		delete(r.missed, other)
	}
	r.missed[string(due.Hash)] = missedRenewal{at: time.Now(), due: due.Renewal, got: []byte(latest)}
}

// renew asks the provider by the latest refresh token of a session, and returns the next one, sealed. A DeniedError
// says that the session is to end. With any other error nothing is known; there may be a next token anyway.
func (o *OIDC) renew(ctx context.Context, due *identity.DueSession, latest []byte) (renewal []byte, err error) {
	refresh, ok := o.sealer.open(sealRenewal, latest)
	if !ok { // while the secret is being changed, other nodes begin sessions by the other one
		return nil, fmt.Errorf("renew a session of %s: it was sealed by another client secret", due.User)
	}
	provider, err := o.find(ctx)
	if err != nil {
		return nil, err
	}
	ctx = oidc.ClientContext(ctx, o.client)
	token, err := o.oauth(provider).TokenSource(ctx, &oauth2.Token{RefreshToken: string(refresh)}).Token()
	if err != nil {
		return nil, renewalError(err)
	}
	renewal = o.sealer.seal(sealRenewal, []byte(token.RefreshToken)) // the same, or one that takes its place
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewTime)
	defer cancel()
	who, err := o.stillIs(ctx, provider, token)
	if err != nil {
		return renewal, err
	}
	if who.Subject != due.Subject || who.Name != due.User || string(who.Role) != due.Role {
		return nil, &DeniedError{Why: fmt.Sprintf("it is %s with the role %s now", who.Name, who.Role)}
	}
	return renewal, nil
}

// stillIs is whom a token is about that came by renewing: in what came with it, or else as the provider says on asking.
// A token that cannot be checked says nothing: the keys may be out of reach, or a clock wrong.
func (o *OIDC) stillIs(ctx context.Context, provider *oidc.Provider, token *oauth2.Token) (Identity, error) {
	if raw, said := token.Extra("id_token").(string); said {
		checked, err := o.check(ctx, provider, raw)
		if err != nil {
			return Identity{}, &ProviderError{err}
		}
		return o.identity(checked.Subject, checked.Claims)
	}
	info, err := provider.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil {
		return Identity{}, &ProviderError{err}
	}
	return o.identity(info.Subject, info.Claims)
}

// renewalError tells a provider that has ended a login from one that cannot be asked: whatever else it, or a gateway
// before it, refuses is not about who is logged in.
func renewalError(err error) error {
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	if ok && refused.ErrorCode == "invalid_grant" {
		return &DeniedError{Why: "the identity provider ended the login"}
	}
	return &ProviderError{err}
}

// exchangeError tells a provider that refuses from one that is unavailable.
func exchangeError(err error, why string) error {
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	if ok && refused.Response.StatusCode < http.StatusInternalServerError &&
		refused.Response.StatusCode != http.StatusTooManyRequests {
		return &DeniedError{Why: why}
	}
	return &ProviderError{err}
}
