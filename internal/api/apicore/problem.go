package apicore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/live"
	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
	controlstore "github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/erasure"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/start"
)

// ProblemType is the content type of error answers.
const ProblemType = "application/problem+json"

// InputError is an error in the caller's input.
type InputError struct{ detail string }

func (e *InputError) Error() string { return e.detail }

// BadInput returns an InputError; detail names the place, the fault and the remedy.
func BadInput(detail string) error { return &InputError{detail} }

type lostError struct {
	error

	see string
}

func (e *lostError) Unwrap() error { return e.error }

// Seen adds to a not-found error where to look instead.
func Seen(err error, see string) error {
	if errors.Is(err, workqueue.ErrNotFound) {
		return &lostError{err, see}
	}
	return err
}

// Problem converts an error to an answer. Errors that are not the caller's are logged here and answered without
// internal details.
func (s *Core) Problem(ctx context.Context, err error) *huma.ErrorModel {
	if revoked := access.Recheck(ctx); revoked != nil {
		err = revoked
	}
	p := &huma.ErrorModel{Status: s.status(err), Detail: s.Detail(err)}
	p.Title = http.StatusText(p.Status)
	p.Errors = places(err)
	if bad, ok := errors.AsType[*trackerclient.Error](err); ok {
		p.Type, p.Errors = problemOfTracker+string(bad.Code), trackerPlace(bad)
	}
	if bad, ok := errors.AsType[*workqueue.ConflictError](err); ok && bad.Nothing {
		p.Type = "urn:tranche:nothing_to_do"
	}
	switch {
	case p.Status < http.StatusInternalServerError || retryAfter(err) > 0: // overload shows elsewhere
	case ctx.Err() != nil && !errors.Is(context.Cause(ctx), errTooSlow):
		p.Status, p.Title = http.StatusServiceUnavailable, http.StatusText(http.StatusServiceUnavailable)
		p.Detail = "the request was interrupted"
	default:
		s.Log.Error("request failed", zap.Error(err))
	}
	return bounded(p)
}

func (s *Core) failure(ctx context.Context, err error) error {
	p := s.Problem(ctx, err)
	return huma.ErrorWithHeaders(p, problemHeaders(p, err))
}

func problemHeaders(p *huma.ErrorModel, err error) http.Header {
	header := http.Header{}
	if p.Status == http.StatusUnauthorized { // whether or not anything else is wrong
		header.Set("WWW-Authenticate", challenge)
	} else if after := retryAfter(err); after > 0 {
		header.Set("Retry-After", strconv.Itoa(after))
	} else if p.Status == http.StatusServiceUnavailable { // what is unavailable may soon be back
		header.Set("Retry-After", strconv.Itoa(busyRetry))
	}
	return header
}

// Told returns the part of an error made for the caller, without the wrapping operations, and its status; nil if
// none. Of several the first in this list counts.
func Told(err error) (status int, found error) {
	if bad, ok := errors.AsType[*trackerclient.Error](err); ok {
		return trackers.Status(bad.Code), bad
	}
	for _, of := range []struct {
		status int
		kinds  []func(error) error
	}{
		{http.StatusUnprocessableEntity, []func(error) error{
			as[*row.LineError], as[*row.InputError], as[*intake.InvalidError], as[*row.RecordError], as[*intake.QueryError],
			as[*InputError], as[*inspect.GroupingError], as[*gather.FieldError], as[*workqueue.DuplicateKeyError],
			as[*start.ItemOrderError], as[*workqueue.SettingError], as[*workqueue.UnknownNamespaceError],
			as[*strictyaml.Error], as[*ingest.OpError],
		}},
		{http.StatusServiceUnavailable, []func(error) error{
			as[*intake.NoRoomError], as[*ingest.EnrichError], as[*live.OutageError],
		}},
		{http.StatusRequestEntityTooLarge, []func(error) error{
			as[*intake.TooLargeError], as[*workqueue.TooLargeError], as[*ingest.TooManyError], as[*http.MaxBytesError],
		}},
		{http.StatusConflict, []func(error) error{
			as[*workqueue.ConflictError], as[*collector.MovedError],
			as[*workqueue.ChangedError], as[*workqueue.AmbiguousError], said("TRQ01"), as[*workqueue.ElsewhereError],
			as[*workqueue.StateError], as[*erasure.UnderWayError],
		}},
		{http.StatusTooManyRequests, []func(error) error{as[*ingest.OverloadedError], as[*tooManyError]}},
		{http.StatusPreconditionFailed, []func(error) error{as[*workqueue.MovedError]}},
		{http.StatusForbidden, []func(error) error{said("TRQ02"), as[*controlstore.FourEyesError]}},
		{http.StatusNotFound, []func(error) error{as[*controlstore.NoGateError]}},
		{http.StatusGone, []func(error) error{as[*inspect.GoneError]}},
	} {
		for _, kind := range of.kinds {
			if found := kind(err); found != nil {
				return of.status, found
			}
		}
	}
	return 0, nil
}

