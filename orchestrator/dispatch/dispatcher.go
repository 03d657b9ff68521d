// Package dispatch claims ready items in slices, and publishes their requests or hands them to the node's own work.
package dispatch

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Config configures a dispatcher. No field has a default.
type Config struct {
	Poll        time.Duration // shortest time between polls for work when nothing wakes the node
	ClaimSlices int           // maximum slices of one claim
	Locals      []string      // names of the node's functions for steps of kind local; not nil
}

// ownWork is the node's own work, and the capacity for it.
type ownWork interface {
	// Start starts recording results. end stops it, once all that is in progress has finished.
	Start(ctx context.Context) (end func())
	// Tend releases what has waited too long, and cancels what was discarded.
	Tend(ctx context.Context)
	Take(ctx context.Context, a Assignment)
	// Room returns how many slices of a pace may be claimed now. Full adds the paces without capacity to keys.
	Room(kind workqueue.Kind, key string) int
	Full(keys []string) []string
	// Narrow limits a claim to the capacity.
	Narrow(req *dispatch.ClaimRequest, step *dispatch.Runnable)
}

type streamWatch interface {
	core.Epochs

	// Suspect makes the leader probe a stream that did not acknowledge a message.
	Suspect(stream string)
}

type follower interface {
	core.OutcomeObserver

	// NextDue returns the time until the first slice scheduled by this node comes due; 0: none.
	NextDue(now time.Time) time.Duration
}

// queue is where work is claimed. See [dispatch.Store].
type queue interface {
	RunnableSteps(ctx context.Context, search dispatch.Search) (dispatch.Found, error)
	ClaimAll(ctx context.Context, reqs []dispatch.ClaimRequest, most int) ([]dispatch.Claimed, error)
	EachInput(ctx context.Context, want dispatch.InputRequest, f func(dispatch.Input) bool) error
}

// claims updates claimed slices. See [settle.Store].
type claims interface {
	MarkSent(ctx context.Context, sent []workqueue.Sent) (left []workqueue.Sent, err error)
	Postpone(ctx context.Context, session workqueue.SessionID, id workqueue.SliceID, in time.Duration, why error) error
	GiveUpClaim(ctx context.Context, session workqueue.SessionID, id workqueue.SliceID) error
	Split(ctx context.Context, session workqueue.SessionID, id workqueue.SliceID, masks []bitfield.Set,
		timeout time.Duration, why string) (*workqueue.Slice, error)
	Record(ctx context.Context, answers []settle.Answer) (settle.Recorded, error)
}

// link is the connection to NATS. See [nats.Conn].
type link interface {
	IsConnected() bool
	FlushWithContext(ctx context.Context) error
}

// Dispatcher moves work from PostgreSQL into the stream, or to the node's own work.
type Dispatcher struct {
	node      *core.Core
	cfg       Config
	queue     queue
	claims    claims
	link      link
	own       ownWork
	endpoints core.Ensurer
	streams   streamWatch
	after     follower
	doubted   atomic.Bool         // a publication was not acknowledged, and the server has not answered since
	pending   *semaphore.Weighted // unacknowledged bytes of requests
	requests  sync.Pool           // of *wire.RequestBuilder whose requests were acknowledged
}

// New returns a dispatcher.
func New(k *core.Core, own ownWork, endpoints core.Ensurer, streams streamWatch, after follower,
	cfg Config,
) *Dispatcher {
	return &Dispatcher{node: k, cfg: cfg, queue: dispatch.New(k.Store), claims: k.Settling, link: k.NC, own: own,
		endpoints: endpoints, streams: streams, after: after, pending: semaphore.NewWeighted(maxPendingBytes)}
}

// reachWait is how long a server that did not acknowledge a message has to answer a ping before the node claims more.
const reachWait = time.Second

// reachable reports whether the node may claim what it has to publish. nats.go detects a stalled connection only after
// minutes; claims made meanwhile would repeatedly fail here instead of being published by another node.
func (d *Dispatcher) reachable(ctx context.Context) bool {
	if !d.link.IsConnected() {
		return false
	}
	if !d.doubted.Load() {
		return true
	}
	asking, cancel := context.WithTimeout(ctx, reachWait)
	defer cancel()
	if err := d.link.FlushWithContext(asking); err != nil {
		d.node.Stats.Unreachable.Add(1)
		d.node.Log.Debug("the NATS server gives no heartbeat; nothing is claimed", zap.Error(err))
		return false
	}
	d.doubted.Store(false)
	return true
}

const (
	// partReaders limits the parts that a node reads concurrently. What waits longer is requested again, from any node.
	partReaders = 4
	// partHeaders is left for headers in an answer.
	partHeaders = 1 << 10
)

// ServeParts gives services the parts that their requests refer to, until the subscriptions end. NATS permissions say
// who may request parts of an endpoint (docs/security.md); the store, whether a slice is entitled to a part.
func ServeParts(k *core.Core) (subs []*nats.Subscription, err error) {
	store := dispatch.New(k.Store)
	for range partReaders {
		sub, err := k.NC.QueueSubscribe(wire.PartSubject("*"), wire.PartQueue, func(msg *nats.Msg) {
			if !wire.Answerable(msg) || msg.Reply == "" {
				return
			}
			answer := &nats.Msg{}
			var fault error
			if answer.Data, fault = partOf(k, store, msg); fault != nil {
				bad := wire.AsSlotError(context.Background(), fault, true)
				answer.Header = nats.Header{wire.HeaderErrorCode: {bad.Code}, wire.HeaderError: {wire.OneLine(bad.Message)}}
			}
			if err := msg.RespondMsg(answer); err != nil {
				k.Log.Debug("answer with a part", zap.String("subject", msg.Subject), zap.Error(err)) // it asks again
			}
		})
		if err != nil {
			return subs, fmt.Errorf("orchestrator: subscribe to %s: %w", wire.PartSubject("*"), err)
		}
		subs = append(subs, sub)
	}
	return subs, nil
}

func partOf(k *core.Core, store dispatch.Store, msg *nats.Msg) ([]byte, error) {
	endpoint, err := wire.ParsePartSubject(msg.Subject)
	var asked wire.PartQuery
	if err == nil {
		err = asked.Read(msg.Data)
	}
	if err != nil {
		return nil, wire.Fail(wire.CodeBadRequest, "%v", err)
	}
	sum, _ := hex.DecodeString(asked.SHA256) // Read has checked it
	ctx, cancel := context.WithTimeout(context.Background(), core.ReadTimeout)
	defer cancel()
	data, err := store.Part(ctx, dispatch.PartRequest{Slice: workqueue.SliceID(asked.Slice), Endpoint: endpoint,
		Ordinal: workqueue.Ordinal(asked.Ordinal), Step: asked.Step, Bytes: asked.Bytes, SHA256: sum, From: asked.From,
		Most: min(wire.DefaultPiece, int(k.NC.MaxPayload())-partHeaders)})
	if errors.Is(err, workqueue.ErrNotFound) {
		return nil, wire.Retry(wire.CodePartGone, "the request of endpoint %s that had this part of step %s for item %d is "+
			"not in progress any more, or the part was redone", endpoint, asked.Step, asked.Ordinal)
	}
	if errors.Is(err, database.ErrDamaged) {
		return nil, wire.Fail(core.CodeItemDamaged, "%v", err)
	}
	if err != nil {
		k.Log.Warn("read a part for a service", zap.String("endpoint", endpoint), zap.Error(err))
		return nil, wire.Retry(wire.CodePartUnavailable, "a node cannot read it now; its log says why")
	}
	return data, nil
}
