package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

// denialLife is how long a denial is valid. Denied operations are retried more often.
const denialLife = time.Minute

// maxDenials bounds the denials stored. There are a few subjects per endpoint.
const maxDenials = 256

// Permissions tracks what NATS denies a connection's user. The server reports denials asynchronously; the denied
// operation would only time out. All queries to JetStream pass through here, so it also detects their silence and
// changes the server. It is safe for concurrent use.
type Permissions struct {
	nc *nats.Conn

	mu      sync.Mutex
	denied  map[string]denial // by operation and subject to grant
	waiting map[*Watcher]bool

	Elsewhere elsewhere
	lanes     knownLanes
}

type denial struct {
	err *PermissionError
	// subject is what the server named. It is retried if standing.
	subject string
	// standing marks a subscription made once per connection.
	standing   bool
	reconnects uint64 // of the connection at that time; a reconnect resets it
	last       time.Time
	told       bool
}

// Watcher is notified of denials that concern it.
type Watcher struct {
	Concerns func(*PermissionError, string) bool
	Tell     func(*PermissionError)
}

// watched maps connections to Permissions, since a connection has only one error handler, which its users share.
//
//nolint:gochecknoglobals // it holds on to nothing, and belongs to the connections
var watched struct {
	sync.Mutex
	by map[weak.Pointer[nats.Conn]]weak.Pointer[Permissions]
}

// PermissionsOf returns a connection's Permissions. The first call installs an error handler that passes errors on to
// the previous one. A handler set later replaces both.
func PermissionsOf(nc *nats.Conn) *Permissions {
	watched.Lock()
	defer watched.Unlock()
	key := weak.Make(nc)
	if known, ok := watched.by[key]; ok {
		if p := known.Value(); p != nil {
			return p
		}
	}
	for old := range watched.by {
		if nc := old.Value(); nc == nil || nc.IsClosed() {
			delete(watched.by, old)
		}
	}
	if watched.by == nil {
		watched.by = map[weak.Pointer[nats.Conn]]weak.Pointer[Permissions]{}
	}
	p := &Permissions{nc: nc, denied: map[string]denial{}, waiting: map[*Watcher]bool{}}
	watched.by[key] = weak.Make(p)
	before := nc.ErrorHandler()
	nc.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		p.learn(err)
		if before != nil {
			before(nc, sub, err)
		}
	})
	return p
}

func (p *Permissions) learn(err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	found, subject, ok := ReadViolation(err.Error(), p.nc.Opts.InboxPrefix)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key := found.Op + " " + found.Subject
	before, known := p.denied[key]
	if !known && len(p.denied) >= maxDenials {
		return
	}
	now := denial{err: found, subject: subject, last: time.Now(), reconnects: p.nc.Stats().Reconnects,
		standing: isStanding(found, subject)}
	now.told = known && before.told && now.last.Sub(before.last) < denialLife
	if known && before.standing && before.reconnects == now.reconnects { // a pull's inbox does not replace it
		now.standing, now.subject = true, before.subject
	}
	p.denied[key] = now
	for w := range p.waiting {
		if w.Concerns(found, subject) {
			w.Tell(found)
		}
	}
}

// During runs f, which publishes to subjects and needs the answer. It cancels f's context when NATS denies one of
// these, and then returns a *PermissionError. A subject may end in ">". Success clears earlier denials of the
// subjects.
func (p *Permissions) During(ctx context.Context, f func(context.Context) error, subjects ...string) error {
	if err := p.hears(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &Watcher{Tell: func(err *PermissionError) { cancel(err) }, Concerns: func(e *PermissionError, s string) bool {
		return e.inbox || e.Op == OpPublish && slices.ContainsFunc(subjects, func(p string) bool { return covers(p, s) })
	}}
	end := p.Await(w, subjects)
	defer end()
	err := f(ctx)
	p.Elsewhere.Note(p.nc, subjects, err)
	if denied, ok := errors.AsType[*PermissionError](context.Cause(ctx)); ok {
		return denied
	}
	if err == nil {
		p.granted(subjects)
	}
	return err
}

// grantedAfter is when a pending operation counts as permitted. Servers deny immediately.
const grantedAfter = time.Second

// Await registers a watcher until end is called.
func (p *Permissions) Await(w *Watcher, subjects []string) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting[w] = true
	var patience *time.Timer
	if len(p.denied) > 0 && len(subjects) > 0 {
		patience = time.AfterFunc(grantedAfter, func() {
			if p.nc.IsConnected() {
				p.granted(subjects)
			}
		})
	}
	return func() {
		if patience != nil {
			patience.Stop()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.waiting, w)
	}
}

