// Package dispatch claims ready items in slices and publishes their requests, or gives them to what the node does
// itself.
//
// One claimer, a few publishers, one that waits for acknowledgements: see [Dispatcher.Run].
package dispatch

import (
	"context"
	"fmt"
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

// Config sets a dispatcher up. Nothing in it has a default.
type Config struct {
	Poll        time.Duration // between two looks for work when nothing wakes the node, at the least
	ClaimSlices int           // slices of one claim
	Publishers  int           // requests built at once
	Locals      []string      // names of the node's functions for steps of kind local; not nil
}

// ownWork is what the node works on itself.
type ownWork interface {
	ownRoom

	// Start begins to record what comes of it. end ends it, when all that is in progress has.
	Start(ctx context.Context) (end func())
	// Tend gives back what has waited too long, and ends what was taken back.
	Tend(ctx context.Context)
	Take(ctx context.Context, a Assignment)
}

// ownRoom is the room for it.
type ownRoom interface {
	// Room is how many slices of a pace may be claimed now, and Full adds the paces without room to a list.
	Room(kind workqueue.Kind, key string) int
	Full(keys []string) []string
	// Narrow has a claim bring no more than there is room for.
	Narrow(req *dispatch.ClaimRequest, step *dispatch.Runnable)
}

// streamWatch is what is known of the streams.
type streamWatch interface {
	core.Epochs

	// Suspect has a stream tried that did not acknowledge a message.
	Suspect(stream string)
}

// follower sees to what commits brought.
type follower interface {
	core.OutcomeObserver

	// NextDue returns how long until the first slice comes due that this node has scheduled; 0: there is none.
	NextDue(now time.Time) time.Duration
}

// queue is where work is claimed. See [dispatch.Store].
type queue interface {
	RunnableSteps(ctx context.Context, search dispatch.Search) (dispatch.Found, error)
	ClaimAll(ctx context.Context, reqs []dispatch.ClaimRequest, most int) ([]dispatch.Claimed, error)
	EachInput(ctx context.Context, want dispatch.InputRequest, f func(dispatch.Input) bool) error
}

// claims is what becomes of it. See [settle.Store].
type claims interface {
	MarkSent(ctx context.Context, sent []workqueue.Sent) (left []workqueue.Sent, err error)
	Postpone(ctx context.Context, session workqueue.SessionID, id workqueue.SliceID, in time.Duration, why error) error
	GiveUpClaim(ctx context.Context, session workqueue.SessionID, id workqueue.SliceID) error
	Split(ctx context.Context, session workqueue.SessionID, id workqueue.SliceID, masks []bitfield.Set,
		timeout time.Duration) (*workqueue.Slice, error)
	Record(ctx context.Context, answers []settle.Answer) (settle.Recorded, error)
}

// link is the connection to NATS as far as it says that the server hears this node.
type link interface {
	IsConnected() bool
	FlushWithContext(ctx context.Context) error
}

// Dispatcher brings work from PostgreSQL into the stream, or to what the node does itself.
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
	doubted   atomic.Bool         // a publication was not answered, and the server has not been heard since
	pending   *semaphore.Weighted // bytes of requests that JetStream has not acknowledged
}

// New returns what claims work and publishes it.
func New(k *core.Core, own ownWork, endpoints core.Ensurer, streams streamWatch, after follower,
	cfg Config,
) *Dispatcher {
	return &Dispatcher{node: k, cfg: cfg, queue: dispatch.New(k.Store), claims: k.Settling, link: k.NC, own: own,
		endpoints: endpoints, streams: streams, after: after, pending: semaphore.NewWeighted(maxPendingBytes)}
}

// reachWait is how long a server that has left a publication unanswered has for its heartbeat, before more is
// claimed.
const reachWait = time.Second

// reachable reports whether the node may claim what it is to publish. A connection that stalls counts as connected until
// nats.go's own pings are missed, minutes with its usual settings; what is claimed meanwhile would fail here repeatedly
// instead of being published by a node that can.
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

// LargeInputs are items of a slice that have a part which did not fit a message. No step sees those: not a service,
// whose request could not carry them, and not a step of the node's own, many of which are worked on at once.
type LargeInputs struct {
	Items   bitfield.Set
	refused []settle.Slot
}

// Take reports whether an item is one, and remembers it.
func (l *LargeInputs) Take(a *Assignment, in *dispatch.Input) bool {
	for i := range in.Parts {
		part := &in.Parts[i]
		if part.Large == 0 {
			continue
		}
		_, bit := in.Ordinal.Block()
		l.Items.Add(bit)
		name := a.Work.Inputs[i].Name
		l.refused = append(l.refused, settle.Slot{Ordinal: in.Ordinal, Err: &workqueue.SlotError{
			Code: core.CodeItemTooLarge,
			Message: fmt.Sprintf("the part of step %s has %d bytes, and what did not fit a message is no input of another step "+
				"(%s): leave %s out of its inputs, and have its service fetch the result from the API by the item's key", name,
				part.Large, a.Work.Name, name)}})
		return true
	}
	return false
}

// Refuse fails the items of a slice whose parts are too large, and has the others claimed again.
func (l *LargeInputs) Refuse(ctx context.Context, n *core.Core, after core.OutcomeObserver, a Assignment) error {
	ctx, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	id := a.ID
	if others := a.Mask.AndNot(l.Items); !others.Empty() {
		piece, err := n.Settling.Split(ctx, a.Session, a.ID, []bitfield.Set{l.Items, others}, dispatch.DefaultClaimTTL)
		if err != nil || piece == nil {
			return err
		}
		n.Stats.Splits.Add(1)
		id = piece.ID
		defer n.Wake()
	}
	out, err := n.Settling.Record(ctx, []settle.Answer{{Slice: id, Endpoint: a.Endpoint, Service: "tranche",
		Answered: len(l.refused), Slots: l.refused}})
	if err != nil {
		return err
	}
	after.Seen(out, time.Now())
	return nil
}
