package endpoints

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Fail returns an error that fails an item permanently; a handler may wrap it. From a HandleList handler it fails all
// unanswered items.
//
// The code groups errors in listings and reruns: use one code per cause, of A-Z a-z 0-9 _ . -, at most 64 characters.
// The message is cut to 2 KiB.
func Fail(code, format string, args ...any) error {
	return wire.Fail(code, format, args...)
}

// Retry returns an error like Fail's for a temporary failure, such as a timeout, a locked row or a busy host.
func Retry(code, format string, args ...any) error {
	return wire.Retry(code, format, args...)
}

// NoListenersError is returned by a direct call when no service listens on the endpoint.
type NoListenersError struct{ Endpoint string }

func (e *NoListenersError) Error() string {
	return fmt.Sprintf("call endpoint %s: no service listens for it; start one, or call without Direct to have the "+
		"request wait for one", e.Endpoint)
}

// RequestError is returned by a call when JetStream does not accept the request.
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

// Unwrap returns the error from publishing.
func (e *RequestError) Unwrap() error { return e.Err }

// BadReplyError is returned by a call that received a malformed reply.
type BadReplyError struct {
	Endpoint string
	Service  string // the service named in the reply
	Err      error  // a *MalformedError
}

func (e *BadReplyError) Error() string {
	return fmt.Sprintf("call endpoint %s: its reply cannot be read (service %q): %v", e.Endpoint, e.Service, e.Err)
}

func (e *BadReplyError) Unwrap() error { return e.Err }

// UnansweredError is returned by a call whose context ended before all answers arrived. It matches
// context.DeadlineExceeded or context.Canceled.
type UnansweredError struct {
	Endpoint        string
	Items, Answered int
	// Dropped counts messages lost because they arrived faster than they could be read.
	Dropped int
	Err     error // ctx.Err()
	Cause   error // context.Cause(ctx)
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

func (e *UnansweredError) Unwrap() []error { return []error{e.Err, e.Cause} }

// isCallError reports whether err says more than that the deadline passed.
func isCallError(err error) bool {
	var listeners *NoListenersError
	var request *RequestError
	var reply *BadReplyError
	return stream.Denied(err) || errors.As(err, &listeners) || errors.As(err, &request) || errors.As(err, &reply)
}
