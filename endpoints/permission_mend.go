package endpoints

import (
	"context"
	"strings"
	"time"

	"go.uber.org/zap"
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
	for wait(ctx, mendInterval) == nil {
		p.tell(log)
		for _, subject := range p.standing() {
			if p.mend(ctx, subject) {
				log.Info("NATS grants a subscription that it denied before; connecting anew", zap.String("subject", subject))
				break
			}
		}
	}
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

// mend reports whether a subscription that was denied is granted now, and has the connection made anew in that case:
// then nats.go makes all its subscriptions again. There is no other way to the one that answers come in by.
func (p *Permissions) mend(ctx context.Context, subject string) bool {
	ctx, cancel := context.WithTimeout(ctx, mendTimeout)
	defer cancel()
	refused := make(chan struct{}, 1)
	w := &watcher{concerns: func(e *PermissionError, s string) bool { return e.Op == OpSubscribe && s == subject },
		tell: func(*PermissionError) {
			select {
			case refused <- struct{}{}:
			default:
			}
		}}
	defer p.await(w, nil)()
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

// grantFor returns what to grant for a subject that was denied: the parts that differ from message to message are
// wildcards. It is "" for subjects that are not ours.
func grantFor(subject string) string {
	tokens := strings.Split(subject, ".")
	switch {
	case strings.HasPrefix(subject, "$SRV."):
		return "$SRV.>"
	case strings.HasPrefix(subject, "$JS.ACK."):
		return grantForAck(tokens)
	case strings.HasPrefix(subject, "$JS.API."):
		return grantForAPI(subject, tokens)
	case strings.HasPrefix(subject, stagePrefix) && len(tokens) == 6:
		return stagePrefix + tokens[2] + ".*.*." + tokens[5]
	case strings.HasPrefix(subject, callPrefix) && len(tokens) == 5 && tokens[4] != ">":
		return callPrefix + tokens[2] + ".*." + tokens[4]
	case strings.HasPrefix(subject, callPrefix) && len(tokens) > 3:
		return callPrefix + tokens[2] + ".>"
	case strings.HasPrefix(subject, flowPrefix) && len(tokens) > 3:
		return flowPrefix + tokens[2] + ".>"
	case tokens[0] == "tranche":
		return subject
	default:
		return ""
	}
}

// grantForAck knows both forms: $JS.ACK.<stream>.<consumer>.… and $JS.ACK.<domain>.<account>.<stream>.<consumer>.….
func grantForAck(tokens []string) string {
	switch {
	case len(tokens) > 4 && strings.HasPrefix(tokens[2], streamPrefix):
		return "$JS.ACK." + tokens[2] + "." + tokens[3] + ".>"
	case len(tokens) > 6 && strings.HasPrefix(tokens[4], streamPrefix):
		return "$JS.ACK.*.*." + tokens[4] + "." + tokens[5] + ".>"
	default:
		return ""
	}
}

// grantForAPI shortens the subjects that repeat what a consumer filters by, or which message is asked for.
func grantForAPI(subject string, tokens []string) string {
	head, rest, found := strings.Cut(subject, streamPrefix)
	if !found {
		return ""
	}
	names := strings.SplitN(rest, ".", 3)
	switch {
	case strings.HasSuffix(head, ".CONSUMER.CREATE.") && len(names) > 2:
		return head + streamPrefix + names[0] + "." + names[1] + ".>"
	case strings.HasSuffix(head, ".DIRECT.GET.") && len(names) > 1:
		return head + streamPrefix + names[0] + "." + grantFor(strings.Join(tokens[5:], "."))
	default:
		return subject
	}
}

// streamPrefix begins the names of all streams.
const streamPrefix = "TRANCHE_"
