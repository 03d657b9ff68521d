package stream

import (
	"context"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// mendInterval is the interval for logging denials and retrying standing subscriptions.
	mendInterval = time.Second
	// mendTimeout bounds one retry.
	mendTimeout = 2 * time.Second
	// violationDelay is how long nats.go may take to report a violation.
	violationDelay = 20 * time.Millisecond
)

// Run logs new denials until ctx ends, and restores denied subscriptions once granted; servers do not.
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

// stands reports whether the denied subscription is made once per connection, unlike those of calls and pulls.
func stands(e *PermissionError, subject string) bool {
	_, call := callerOf(subject)
	return e.Op == OpSubscribe && !call && (!e.inbox || strings.HasSuffix(subject, ".*"))
}

// standing returns the standing subscriptions denied on this connection.
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

// mend reports whether a denied subscription is granted now, and if so reconnects: nats.go then renews all
// subscriptions. For the inbox there is no other way.
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

// hears returns an error while the user may not read its inbox, subscribed once: requests would time out.
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
