package stream

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

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