// During runs f, which publishes to subjects and needs the answer. When NATS denies the user of nc one of these, it
// cancels f's context and returns a *PermissionError instead of a timeout. A subject may end in ">".
func During(ctx context.Context, nc *nats.Conn, f func(context.Context) error, subjects ...string) error {
	return PermissionsOf(nc).During(ctx, f, subjects...)
}

// Explain returns the *PermissionError if one of the subjects or the inbox is denied at present, else err. Use it for
// timeouts of background operations.
func (p *Permissions) Explain(err error, subjects ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.denied {
		concerns := d.err.inbox || slices.ContainsFunc(subjects, func(s string) bool { return covers(s, d.subject) })
		if err != nil && concerns && p.present(d) {
			return d.err
		}
	}
	return err
}

func (p *Permissions) granted(subjects []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, d := range p.denied {
		publish := d.err.Op == OpPublish && slices.ContainsFunc(subjects, func(s string) bool { return covers(s, d.subject) })
		// Keep unreported ones: a tree of subjects may be granted except for this one.
		if (publish || d.err.inbox) && d.told {
			delete(p.denied, key)
		}
	}
}

// covers reports whether pattern, which may end in ">", matches the subject.
func covers(pattern, subject string) bool {
	prefix, tree := strings.CutSuffix(pattern, ">")
	return pattern == subject || tree && strings.HasPrefix(subject, prefix)
}

// Denied returns the present denials, as far as tried, sorted by subject.
func (p *Permissions) Denied() []*PermissionError {
	p.mu.Lock()
	defer p.mu.Unlock()
	var present []*PermissionError
	for key, d := range p.denied {
		if !p.present(d) {
			delete(p.denied, key)
			continue
		}
		present = append(present, d.err)
	}
	slices.SortFunc(present, func(a, b *PermissionError) int {
		return strings.Compare(a.Subject+" "+a.Op, b.Subject+" "+b.Op)
	})
	return present
}

// Reason returns a present denial that affects a listening endpoint, or "".
func (p *Permissions) Reason(endpoint string) string {
	for _, d := range p.Denied() {
		tokens := strings.Split(d.Subject, ".")
		if strings.HasPrefix(d.Subject, MakeConsumer) {
			continue // another user has created it
		}
		if d.inbox || tokens[0] == "$SRV" || slices.Contains(tokens, endpoint) {
			return d.Error()
		}
	}
	return ""
}

// present reports whether a denial still holds. Standing subscriptions are not retried.
func (p *Permissions) present(d denial) bool {
	return d.reconnects == p.nc.Stats().Reconnects && (d.standing || time.Since(d.last) < denialLife)
}

// MakeConsumer is the prefix of an optional permission of services.
const MakeConsumer = "$JS.API.CONSUMER.CREATE."

func (p *Permissions) logNew(log *zap.Logger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, d := range p.denied {
		if !d.told {
			d.told = true
			p.denied[key] = d
			if strings.HasPrefix(d.err.Subject, MakeConsumer) {
				log.Info("a node makes this service's consumer, once it sees the service or has work: the user may not",
					zap.String("subject", d.err.Subject))
				continue
			}
			log.Error("NATS denies this user something", zap.String("operation", d.err.Op),
				zap.String("subject", d.err.Subject), zap.Error(d.err))
		}
	}
}

// Operations of a PermissionError.
const (
	OpPublish   = "publish to"
	OpSubscribe = "subscribe to"
)

// PermissionError means that NATS denies the user a permission. Retrying helps only once it is granted. It matches
// nats.ErrPermissionViolation.
type PermissionError struct {
	Op      string // OpPublish or OpSubscribe
	Subject string // what to grant, with wildcards for variable parts
	inbox   bool
}

func (e *PermissionError) Error() string {
	if e.inbox {
		return fmt.Sprintf("NATS does not permit this user to %s its inbox, %s; connect with an inbox prefix that it may "+
			"read (NATS_INBOX_PREFIX or nats.CustomInboxPrefix), or grant this one: docs/security.md", e.Op, e.Subject)
	}
	return fmt.Sprintf("NATS does not permit this user to %s %s; grant it, or use the credentials of "+
		"another role: docs/security.md", e.Op, e.Subject)
}

func (e *PermissionError) Unwrap() error { return nats.ErrPermissionViolation }

// Denied reports whether err is a missing permission.
func Denied(err error) bool { return errors.Is(err, nats.ErrPermissionViolation) }

// Prefixes of the server's messages, which a quoted subject follows.
const (
	publishViolation   = "Permissions Violation for Publish to "
	subscribeViolation = "Permissions Violation for Subscription to "
)

