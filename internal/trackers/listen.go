package trackers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/ingest"
)

const (
	// listenQueue is the queue group of the nodes: each request reaches one of them.
	listenQueue = "tranche"
	// maxAtWork is how many requests a node works on at once. What is beyond is refused at once, and can be sent again.
	maxAtWork = 4096
	// maxHeld bounds the bytes of these requests. What they name takes up to 25 times as much.
	maxHeld = 16 << 20
	// requestTimeout bounds the work for a request. Whoever waits longer for PostgreSQL than this is told so.
	requestTimeout = 30 * time.Second
)

// listener answers requests of core NATS.
type listener struct {
	operations map[string]operation // by the last part of their subjects

	log *zap.Logger
	nc  *nats.Conn
}

// Listen takes requests from now on, until the responder is closed.
func Listen(nc *nats.Conn, service *Service) (*ingest.Responder, error) {
	l := &listener{operations: service.operations(), log: service.log, nc: nc}
	return ingest.NewResponder(nc, ingest.ResponderConfig{
		Subject: trackerclient.SubjectPrefix + "*", Queue: listenQueue, Timeout: requestTimeout,
		MaxRequests: maxAtWork, MaxBytes: maxHeld,
		Answer: func(ctx context.Context, msg *nats.Msg) {
			out, err := l.serve(ctx, msg)
			l.answer(msg, out, err)
		},
		Refuse: func(msg *nats.Msg) {
			l.answer(msg, nil, &trackerclient.Error{Code: trackerclient.CodeBusy,
				Message: "this node works on as many requests as it can already; ask again"})
		},
	})
}

// anonymous is the actor of requests that name none.
const anonymous = "nats"

// serve works on a request. NATS does not say who asks, so of webhooks only origins are told.
func (l *listener) serve(ctx context.Context, msg *nats.Msg) (any, error) {
	by := Caller{Actor: cmp.Or(msg.Header.Get(trackerclient.HeaderActor), anonymous), Sight: Origins}
	if err := tracker.CheckText("header "+trackerclient.HeaderActor, by.Actor, trackerclient.MaxName); err != nil {
		return nil, told(err)
	}
	name := strings.TrimPrefix(msg.Subject, trackerclient.SubjectPrefix)
	operation := l.operations[name]
	if operation == nil {
		return nil, &trackerclient.Error{Code: trackerclient.CodeBadRequest, Message: fmt.Sprintf(
			"there is no operation %q; there are open, add, ack, seal, get, groups, missing, list and delete", echo(name))}
	}
	return operation(ctx, msg.Data, by)
}

// answer sends an answer. What is too large for a message is refused instead.
func (l *listener) answer(msg *nats.Msg, out any, err error) {
	if msg.Reply == "" {
		return // whoever asks does not want to know
	}
	body, bad := []byte(nil), refused(l.log, err)
	if bad == nil {
		if body, err = json.Marshal(out); err != nil {
			bad = refused(l.log, err)
		} else if most := l.nc.MaxPayload(); int64(len(body)) > most {
			bad = &trackerclient.Error{Code: trackerclient.CodeTooLarge, Message: fmt.Sprintf(
				"the answer has %d bytes, and NATS takes %d; request fewer with limit", len(body), most)}
		}
	}
	if bad != nil {
		body, _ = json.Marshal(map[string]*trackerclient.Error{"error": bad}) // texts can be written
	}
	if err := msg.Respond(body); err != nil {
		l.log.Warn("answer a request to the tracker service", zap.String("subject", msg.Subject), zap.Error(err))
	}
}

// operation is what a subject stands for.
type operation func(ctx context.Context, body []byte, by Caller) (any, error)

func (s *Service) operations() map[string]operation {
	return map[string]operation{
		"open": asked(s.Open), "add": asked(s.Add), "ack": asked(s.Ack), "seal": asked(s.Seal), "delete": asked(s.Delete),
		"get": asked(s.Get), "groups": asked(s.Groups), "missing": asked(s.Missing), "list": asked(s.List),
	}
}

