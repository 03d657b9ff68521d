// Package trackers is the tracker service: it tells anybody with a fan-out of their own when all its items are done.
// The HTTP API and NATS request/reply are two ways to the same [Service], and [Webhooks] tell of the ends of batches.
//
// Guarantees: a call answers after its commit, and has changed nothing when it fails because of what was asked. Exactly
// one call is told that it completed a batch, also when the acknowledgements of many share a transaction: those of one
// node that come at the same time are merged, and each is told what it did itself. An error says which text of the
// request it is about, and is never about that of another call. A webhook is sent at least once, under one id, signed,
// to the hosts that the operator's file means its secret for, and to no private address that it does not allow.
//
// Not its job: the bits, which are bitfield/tracker's; who may ask, which the API and NATS decide; leadership.
//
// Concurrency: a Service and Webhooks are safe for concurrent use. A Service has no goroutines but those that commit
// what someone waits for.
package trackers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/endpoints/fanout"
	"github.com/tranchehq/tranche/internal/connections"
)

// batchID is a batch's id.
type batchID = uuid.UUID

// Store keeps batches; Store of workqueue/tracker is one. Each method is a transaction.
type Store interface {
	OpenTracker(ctx context.Context, r service.OpenRequest, actor string) (service.Opened, error)
	AddToTracker(ctx context.Context, batch uuid.UUID, n int64, key string) (service.Added, error)
	AckTrackers(ctx context.Context, acks []service.BatchAck) ([]service.Acked, error)
	SealTracker(ctx context.Context, batch uuid.UUID, actor string) (completed bool, err error)
	DeleteTracker(ctx context.Context, batch uuid.UUID, actor string) error
	Tracker(ctx context.Context, batch uuid.UUID) (service.Info, error)
	TrackerGroups(ctx context.Context, batch uuid.UUID, from, limit int) ([]service.GroupState, error)
	TrackerMissing(
		ctx context.Context, batch uuid.UUID, from service.Position, limit int,
	) ([]tracker.Range, *service.Position, error)
	Trackers(ctx context.Context, f service.Filter) ([]service.Summary, error)
}

// Config is what a Service needs beside its store.
type Config struct {
	// Connections say where webhooks may go, and what signs them; nil: nowhere.
	Connections *connections.Connections
	// Ended is called after the commit that ended a batch; nil: no one is told.
	Ended func()
	Log   *zap.Logger // nil: none
}

// Service is the tracker service. What it refuses is a *fanout.Error.
type Service struct {
	store Store
	conns *connections.Connections
	ended func()
	log   *zap.Logger
	acks  combiner
}

// New returns a service on a store.
func New(store Store, config Config) (*Service, error) {
	if store == nil {
		return nil, errors.New("trackers: a store is needed")
	}
	s := &Service{store: store, conns: config.Connections, ended: config.Ended, log: config.Log}
	if s.ended == nil {
		s.ended = func() {}
	}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	s.acks.commit = store.AckTrackers
	return s, nil
}

// Wait returns once no acknowledgement is in progress, also of callers who have gone.
func (s *Service) Wait() { s.acks.wait() }

// told makes an error one that the caller understands, if it is his.
func told(err error) error {
	if bad := Refused(err); bad != nil {
		return bad
	}
	return err
}

// Open opens a batch, or finds the one that the same request opened before.
func (s *Service) Open(
	ctx context.Context, set fanout.BatchSettings, actor string,
) (out fanout.BatchOpened, err error) {
	r := service.OpenRequest{Owner: set.Owner, Key: set.Key, CreatedBy: actor}
	if set.ID != "" {
		if r.ID, err = ParseBatch(set.ID); err != nil {
			return out, placed(err, "id")
		}
	}
	for _, age := range []struct {
		place, text string
		into        *time.Duration
	}{
		{"open_idle", set.OpenIdle, &r.OpenIdle}, {"sealed_idle", set.SealedIdle, &r.SealedIdle}, {"keep", set.Keep, &r.Keep},
	} {
		if *age.into, err = readAge(age.place, age.text); err != nil {
			return out, err
		}
	}
	if err := checkWebhook(s.conns, set.Webhook); err != nil {
		return out, err
	}
	if set.Webhook != nil {
		r.Webhook = service.Hook{URL: set.Webhook.URL, Secret: set.Webhook.Secret}
	}
	opened, err := s.store.OpenTracker(ctx, r, actor)
	if err != nil {
		return out, told(err)
	}
	return fanout.BatchOpened{ID: opened.ID.String(), Existing: opened.Existing}, nil
}

