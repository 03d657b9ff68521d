package trackers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/workqueue/database"
)

const (
	// listenQueue is the queue group of the nodes: each request reaches one of them.
	listenQueue = "tranche"
	// maxAtWork limits the requests in progress on a node. More are refused immediately, and can be retried.
	maxAtWork = 4096
	// maxHeld limits the bytes of these requests. What they name takes up to 25 times as much.
	maxHeld = 16 << 20
	// requestTimeout limits the work for a request; it fails if PostgreSQL takes longer.
	requestTimeout = 30 * time.Second
)

type listener struct {
	operations map[string]operation // by the last part of their subjects

	log *zap.Logger
	nc  *nats.Conn
}

// Listen accepts requests until the responder is closed.
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

// serve handles a request. NATS does not identify callers, so they see only the origins of webhooks.
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

func (l *listener) answer(msg *nats.Msg, out any, err error) {
	if msg.Reply == "" {
		return // no answer wanted
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
		body, _ = json.Marshal(map[string]*trackerclient.Error{"error": bad}) // texts can be encoded
	}
	if err := msg.Respond(body); err != nil {
		l.log.Warn("answer a request to the tracker service", zap.String("subject", msg.Subject), zap.Error(err))
	}
}

type operation func(ctx context.Context, body []byte, by Caller) (any, error)

func (s *Service) operations() map[string]operation {
	return map[string]operation{
		"open": asked(s.Open), "add": asked(s.Add), "ack": asked(s.Ack), "seal": asked(s.Seal), "delete": asked(s.Delete),
		"get": asked(s.Get), "groups": asked(s.Groups), "missing": asked(s.Missing), "list": asked(s.List),
	}
}

func asked[In, Out any](do func(ctx context.Context, in In, by Caller) (Out, error)) operation {
	return func(ctx context.Context, body []byte, by Caller) (any, error) {
		var in In
		if err := ReadBody(body, &in); err != nil {
			return nil, err
		}
		return do(ctx, in, by)
	}
}

// ReadBody decodes a request, with memory for its content and one mistake, however many there are. Unknown members
// are refused, because they were meant to have an effect. The error is a *trackerclient.Error.
func ReadBody(body []byte, into any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		body = []byte("{}")
	}
	if err := jsonv2.Unmarshal(body, into, jsonv2.RejectUnknownMembers(true)); err != nil {
		place, text := ingest.BadJSON("the request", err)
		return &trackerclient.Error{Code: trackerclient.CodeBadRequest, Place: echo(place), Message: text}
	}
	return nil
}

// refused converts an error for a caller over NATS; nil for nil. Errors that are not the caller's are logged.
func refused(log *zap.Logger, err error) *trackerclient.Error {
	if err == nil {
		return nil
	}
	if bad, ok := errors.AsType[*trackerclient.Error](err); ok {
		return bad
	}
	if database.Unavailable(err) || database.Contended(err) || errors.Is(err, context.Canceled) {
		return &trackerclient.Error{Code: trackerclient.CodeUnavailable,
			Message: "PostgreSQL cannot be reached, or is too slow; ask again"}
	}
	log.Error("a request to the tracker service failed", zap.Error(err))
	return &trackerclient.Error{Code: trackerclient.CodeInternal,
		Message: "something went wrong inside; the log of tranche serve says what"}
}

// Status is the HTTP status of a code.
func Status(code trackerclient.Code) int {
	switch code {
	case trackerclient.CodeNoBatch:
		return http.StatusNotFound
	case trackerclient.CodeBatchTaken, trackerclient.CodeKeyConflict, trackerclient.CodeNotOpen, trackerclient.CodeEnded:
		return http.StatusConflict
	case trackerclient.CodeBusy, trackerclient.CodeUnavailable: // the server's state, not the caller's fault
		return http.StatusServiceUnavailable
	case trackerclient.CodeInternal:
		return http.StatusInternalServerError
	}
	return http.StatusUnprocessableEntity
}