// said finds the message that a function of the schema, namespace_quota or endpoint_namespaces, raised with a code.
func said(code string) func(error) error {
	return func(err error) error {
		if said, ok := errors.AsType[*pgconn.PgError](err); ok && said.Code == code {
			return errors.New(said.Message)
		}
		return nil
	}
}

func as[T error](err error) error {
	if found, ok := errors.AsType[T](err); ok {
		return found
	}
	return nil
}

func (s *Core) status(err error) int {
	if status, _ := accessProblem(err); status != 0 {
		return status
	}
	if status, found := Told(err); found != nil {
		return status
	}
	switch {
	case errors.Is(err, workqueue.ErrNotFound):
		return http.StatusNotFound
	case s.away(err) != nil:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// Detail returns the text of an error for a caller.
func (s *Core) Detail(err error) string {
	if _, detail := accessProblem(err); detail != "" {
		return detail
	}
	if _, found := Told(err); found != nil {
		return found.Error()
	}
	switch s.status(err) {
	case http.StatusNotFound:
		see := "tranche run list"
		if lost, ok := errors.AsType[*lostError](err); ok {
			see = lost.see
		}
		return err.Error() + "; see " + see
	case http.StatusServiceUnavailable:
		return s.away(err).detail
	default:
		return "something went wrong inside; the log of this tranche serve says what"
	}
}

func fromNATS(err error) bool {
	return slices.ContainsFunc([]error{
		nats.ErrConnectionClosed, nats.ErrConnectionReconnecting, nats.ErrDisconnected, nats.ErrNoResponders,
		nats.ErrNoServers, nats.ErrTimeout, jetstream.ErrNoStreamResponse,
	}, func(gone error) bool { return errors.Is(err, gone) })
}

// WriteProblem sends a problem from outside an operation.
func WriteProblem(w http.ResponseWriter, status int, detail string) {
	SendProblem(w, &huma.ErrorModel{Status: status, Title: http.StatusText(status), Detail: detail})
}

// SendProblem sends a problem from outside an operation.
func SendProblem(w http.ResponseWriter, p *huma.ErrorModel) {
	w.Header().Set("Content-Type", ProblemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(bounded(p)) // fails if the caller is gone
}

func operationPlace(err error) []*huma.ErrorDetail {
	op, ok := errors.AsType[*ingest.OpError](err)
	switch {
	case !ok || op.Number == 0 && op.Line == 0:
		return nil
	case op.Line == 0:
		return []*huma.ErrorDetail{{Message: op.Problem, Location: "operations.number", Value: op.Number}}
	}
	return []*huma.ErrorDetail{{Message: op.Problem, Location: "operations.line", Value: op.Line}}
}

// problemOfTracker is the prefix of a tracker problem's type, before the code.
const problemOfTracker = "urn:tranche:tracker:"

func trackerPlace(bad *trackerclient.Error) []*huma.ErrorDetail {
	if bad.Place == "" {
		return nil
	}
	detail := &huma.ErrorDetail{Message: bad.Message, Location: "body." + bad.Place}
	switch bad.Place {
	case "after", "limit", "missing", "state": // not members of any body
		detail.Location = "query." + bad.Place
	case "batch":
		detail.Location = "path.id"
	}
	if bad.Value != "" {
		detail.Value = bad.Value
	}
	return []*huma.ErrorDetail{detail}
}

func places(err error) []*huma.ErrorDetail {
	if line, ok := errors.AsType[*row.LineError](err); ok {
		return []*huma.ErrorDetail{{Message: line.Reason, Location: "items.line", Value: line.Line}}
	}
	if bad, ok := errors.AsType[*intake.InvalidError](err); ok {
		var all []*huma.ErrorDetail
		for i := range bad.Places {
			p := &bad.Places[i]
			all = append(all, &huma.ErrorDetail{Message: fmt.Sprintf("key %q, %s", Echo(p.Key), p.What()),
				Location: "items." + p.Unit, Value: p.Line})
		}
		return all
	}
	if record, ok := errors.AsType[*row.RecordError](err); ok {
		return []*huma.ErrorDetail{{Message: record.Reason, Location: "items." + record.Unit, Value: record.Number}}
	}
	if twice, ok := errors.AsType[*workqueue.DuplicateKeyError](err); ok {
		return []*huma.ErrorDetail{{Message: "duplicate key", Location: "items.line", Value: twice.SecondLine}}
	}
	if item, ok := errors.AsType[*start.ItemOrderError](err); ok {
		return []*huma.ErrorDetail{{Message: item.Problem, Location: "items.line", Value: item.Line}}
	}
	if changed, ok := errors.AsType[*workqueue.ChangedError](err); ok {
		at := "body.if_was." + changed.Setting
		return []*huma.ErrorDetail{{Message: "changed since it was read", Location: at, Value: changed.Has}}
	}
	if ambiguous, ok := errors.AsType[*workqueue.AmbiguousError](err); ok {
		var all []*huma.ErrorDetail
		for _, id := range ambiguous.Matches {
			all = append(all, &huma.ErrorDetail{Message: "one of the runs that fit", Location: "path.run", Value: id})
		}
		return all
	}
	if bad, ok := errors.AsType[*strictyaml.Error](err); ok && bad.Line != 0 {
		return []*huma.ErrorDetail{{Message: bad.Problem, Location: bad.Kind + ".line", Value: bad.Line}}
	}
	return operationPlace(err)
}

// Limits on what an error answer repeats of the request.
const (
	MaxEchoed  = 100  // characters of one value
	maxDetail  = 2000 // characters of a detail or message
	maxDetails = 20   // reported places
)

// bounded shortens what a problem repeats of the request, so that answers do not grow with it. Secrets are redacted.
func bounded(p *huma.ErrorModel) *huma.ErrorModel {
	p.Detail = Cut(access.Redact(p.Detail), maxDetail)
	if more := len(p.Errors) - maxDetails; more > 0 {
		p.Errors = append(p.Errors[:maxDetails:maxDetails], &huma.ErrorDetail{Message: fmt.Sprintf("and %d more", more)})
	}
	for _, e := range p.Errors {
		e.Message, e.Location = Cut(access.Redact(e.Message), maxDetail), Cut(access.Redact(e.Location), 2*MaxEchoed)
		e.Value = echo(e.Value)
	}
	return p
}

// BoundProblems applies bounded to problems that huma writes.
func BoundProblems(_ huma.Context, _ string, v any) (any, error) {
	if p, ok := v.(*huma.ErrorModel); ok {
		return bounded(p), nil
	}
	return v, nil
}

func echo(value any) any {
	switch v := value.(type) {
	case nil, bool, int, int64, float64:
		return v
	case string:
		return Echo(access.Redact(v))
	}
	text, err := json.Marshal(value)
	if err == nil && strings.Contains(string(text), access.Prefix) {
		return Cut(access.Redact(string(text)), MaxEchoed)
	}
	if err != nil || len(text) <= MaxEchoed {
		return value
	}
	return Echo(string(text))
}

// Echo shortens a text of the request to repeat it in an error.
func Echo(s string) string { return Cut(s, MaxEchoed) }

// Cut shortens a text to limit characters, the last of them an ellipsis.
func Cut(s string, limit int) string {
	count, end := 0, 0
	for i := range s {
		if count++; count == limit {
			end = i
		}
		if count > limit {
			return s[:end] + "…"
		}
	}
	return s
}

// ZeroTimes refuses the zero time in the named query parameters, because it would count as not given.
func ZeroTimes(ctx huma.Context, names ...string) (problems []error) {
	for _, name := range names {
		if at, err := time.Parse(time.RFC3339, ctx.Query(name)); err == nil && at.IsZero() {
			problems = append(problems, &huma.ErrorDetail{Message: "too long ago; leave it out", Location: "query." + name,
				Value: ctx.Query(name)})
		}
	}
	return problems
}

// CheckText refuses text that PostgreSQL cannot store or that is longer than most bytes.
func CheckText(field, value string, most int) error {
	const fix = "; leave that out"
	switch {
	case !utf8.ValidString(value):
		return BadInput(fmt.Sprintf("%s is not valid UTF-8: %q%s", field, Echo(value), fix))
	case strings.IndexByte(value, 0) >= 0:
		return BadInput(fmt.Sprintf("%s holds a NUL, which PostgreSQL cannot store: %q%s", field, Echo(value), fix))
	case len(value) > most:
		return BadInput(fmt.Sprintf("%s has %d bytes, and at most %d are allowed; shorten it", field, len(value), most))
	default:
		return nil
	}
}
