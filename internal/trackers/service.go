// Package trackers is the tracker service: it reports when all items of a caller's fan-out are done. The HTTP API and
// NATS request/reply both use a [Service], and [Webhooks] reports the ends of batches.
//
// Guarantees: a call answers after its commit, and changes nothing if it fails because of its input. Exactly one call
// learns that it completed a batch, even though concurrent acknowledgements of a node share a transaction; each call
// learns what it did itself. An error names text of its own call only. A webhook is sent at least once, under one
// ID, signed, only to hosts for which the operator's file permits its secret, and to no private address that the file
// does not allow.
//
// Not its job: bits and SQL (bitfield/tracker), permissions (the API and NATS), and leadership.
//
// A Service and Webhooks are safe for concurrent use. A Service's goroutines only commit what callers wait for.
package trackers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Config configures a Service.
type Config struct {
	// Connections says where webhooks may go, and has the secrets that sign them; nil: nowhere.
	Connections *connections.Connections
	// Ended is called after a commit that ended a batch; may be nil.
	Ended func()
	Log   *zap.Logger // nil: none
}

// Service is the tracker service. It refuses requests with a *trackerclient.Error.
type Service struct {
	db    *database.DB
	conns *connections.Connections
	ended func()
	log   *zap.Logger
	acks  *combiner
}

// New returns a service on a database.
func New(db *database.DB, config Config) *Service {
	s := &Service{db: db, conns: config.Connections, ended: config.Ended, log: config.Log}
	if s.ended == nil {
		s.ended = func() {}
	}
	s.log = cmp.Or(s.log, zap.NewNop())
	s.acks = newCombiner(func(ctx context.Context, acks []tracker.ItemsAck) (acked []tracker.Acked, err error) {
		err = s.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			acked, err = tracker.AckItems(ctx, tx, acks)
			return err
		})
		return acked, err
	})
	return s
}

// tx is [database.DB.InTx] with the timeouts of an operator. An add or ack of a billion items writes a row for each
// of 122,000 groups and locks the batch for seconds; others wait for it.
func (s *Service) tx(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error {
	return s.db.InTxWithin(database.Patiently(ctx, database.OperatorTimeout), database.OperatorTimeout, f)
}

// Wait waits until no acknowledgement is in progress, also of callers who have left.
func (s *Service) Wait() { s.acks.wait() }

// Caller is the caller of an operation.
type Caller struct {
	Actor string // for the audit log
	Sight Visibility
}

// Visibility is how much of webhooks a caller sees: URLs may hold secrets, and receivers' answers may repeat them.
type Visibility bool

// The levels of Visibility.
const (
	Origins Visibility = false // scheme and host, and our own error text
	All     Visibility = true
)

// Open opens a batch, or returns the one opened by an equal request, which is not audited again.
func (s *Service) Open(
	ctx context.Context, in trackerclient.BatchSettings, by Caller,
) (out trackerclient.BatchOpened, err error) {
	r := tracker.OpenRequest{Namespace: workqueue.Into(ctx), Owner: in.Owner, Key: in.Key,
		CreatedBy: strings.ToValidUTF8(by.Actor, "\uFFFD")}
	if in.ID != "" {
		if r.ID, err = readBatch("id", in.ID); err != nil {
			return out, err
		}
	}
	for _, age := range []struct {
		place, text string
		into        *time.Duration
	}{
		{"open_idle", in.OpenIdle, &r.OpenIdle}, {"sealed_idle", in.SealedIdle, &r.SealedIdle}, {"keep", in.Keep, &r.Keep},
	} {
		if age.text == "" {
			continue
		}
		if *age.into, err = time.ParseDuration(age.text); err != nil || *age.into <= 0 {
			return out, badSetting(age.place, age.text, "invalid duration %q; use one like 24h or 90m", echo(age.text))
		}
	}
	if err := checkWebhook(s.conns, in.Webhook); err != nil {
		return out, err
	}
	if in.Webhook != nil {
		r.Webhook = tracker.Hook{URL: in.Webhook.URL, Secret: in.Webhook.Secret}
	}
	err = s.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		opened, err := tracker.OpenTracker(ctx, tx, r)
		out = trackerclient.BatchOpened{ID: opened.ID.String(), Existing: opened.Existing}
		if err != nil || opened.Existing {
			return err
		}
		return session.Audit(ctx, tx, by.Actor, "tracker_open", out.ID,
			map[string]any{"owner": r.Owner, "key": r.Key, "webhook": r.Webhook.Origin()})
	})
	return out, told(err)
}

// Add adds items to an open batch, once per key. Like Ack it is not audited: there are too many.
func (s *Service) Add(
	ctx context.Context, in trackerclient.AddRequest, _ Caller,
) (out trackerclient.GroupsAdded, err error) {
	batch, err := readBatch("batch", in.Batch)
	if err != nil {
		return out, err
	}
	if in.Items <= 0 {
		return out, &trackerclient.Error{Code: trackerclient.CodeZeroItems, Place: "items", Message: fmt.Sprintf(
			"it is %d; add 1 item or more; seal the batch after the last", in.Items)}
	}
	var added tracker.Added
	err = s.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		added, err = tracker.AddItems(ctx, tx, batch, in.Items, in.Key)
		return err
	})
	if err != nil {
		return out, told(err)
	}
	first := bitfield.ItemID{Batch: batch, Group: added.FirstGroup}
	last := bitfield.ItemID{
		Batch: batch, Group: added.FirstGroup + added.Groups - 1, Index: int((added.Items - 1) % bitfield.Size),
	}
	return trackerclient.GroupsAdded{
		Batch: batch.String(), FirstGroup: added.FirstGroup, Groups: added.Groups, Items: added.Items,
		FirstID: first.String(), LastID: last.String(), Existing: added.Existing,
	}, nil
}

