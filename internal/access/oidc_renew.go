package access

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
	// renewAge is the age at which a session's identity is confirmed again, and renewPause the interval of checking for
	// such sessions. With the time for an answer they leave one or two attempts within workqueue.ProviderTime.
	renewAge   = 90 * time.Second
	renewPause = 30 * time.Second
	// renewBatch limits the sessions per turn, renewAtOnce those checked concurrently.
	renewBatch  = 1000
	renewAtOnce = 8
	// renewFailures in a row end a turn: the provider is unavailable.
	renewFailures = 10
	// renewRest is how long a session is skipped after a failed check, so that the next turns go to others.
	renewRest = renewPause - 5*time.Second
	// renewTime limits the work after the provider's answer. It continues when the turn is interrupted, because the
	// refresh token may be used up.
	renewTime = 2 * providerTime
	// renewWriteTime limits storing the answer, also at shutdown; after that it is kept in memory for the next turn.
	renewWriteTime = 5 * time.Second
)

// RenewalStore is what a Renewer needs of the database.
type RenewalStore interface {
	DueSessions(ctx context.Context, since, idle time.Duration, limit int) ([]identity.DueSession, error)
	RenewSession(ctx context.Context, due *identity.DueSession, renewal []byte) error
	EndDueSession(ctx context.Context, due *identity.DueSession, why string) error
}

// Renewer confirms identities with the provider again, and ends the sessions of those it no longer confirms, or not
// in the same way. Sessions that cannot be confirmed expire.
type Renewer struct {
	oidc  *OIDC
	store RenewalStore
	log   *zap.Logger

	mu     sync.Mutex
	missed map[string]missedRenewal // by session hash
}

type missedRenewal struct {
	at  time.Time
	due []byte // its renewal in the database at that time
	got []byte // the newer one, sealed; nil: none
}

// NewRenewer returns a Renewer; a nil logger means none.
func NewRenewer(o *OIDC, store RenewalStore, log *zap.Logger) (*Renewer, error) {
	if o == nil || store == nil {
		return nil, errors.New("access: a renewer needs a provider and a store")
	}
	log = cmp.Or(log, zap.NewNop())
	return &Renewer{oidc: o, store: store, log: log, missed: map[string]missedRenewal{}}, nil
}

// Run checks all due sessions. It is a leader task because a refresh token must not be used concurrently. A failure
// of one session does not affect the rest, unless all fail.
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
				return nil // it is checked next time
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

// inOrder sorts the sessions to check: recently failed ones come last, and not within renewRest.
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

// latest returns the current refresh token: the one in the database, or its unsaved successor.
func (r *Renewer) latest(due *identity.DueSession) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	missed := r.missed[string(due.Hash)]
	if missed.got != nil && bytes.Equal(missed.due, due.Renewal) {
		return missed.got
	}
	return due.Renewal
}

// note records whether a session was renewed and, if the answer could not be stored, its next refresh token.
func (r *Renewer) note(due *identity.DueSession, renewal []byte, err error) {
	latest := cmp.Or(string(renewal), string(r.latest(due)))
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.missed, string(due.Hash))
	if err == nil {
		return
	}
	makeRoom(r.missed)
	r.missed[string(due.Hash)] = missedRenewal{at: time.Now(), due: due.Renewal, got: []byte(latest)}
}

// renew asks the provider with the latest refresh token of a session and returns the next one, sealed. A DeniedError
// means that the session must end. Any other error is inconclusive; a next token may be returned even so.
func (o *OIDC) renew(ctx context.Context, due *identity.DueSession, latest []byte) (renewal []byte, err error) {
	refresh, ok := o.sealer.open(sealRenewal, latest)
	if !ok { // during a change of the secret, other nodes seal with the other one
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
	renewal = o.sealer.seal(sealRenewal, []byte(token.RefreshToken)) // the same token or its successor
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewTime)
	defer cancel()
	who, err := o.stillIs(ctx, provider, token)
	if err != nil {
		return renewal, err
	}
	if who.Subject != due.Subject || who.Name != due.User || string(who.Role) != due.Role ||
		!maps.Equal(who.Grants, due.Grants) {
		return nil, &DeniedError{Why: fmt.Sprintf("it is %s with the role %s now", who.Name,
			GrantsText(who.Role, who.Grants))}
	}
	return renewal, nil
}

// stillIs returns the identity of a renewed token, from its ID token or else from the userinfo endpoint. An
// unverifiable token is inconclusive: the keys may be unreachable, or a clock wrong.
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

// renewalError distinguishes a login ended by the provider from a failed check. Other refusals, of the provider or a
// gateway, are not about the user.
func renewalError(err error) error {
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	if ok && refused.ErrorCode == "invalid_grant" {
		return &DeniedError{Why: "the identity provider ended the login"}
	}
	return &ProviderError{err}
}

func exchangeError(err error, why string) error {
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	if ok && refused.Response.StatusCode < http.StatusInternalServerError &&
		refused.Response.StatusCode != http.StatusTooManyRequests {
		return &DeniedError{Why: why}
	}
	return &ProviderError{err}
}
