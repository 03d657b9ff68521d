package stream

import (
	"context"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// mendInterval is how soon a denial is logged, and how often it is looked whether a subscription is granted now.
	mendInterval = time.Second
	// mendTimeout bounds one such look.
	mendTimeout = 2 * time.Second
	// violationDelay is how long after the server's word nats.go may take to hand it to the handler of errors.
	violationDelay = 20 * time.Millisecond
)

// Run logs what NATS denies, once, and until ctx ends sees to it that subscriptions which were denied are made again
// once they are granted. A server does not do so by itself when its permissions are reloaded.
func (p *Permissions) Run(ctx context.Context, log *zap.Logger) {
	for backoff.Sleep(ctx, mendInterval) == nil {
		p.logNew(log)
		for _, subject := range p.standing() {
			if p.mend(ctx, subject) {
				log.Info("NATS grants a subscription that it denied before; connecting again", zap.String("subject", subject))
				break
			}
		}
	}
}

// stands reports whether what was denied is a subscription that is made once for all the life of a connection. Those of
// a call and of a pull are made each time.
func stands(e *PermissionError, subject string) bool {
	_, call := callerOf(subject)
	return e.Op == OpSubscribe && !call && (!e.inbox || strings.HasSuffix(subject, ".*"))
}

// standing returns the subscriptions that were denied on this connection and are still thought to be there.
func (p *Permissions) standing() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var subjects []string
	for _, d := range p.denied {
		if d.standing && p.present(d) {
			subjects = append(subjects, d.subject)
		}
	}
	return subjects
}

// mend reports whether a subscription that was denied is granted now, and has the connection made again in that case:
// then nats.go makes all its subscriptions again. There is no other way to the one that answers come in by.
func (p *Permissions) mend(ctx context.Context, subject string) bool {
	ctx, cancel := context.WithTimeout(ctx, mendTimeout)
	defer cancel()
	refused := make(chan struct{}, 1)
	w := &Watcher{Concerns: func(e *PermissionError, s string) bool { return e.Op == OpSubscribe && s == subject },
		Tell: func(*PermissionError) {
			select {
			case refused <- struct{}{}:
			default:
			}
		}}
	end := p.Await(w, nil)
	defer end()
	sub, err := p.nc.SubscribeSync(subject)
	if err != nil {
		return false
	}
	defer func() { _ = sub.Unsubscribe() }()
	if p.nc.FlushWithContext(ctx) != nil {
		return false
	}
	select {
	case <-refused:
		return false
	case <-ctx.Done():
		return false
	case <-time.After(violationDelay):
		return p.nc.ForceReconnect() == nil
	}
}

// hears returns an error while the user may not read the inbox that the answers to requests go to. That subscription is
// made once; without this each request would wait for an answer until its time is over.
func (p *Permissions) hears(ctx context.Context) error {
	p.mu.Lock()
	var deaf *PermissionError
	var subject string
	for _, d := range p.denied {
		if d.err.inbox && d.standing && p.present(d) {
			deaf, subject = d.err, d.subject
		}
	}
	p.mu.Unlock()
	if deaf == nil || p.mend(ctx, subject) {
		return nil
	}
	return deaf
}