// asked reads a request and calls what does it.
func asked[In, Out any](do func(ctx context.Context, in In, by Caller) (Out, error)) operation {
	return func(ctx context.Context, body []byte, by Caller) (any, error) {
		var in In
		if err := ReadBody(body, &in); err != nil {
			return nil, err
		}
		return do(ctx, in, by)
	}
}

// ReadBody reads a request, with memory for what it says and for one mistake, however many there are. A member that
// no one knows is refused: it would be meant to do something. The error is a *trackerclient.Error.
func ReadBody(body []byte, into any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		body = []byte("{}")
	}
	if !utf8.Valid(body) {
		return &trackerclient.Error{Code: trackerclient.CodeBadRequest, Message: "the request is not valid UTF-8"}
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err == nil {
		if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
			return &trackerclient.Error{Code: trackerclient.CodeBadRequest, Message: "something follows the request's JSON"}
		}
		return nil
	}
	bad := &trackerclient.Error{Code: trackerclient.CodeBadRequest}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
		bad.Place = memberOf(wrong.Field)
		bad.Message = fmt.Sprintf("want %s, and there is a %s", jsonName(wrong.Type.Kind().String()), wrong.Value)
		return bad
	}
	bad.Message = "the request cannot be read: " + echo(strings.TrimPrefix(err.Error(), "json: "))
	return bad
}

// memberOf is the path of a member without the Go types that it is embedded by.
func memberOf(field string) string {
	names := strings.Split(field, ".")
	return strings.Join(slices.DeleteFunc(names, func(name string) bool {
		return name != "" && unicode.IsUpper(rune(name[0]))
	}), ".")
}

// jsonName is what JSON calls a kind of Go.
func jsonName(kind string) string {
	switch {
	case strings.HasPrefix(kind, "int"):
		return "a whole number"
	case kind == "slice":
		return "a list"
	case kind == "struct" || kind == "ptr":
		return "an object"
	case kind == "bool":
		return "true or false"
	}
	return "a text"
}

// refused makes of any error what a caller over NATS is told; nil for none. What is not the caller's doing is logged.
func refused(log *zap.Logger, err error) *trackerclient.Error {
	if err == nil {
		return nil
	}
	if bad, ok := errors.AsType[*trackerclient.Error](err); ok {
		return bad
	}
	if away(err) {
		return &trackerclient.Error{Code: trackerclient.CodeUnavailable,
			Message: "PostgreSQL cannot be reached, or is too slow; ask again"}
	}
	log.Error("a request to the tracker service failed", zap.Error(err))
	return &trackerclient.Error{Code: trackerclient.CodeInternal,
		Message: "something went wrong inside; the log of tranche serve says what"}
}

// away reports whether PostgreSQL cannot be reached, cut the connection, is shutting down (57), is out of resources
// (53), or takes too long, also because others hold what is needed (55P03).
func away(err error) bool {
	if said, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(said.Code, "53") || strings.HasPrefix(said.Code, "57") || said.Code == "55P03"
	}
	_, cannotConnect := errors.AsType[*pgconn.ConnectError](err)
	_, cut := errors.AsType[net.Error](err)
	return cannotConnect || cut || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, context.Canceled)
}

// Status is the status of HTTP that goes with a code.
func Status(code trackerclient.Code) int {
	switch code {
	case trackerclient.CodeNoBatch:
		return http.StatusNotFound
	case trackerclient.CodeBatchTaken, trackerclient.CodeKeyConflict, trackerclient.CodeNotOpen, trackerclient.CodeEnded:
		return http.StatusConflict
	case trackerclient.CodeBusy, trackerclient.CodeUnavailable: // it is the server's doing, and not one caller's
		return http.StatusServiceUnavailable
	case trackerclient.CodeInternal:
		return http.StatusInternalServerError
	}
	return http.StatusUnprocessableEntity
}
