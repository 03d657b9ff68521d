// Package dispatch claims ready items in slices, and publishes their requests or hands them to the node's own work.
package dispatch

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Config configures a dispatcher. No field has a default.
type Config struct {
	Poll        time.Duration // shortest time between polls for work when nothing wakes the node
	ClaimSlices int           // maximum slices of one claim
	Publishers  int           // concurrent builders of requests
	Locals      []string      // names of the node's functions for steps of kind local; not nil
}

type ownWork interface {
	ownRoom

	// Start starts recording results. end stops it, once all that is in progress has finished.
	Start(ctx context.Context) (end func())
	// Tend releases what has waited too long, and cancels what was discarded.
	Tend(ctx context.Context)
	Take(ctx context.Context, a Assignment)
}

// ownRoom is the capacity for the node's own work.
type ownRoom interface {
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
