package stream

import (
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
)

// denialLife is how long a denial counts as present that does not come again. What is denied is retried more often.
const denialLife = time.Minute

// maxDenials bounds what is remembered. There are a few subjects for each endpoint.
const maxDenials = 256

// Permissions knows what NATS denies the user of a connection. The server says so to no one in particular: the
// operation that was denied would only time out. Since every question to JetStream passes by here, it also sees when
// none is answered, and takes the connection elsewhere. It is safe for concurrent use.
type Permissions struct {
	nc *nats.Conn

	mu      sync.Mutex
	denied  map[string]denial // by operation and subject to grant
	waiting map[*Watcher]bool

	Elsewhere elsewhere
	lanes     knownLanes
}

// denial is what was denied and not granted since.
type denial struct {
	err *PermissionError
	// subject is what the server named. It is retried when standing.
	subject string
	// standing is a subscription that is made once for all the life of a connection.
	standing   bool
	reconnects uint64 // of the connection when the server said so; another one begins again
	last       time.Time
	told       bool
}

// Watcher waits for a denial.
type Watcher struct {
	Concerns func(*PermissionError, string) bool
	Tell     func(*PermissionError)
}

// watched finds the Permissions of a connection. A connection has one place for its error handler only, which must be
// shared by all that use the connection.
//
//nolint:gochecknoglobals // it holds on to nothing, and belongs to the connections
var watched struct {
	sync.Mutex
	by map[weak.Pointer[nats.Conn]]weak.Pointer[Permissions]
}

// PermissionsOf returns what is known of a connection, and from the first call on listens to what the server denies it,
// by a handler for errors that passes everything on to the one set before. A handler that is set later replaces both.
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

// learn takes an error of the connection.
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
		standing: stands(found, subject)}
	now.told = known && before.told && now.last.Sub(before.last) < denialLife
	if known && before.standing && before.reconnects == now.reconnects { // a pull's inbox is not the one that stands
		now.standing, now.subject = true, before.subject
	}
	p.denied[key] = now
	for w := range p.waiting {
		if w.Concerns(found, subject) {
			w.Tell(found)
		}
	}
}

// During runs f, which needs to publish to subjects and to hear the answer, with a context that ends as soon as NATS
// denies one of these. Then its error is a *PermissionError. A subject may end in ">". When f succeeds the subjects
// count as granted.
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

// grantedAfter is when an operation that goes on counts as not denied. The server denies at once.
const grantedAfter = time.Second

// Await has a watcher told of denials until the returned function is called.
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

// During runs f, which needs to publish to subjects and to hear the answer, with a context that ends as soon as NATS
// denies the user of nc one of these; then its error is a *PermissionError instead of a time-out. A subject may end in
// ">".
func During(ctx context.Context, nc *nats.Conn, f func(context.Context) error, subjects ...string) error {
	return PermissionsOf(nc).During(ctx, f, subjects...)
}

// Explain returns the *PermissionError for one of the subjects, or for the inbox, if NATS denies that at present, and
// otherwise err. It is for what runs into a time-out in the background.
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

// granted forgets denials that have been disproved.
func (p *Permissions) granted(subjects []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, d := range p.denied {
		publish := d.err.Op == OpPublish && slices.ContainsFunc(subjects, func(s string) bool { return covers(s, d.subject) })
		// One that no one has been told of stays until someone is: a tree of subjects may be granted but for this one.
		if (publish || d.err.inbox) && d.told {
			delete(p.denied, key)
		}
	}
}

// covers reports whether a pattern, a subject that may end in ">", stands for the subject.
func covers(pattern, subject string) bool {
	prefix, tree := strings.CutSuffix(pattern, ">")
	return pattern == subject || tree && strings.HasPrefix(subject, prefix)
}

// Denied returns what NATS denies at present, as far as it has been tried, sorted by subject.
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

// Reason says what is denied at present that an endpoint which listens misses, or "".
func (p *Permissions) Reason(endpoint string) string {
	for _, d := range p.Denied() {
		tokens := strings.Split(d.Subject, ".")
		if strings.HasPrefix(d.Subject, MakeConsumer) {
			continue // someone has made it
		}
		if d.inbox || tokens[0] == "$SRV" || slices.Contains(tokens, endpoint) {
			return d.Error()
		}
	}
	return ""
}

// present reports whether a denial still holds as far as anybody knows. A subscription that stands is not retried.
func (p *Permissions) present(d denial) bool {
	return d.reconnects == p.nc.Stats().Reconnects && (d.standing || time.Since(d.last) < denialLife)
}

// MakeConsumer begins the subjects of a right that a service can do without.
const MakeConsumer = "$JS.API.CONSUMER.CREATE."

// logNew logs denials that were not logged yet.
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

// What a PermissionError says was tried.
const (
	OpPublish   = "publish to"
	OpSubscribe = "subscribe to"
)

// PermissionError is returned when NATS does not permit the user of a connection what an operation needs. Trying again
// helps once the permission has been granted, and not before. It is an nats.ErrPermissionViolation.
type PermissionError struct {
	Op      string // OpPublish or OpSubscribe
	Subject string // what to grant: wildcards stand for parts that differ from message to message
	inbox   bool
}

func (e *PermissionError) Error() string {
	if e.inbox {
		return fmt.Sprintf("NATS does not permit this user to %s its inbox, %s; connect with an inbox prefix that it may "+
			"read (NATS_INBOX_PREFIX or nats.CustomInboxPrefix), or grant this one: docs/security.md", e.Op, e.Subject)
	}
	return fmt.Sprintf("NATS does not permit this user to %s %s; grant it: docs/security.md", e.Op, e.Subject)
}

// Unwrap returns nats.ErrPermissionViolation.
func (e *PermissionError) Unwrap() error { return nats.ErrPermissionViolation }

// Denied reports whether an operation failed for want of a permission.
func Denied(err error) bool { return errors.Is(err, nats.ErrPermissionViolation) }

// violation is how the server begins to say what it denies; what follows is the subject, quoted.
const (
	publishViolation   = "Permissions Violation for Publish to "
	subscribeViolation = "Permissions Violation for Subscription to "
)

// ReadViolation reads what the server said. It returns false when that is of no concern to this package.
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
		return nil, "", false //nolint:nilerr // it is no violation as servers write it
	}
	subject, _ = strconv.Unquote(prefix)
	if rest, nodes := strings.CutPrefix(subject, wire.NodesAPIPrefix); nodes {
		subject = wire.APIPrefix + rest // what was asked
	}
	if inboxPrefix == "" {
		inboxPrefix = nats.InboxPrefix
	}
	inboxPrefix = strings.TrimSuffix(inboxPrefix, ".") + "."
	if found.inbox = found.Op == OpSubscribe && strings.HasPrefix(subject, inboxPrefix); found.inbox {
		found.Subject = inboxPrefix + ">"
		return found, subject, true
	}
	found.Subject = grantFor(subject)
	if name, call := callerOf(subject); call && found.Op == OpSubscribe {
		found.Subject = wire.CallPrefix + name + ".>" // whoever may answer
	}
	return found, subject, found.Subject != ""
}

// callerOf returns the name of the caller whose answers have a subject.
func callerOf(subject string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(subject, wire.CallPrefix)
	name, _, _ = strings.Cut(rest, ".")
	return name, ok && name != ""
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

// grantForAck knows both forms: $JS.ACK.<stream>.<consumer>.… and $JS.ACK.<domain>.<account>.<stream>.<consumer>.….
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