// readAge reads how long something may last; nothing is the default.
func readAge(place, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	age, err := time.ParseDuration(text)
	if err != nil || age <= 0 {
		return 0, &fanout.Error{Code: fanout.CodeBadSetting, Place: place, Value: echo(text), Message: fmt.Sprintf(
			"%q is no time; want one like 24h or 90m", echo(text))}
	}
	return age, nil
}

// placed says which member of a request an error is about.
func placed(err error, place string) error {
	if bad, ok := errors.AsType[*fanout.Error](err); ok {
		bad.Place = place
	}
	return err
}

// Add adds items to an open batch, once for each key.
func (s *Service) Add(
	ctx context.Context, batch batchID, set fanout.GroupSettings,
) (out fanout.GroupsAdded, err error) {
	switch {
	case set.Items <= 0:
		return out, &fanout.Error{Code: fanout.CodeZeroItems, Place: "items", Message: fmt.Sprintf(
			"it is %d; add 1 item or more, and seal the batch when there are no more", set.Items)}
	case set.Items > fanout.MaxItems:
		return out, &fanout.Error{Code: fanout.CodeTooManyItems, Place: "items", Message: fmt.Sprintf(
			"it is %d; add up to %d at a time", set.Items, fanout.MaxItems)}
	}
	added, err := s.store.AddToTracker(ctx, batch, set.Items, set.Key)
	if err != nil {
		return out, told(err)
	}
	last := bitfield.ItemID{
		Batch: batch, Group: added.FirstGroup + added.Groups - 1, Index: int((added.Items - 1) % bitfield.Size),
	}
	return fanout.GroupsAdded{
		Batch: batch.String(), FirstGroup: added.FirstGroup, Groups: added.Groups, Items: added.Items,
		FirstID: bitfield.ItemID{Batch: batch, Group: added.FirstGroup}.String(), LastID: last.String(),
		Existing: added.Existing,
	}, nil
}

// Ack acknowledges items, of one batch or, with nil, of any.
func (s *Service) Ack(ctx context.Context, batch *batchID, asked fanout.Acknowledgement) (fanout.BatchesAcked, error) {
	out := fanout.BatchesAcked{CompletedBatches: []string{}}
	want, err := readWanted(batch, asked)
	if err != nil {
		return out, err
	}
	newly, completed, err := s.acks.ack(ctx, want)
	if err != nil {
		return out, told(err)
	}
	out.Newly = newly
	for _, id := range completed {
		out.CompletedBatches = append(out.CompletedBatches, id.String())
	}
	if len(completed) > 0 {
		s.ended()
	}
	return out, nil
}

// Seal says that a batch gets no more items.
func (s *Service) Seal(ctx context.Context, batch batchID, actor string) (fanout.BatchSealed, error) {
	completed, err := s.store.SealTracker(ctx, batch, actor)
	if err != nil {
		return fanout.BatchSealed{}, told(err)
	}
	if completed {
		s.ended()
	}
	return fanout.BatchSealed{Batch: batch.String(), Completed: completed}, nil
}

// Delete deletes a batch, whatever its state.
func (s *Service) Delete(ctx context.Context, batch batchID, actor string) (fanout.BatchDeleted, error) {
	if err := s.store.DeleteTracker(ctx, batch, actor); err != nil {
		return fanout.BatchDeleted{}, told(err)
	}
	return fanout.BatchDeleted{Batch: batch.String()}, nil
}