// Ack acknowledges items, of one batch or, if none is named, of any.
func (s *Service) Ack(ctx context.Context, in trackerclient.AckRequest, _ Caller) (trackerclient.BatchesAcked, error) {
	want, err := readWanted(in)
	if err != nil {
		return trackerclient.BatchesAcked{}, err
	}
	out, err := s.acks.ack(ctx, want)
	if len(out.CompletedBatches) > 0 {
		s.ended()
	}
	return out, told(err)
}

// Seal closes a batch to new items.
func (s *Service) Seal(
	ctx context.Context, in trackerclient.BatchRequest, by Caller,
) (out trackerclient.BatchSealed, err error) {
	batch, err := readBatch("batch", in.Batch)
	if err != nil {
		return out, err
	}
	err = s.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		completed, err := tracker.SealTracker(ctx, tx, batch)
		if err != nil {
			return err
		}
		out = trackerclient.BatchSealed{Batch: batch.String(), Completed: completed}
		return session.Audit(ctx, tx, by.Actor, "tracker_seal", out.Batch, map[string]any{"completed": completed})
	})
	if err == nil && out.Completed {
		s.ended()
	}
	return out, told(err)
}

// Delete deletes a batch in any state.
func (s *Service) Delete(
	ctx context.Context, in trackerclient.BatchRequest, by Caller,
) (out trackerclient.BatchDeleted, err error) {
	batch, err := readBatch("batch", in.Batch)
	if err != nil {
		return out, err
	}
	err = s.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := tracker.DeleteTracker(ctx, tx, batch); err != nil {
			return err
		}
		return session.Audit(ctx, tx, by.Actor, "tracker_delete", batch.String(), nil)
	})
	return trackerclient.BatchDeleted{Batch: batch.String()}, told(err)
}

func readBatch(place, text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || len(text) != uuidLength {
		return uuid.UUID{}, &trackerclient.Error{Code: trackerclient.CodeBadID, Place: place, Value: echo(text),
			Message: fmt.Sprintf("%q is not an id of a batch; use a UUID like 0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58", echo(text))}
	}
	return id, nil
}

const uuidLength = 36

func badSetting(place, value, format string, args ...any) *trackerclient.Error {
	return &trackerclient.Error{Code: trackerclient.CodeBadSetting, Place: place, Value: echo(value),
		Message: fmt.Sprintf(format, args...)}
}

// told converts an error that is about the request, or that conflicts with the current state, to a
// *trackerclient.Error.
func told(err error) error {
	if bad, ok := errors.AsType[*tracker.NotFoundError](err); ok {
		return noBatch(bad.Batch)
	}
	if bad, ok := errors.AsType[*tracker.ConflictError](err); ok {
		return &trackerclient.Error{Code: trackerclient.CodeKeyConflict, Place: bad.Field, Message: bad.Error()}
	}
	if bad, ok := errors.AsType[*tracker.RequestError](err); ok {
		e := &trackerclient.Error{Code: trackerclient.CodeBadSetting, Place: bad.Field, Message: "it " + bad.Problem}
		switch bad.Field {
		case "items":
			e.Code = trackerclient.CodeTooManyItems
		case "ids":
			e.Code, e.Message = trackerclient.CodeTooMany, bad.Problem
		}
		return e
	}
	if bad, ok := errors.AsType[*tracker.StateError](err); ok {
		return wrongState(bad)
	}
	if errors.Is(err, tracker.ErrExists) {
		return &trackerclient.Error{Code: trackerclient.CodeBatchTaken, Place: "id",
			Message: "the id is taken by something else; leave it out, or choose another UUID"}
	}
	return err
}

func noBatch(id uuid.UUID) *trackerclient.Error {
	return &trackerclient.Error{Code: trackerclient.CodeNoBatch, Value: id.String(), Message: fmt.Sprintf(
		"there is no tracker batch %s, or it ended and is no longer kept; see tranche tracker list", id)}
}

func wrongState(bad *tracker.StateError) *trackerclient.Error {
	if bad.State == tracker.StateExpired {
		return &trackerclient.Error{Code: trackerclient.CodeEnded, Value: bad.Batch.String(), Message: fmt.Sprintf(
			"tracker batch %s has expired: it was idle for too long; open another", bad.Batch)}
	}
	return &trackerclient.Error{Code: trackerclient.CodeNotOpen, Value: bad.Batch.String(), Message: fmt.Sprintf(
		"tracker batch %s is %s and no longer takes items; add them before the seal, or to another batch", bad.Batch,
		bad.State)}
}
