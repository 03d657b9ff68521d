package endpoints

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Fail returns an error that a handler may return, or wrap, to fail an item permanently: trying it again would not
// help. A HandleList handler that returns it has failed all items that are not answered.
// The code groups errors in lists and re-runs: keep it short and the same for the same cause, of A-Z a-z 0-9 _ . -, at
// most 64 characters. The message is cut at 2 KiB.
func Fail(code, format string, args ...any) error {
	return wire.Fail(code, format, args...)
}

// Retry returns an error like Fail's which says that trying again could help: a time-out, a locked row, a busy host.
func Retry(code, format string, args ...any) error {
	return wire.Retry(code, format, args...)
}

// NoListenersError is returned by a direct call when no instance of a service listens for the endpoint.
type NoListenersError struct{ Endpoint string }

func (e *NoListenersError) Error() string {
	return fmt.Sprintf("call endpoint %s: no service listens for it; start one, or call without Direct to have the "+
		"request wait for one", e.Endpoint)
}

// RequestError is returned by a call whose request JetStream did not take.
type RequestError struct {
	Endpoint, Stream string
	Err              error
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("call endpoint %s: stream %s did not take the request: %v; %s", e.Endpoint, e.Stream, e.Err,
		e.remedy())
}

func (e *RequestError) remedy() string {
	var api *jetstream.APIError
	switch {
	case serve.IsMissing(e.Err):
		return "start a Tranche node, which makes the stream, or call with Direct"
	case errors.As(e.Err, &api) && api.ErrorCode == serve.StreamFull:
		return "services do not keep up: start more, or raise the size of the stream"
	case errors.As(e.Err, &api):
		return "is the stream one of this version of Tranche? A node fixes it"
	default:
		return "is the NATS server there, with JetStream?"
	}
}

// Unwrap returns what JetStream said, or why it did not.
func (e *RequestError) Unwrap() error { return e.Err }

// BadReplyError is returned by a call that was answered with something that is no reply.
type BadReplyError struct {
	Endpoint string
	Service  string // who answered, as far as it says
	Err      error  // a *MalformedError
}

func (e *BadReplyError) Error() string {
	return fmt.Sprintf("call endpoint %s: its reply cannot be read (service %q): %v", e.Endpoint, e.Service, e.Err)
}

// Unwrap returns what is wrong with the reply.
func (e *BadReplyError) Unwrap() error { return e.Err }

// UnansweredError is returned by a call whose context ended before all answers were there. It is a
// context.DeadlineExceeded, or a context.Canceled.
type UnansweredError struct {
	Endpoint        string
	Items, Answered int
	// Dropped is how many messages were lost because they came faster than they could be read.
	Dropped int
	Err     error // of the context
	Cause   error // of its end
}

func (e *UnansweredError) Error() string {
	text := fmt.Sprintf("call endpoint %s: %d of %d items were answered: %v; does a service listen for it (tranche "+
		"endpoints), and is it quick enough?", e.Endpoint, e.Answered, e.Items, e.Cause)
	if e.Dropped > 0 {
		text += fmt.Sprintf(" %d messages of replies were lost because they came too fast: request fewer items at a time",
			e.Dropped)
	}
	return text
}

// Unwrap returns the error of the context and the cause of its end.
func (e *UnansweredError) Unwrap() []error { return []error{e.Err, e.Cause} }

// isCallError reports whether an error says more of a call than that its time is over.
func isCallError(err error) bool {
	var listeners *NoListenersError
	var request *RequestError
	var reply *BadReplyError
	return stream.Denied(err) || errors.As(err, &listeners) || errors.As(err, &request) || errors.As(err, &reply)
}