// ReadViolation parses the server's message. ok is false if it does not concern Tranche.
func ReadViolation(text, inboxPrefix string) (found *PermissionError, subject string, ok bool) {
	found = &PermissionError{Op: OpPublish}
	_, quoted, ok := strings.Cut(text, publishViolation)
	if !ok {
		found.Op = OpSubscribe
		if _, quoted, ok = strings.Cut(text, subscribeViolation); !ok {
			return nil, "", false
		}
	}
	prefix, err := strconv.QuotedPrefix(quoted)
	if err != nil {
		return nil, "", false //nolint:nilerr // not a violation as servers report it
	}
	subject, _ = strconv.Unquote(prefix)
	if rest, nodes := strings.CutPrefix(subject, wire.NodesAPIPrefix); nodes {
		subject = wire.APIPrefix + rest // the original subject
	}
	inboxPrefix = cmp.Or(inboxPrefix, nats.InboxPrefix)
	inboxPrefix = strings.TrimSuffix(inboxPrefix, ".") + "."
	if found.inbox = found.Op == OpSubscribe && strings.HasPrefix(subject, inboxPrefix); found.inbox {
		found.Subject = inboxPrefix + ">"
		return found, subject, true
	}
	found.Subject = grantFor(subject)
	if name, call := callerOf(subject); call && found.Op == OpSubscribe {
		found.Subject = wire.CallPrefix + name + ".>" // for all who may answer
	}
	return found, subject, found.Subject != ""
}

func callerOf(subject string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(subject, wire.CallPrefix)
	name, _, _ = strings.Cut(rest, ".")
	return name, ok && name != ""
}

// grantFor returns the subject to grant, with wildcards for variable parts, or "" if it is not Tranche's.
func grantFor(subject string) string {
	tokens := strings.Split(subject, ".")
	switch {
	case strings.HasPrefix(subject, "$SRV."):
		return "$SRV.>"
	case strings.HasPrefix(subject, "$JS.ACK."):
		return grantForAck(tokens)
	case strings.HasPrefix(subject, "$JS.API."):
		return grantForAPI(subject, tokens)
	case strings.HasPrefix(subject, wire.StagePrefix) && len(tokens) == 6:
		return wire.StagePrefix + tokens[2] + ".*.*." + tokens[5]
	case strings.HasPrefix(subject, wire.CallPrefix) && len(tokens) == 5:
		return wire.CallPrefix + tokens[2] + ".*." + tokens[4]
	case strings.HasPrefix(subject, wire.FlowPrefix) && len(tokens) > 3:
		return wire.FlowPrefix + tokens[2] + ".>"
	case tokens[0] == "tranche":
		return subject
	default:
		return ""
	}
}

// grantForAck handles $JS.ACK.<stream>.<consumer>.… and $JS.ACK.<domain>.<account>.<stream>.<consumer>.….
func grantForAck(tokens []string) string {
	switch {
	case len(tokens) > 4 && strings.HasPrefix(tokens[2], streamPrefix):
		return "$JS.ACK." + tokens[2] + "." + tokens[3] + ".*.*.*.*.*"
	case len(tokens) > 6 && strings.HasPrefix(tokens[4], streamPrefix):
		return "$JS.ACK.*.*." + tokens[4] + "." + tokens[5] + ".*.*.*.*.>"
	default:
		return ""
	}
}

// grantForAPI drops the filter or message that some API subjects repeat.
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

const streamPrefix = "TRANCHE_"

const (
	// restoreInterval is the interval for logging denials and retrying standing subscriptions.
	restoreInterval = time.Second
	// restoreTimeout bounds one retry.
	restoreTimeout = 2 * time.Second
	// violationDelay is how long nats.go may take to report a violation.
	violationDelay = 20 * time.Millisecond
)

// Run logs new denials until ctx ends, and restores denied subscriptions once granted; servers do not.
func (p *Permissions) Run(ctx context.Context, log *zap.Logger) {
	for backoff.Sleep(ctx, restoreInterval) == nil {
		p.logNew(log)
		for _, subject := range p.standing() {
			if p.restore(ctx, subject) {
				log.Info("NATS grants a subscription that it denied before; connecting again", zap.String("subject", subject))
				break
			}
		}
	}
}

// isStanding reports whether the denied subscription is made once per connection, unlike those of calls and pulls.
func isStanding(e *PermissionError, subject string) bool {
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

// restore reports whether a denied subscription is granted now, and if so reconnects: nats.go then renews all
// subscriptions. For the inbox there is no other way.
func (p *Permissions) restore(ctx context.Context, subject string) bool {
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
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
	if deaf == nil || p.restore(ctx, subject) {
		return nil
	}
	return deaf
}