// Refused returns what is told of an error that the caller can do something about: what was asked is wrong, or does not
// fit the state of things. It returns nil for any other.
func Refused(err error) *fanout.Error {
	if bad, ok := errors.AsType[*fanout.Error](err); ok {
		return bad
	}
	if bad, ok := errors.AsType[*service.NotFoundError](err); ok {
		return noBatch(bad.Batch)
	}
	if bad, ok := errors.AsType[*service.ConflictError](err); ok {
		return &fanout.Error{Code: fanout.CodeKeyConflict, Place: bad.Field, Message: bad.Error()}
	}
	if bad, ok := errors.AsType[*service.RequestError](err); ok {
		return wrongMember(bad)
	}
	if bad, ok := errors.AsType[*tracker.StateError](err); ok {
		return wrongState(bad)
	}
	if errors.Is(err, tracker.ErrExists) {
		return &fanout.Error{Code: fanout.CodeBatchTaken, Place: "id", Message: "the id is taken by something else; leave " +
			"it out, or choose another UUID"}
	}
	return nil
}

func wrongMember(bad *service.RequestError) *fanout.Error {
	e := &fanout.Error{Code: fanout.CodeBadSetting, Place: bad.Field, Message: "it " + bad.Problem}
	switch bad.Field {
	case "items":
		e.Code = fanout.CodeTooManyItems
	case "ids":
		e.Code, e.Message = fanout.CodeTooMany, bad.Problem
	}
	return e
}

func wrongState(bad *tracker.StateError) *fanout.Error {
	if bad.State == service.StateExpired {
		return &fanout.Error{Code: fanout.CodeEnded, Value: bad.Batch.String(), Message: fmt.Sprintf(
			"tracker batch %s has expired: it was idle for too long; open another", bad.Batch)}
	}
	return &fanout.Error{Code: fanout.CodeNotOpen, Value: bad.Batch.String(), Message: fmt.Sprintf(
		"tracker batch %s is %s, and takes no more items; add them before the seal, or to another batch", bad.Batch,
		bad.State)}
}

// refused makes of any error what a caller over NATS is told; nil for none. What is not the caller's doing is logged.
func refused(log *zap.Logger, err error) *fanout.Error {
	switch bad := Refused(err); {
	case err == nil:
		return nil
	case bad != nil:
		return bad
	case away(err):
		return &fanout.Error{Code: fanout.CodeUnavailable, Message: "PostgreSQL cannot be reached, or is too slow; ask again"}
	}
	log.Error("a request to the tracker service failed", zap.Error(err))
	return &fanout.Error{Code: fanout.CodeInternal, Message: "something went wrong inside; the log of tranche serve " +
		"says what"}
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
func Status(code fanout.Code) int {
	switch code {
	case fanout.CodeNoBatch:
		return http.StatusNotFound
	case fanout.CodeBatchTaken, fanout.CodeKeyConflict, fanout.CodeNotOpen, fanout.CodeEnded:
		return http.StatusConflict
	case fanout.CodeBusy, fanout.CodeUnavailable: // it is the server's doing, and not one caller's
		return http.StatusServiceUnavailable
	case fanout.CodeInternal:
		return http.StatusInternalServerError
	}
	return http.StatusUnprocessableEntity
}

// checkName refuses a text that would mislead whoever reads it, or that PostgreSQL cannot store.
func checkName(place, text string) error {
	bad := &fanout.Error{Code: fanout.CodeBadSetting, Place: place, Value: echo(text)}
	switch {
	case !utf8.ValidString(text):
		bad.Message = "it is not valid UTF-8"
	case utf8.RuneCountInString(text) > fanout.MaxName:
		bad.Message = fmt.Sprintf("it has %d characters, and %d are allowed", utf8.RuneCountInString(text), fanout.MaxName)
	case strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
		bad.Message = fmt.Sprintf("%q has characters that cannot be printed; leave them out", echo(text))
	default:
		return nil
	}
	return bad
}
