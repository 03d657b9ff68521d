package orchestrator

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/autotune"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/orchestrator/streams"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/pace"
)

const (
	// keepLearned is how long what was learned without anything having changed may be lost with its leader.
	keepLearned = 30 * time.Second
	// queueTimeout is how long JetStream may take to say how long a queue is.
	queueTimeout = 500 * time.Millisecond
	// pruneEvery is the time between two prunings of the changes.
	pruneEvery = 10 * time.Minute
)

// pacing is the leader task that looks at the endpoints whose pace is automatic, once in PaceInterval, and stores what
// follows for all nodes to claim by.
func (n *Node) pacing() func(context.Context, workqueue.Lease) (time.Duration, error) {
	p := newPacer(n, workqueue.Lease{})
	return func(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
		if lease != p.lease {
			p = newPacer(n, lease) // whoever led before this node may have decided otherwise
		}
		return n.cfg.PaceInterval, p.round(ctx)
	}
}

// pacer has a controller for each endpoint, as long as the node leads. It is for one goroutine.
type pacer struct {
	node   *Node
	lease  workqueue.Lease
	since  time.Time // what ended before it has been looked at
	of     map[string]*pacedEndpoint
	pruned time.Time
	still  time.Time // when it looked last, if nothing had ended then
}

type pacedEndpoint struct {
	controller *autotune.Controller
	saved      time.Time
	learned    []byte // what is stored of it
}

func newPacer(n *Node, lease workqueue.Lease) *pacer {
	return &pacer{node: n, lease: lease, of: map[string]*pacedEndpoint{}, pruned: time.Now()}
}

// round looks once at all endpoints. One that cannot be stored does not keep the others waiting.
func (p *pacer) round(ctx context.Context) error {
	timed, cancel := context.WithTimeout(ctx, p.node.cfg.LeaseTTL)
	defer cancel()
	if rests, err := p.rests(timed); err != nil || rests {
		return err
	}
	o, err := pace.New(p.node.core.Store).Observe(timed, p.since, workqueue.ThrottledCodes())
	if err != nil {
		return err
	}
	p.since = o.Until
	queues := p.node.queues(timed, o.Endpoints)
	var failed error
	p.still = time.Now()
	seen := make(map[string]*pacedEndpoint, len(o.Endpoints))
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if len(e.Ended) > 0 {
			p.still = time.Time{}
		}
		paced := p.paced(e)
		seen[e.Endpoint] = paced
		sample := sampleOf(e, queues[e.Endpoint], o.Until, o.Until.Sub(o.Since))
		sample.Places = p.node.consumers.Places(e.Endpoint, max(1, min(paced.controller.Settings().Chunk, e.ChunkMax)))
		failed = errors.Join(failed, p.step(timed, paced, sample, e))
	}
	p.of = seen // what has nothing to do is taken up again from what is stored
	if time.Since(p.pruned) > pruneEvery {
		p.pruned = time.Now()
		_, err := pace.New(p.node.core.Store).PruneChanges(timed, p.lease)
		failed = errors.Join(failed, err)
	}
	return failed
}

// stillFor is for how long a pacer leaves it at asking whether anything has ended at its endpoints, since nothing had:
// not for so long that its measurements would count for nothing.
const stillFor = autotune.StaleAfter - 2*time.Second

// rests reports whether there is nothing to learn at many endpoints: a look costs what all their waiting runs cost.
func (p *pacer) rests(ctx context.Context) (bool, error) {
	stirred := p.node.stirred.Swap(false)
	if stirred || len(p.of) <= fewQueues || time.Since(p.still) >= stillFor {
		return false, nil
	}
	names := make([]string, 0, len(p.of))
	for name := range p.of {
		names = append(names, name)
	}
	ended, err := pace.New(p.node.core.Store).EndedSince(ctx, names, p.since)
	return !ended, err
}

// paced returns the controller of an endpoint, with what someone else may have stored meanwhile.
func (p *pacer) paced(e *pace.PacedEndpoint) *pacedEndpoint {
	stored := autotune.Settings{InFlight: e.Pace.InFlight, Rate: e.Pace.Rate, Chunk: e.Pace.Chunk}
	if paced := p.of[e.Endpoint]; paced != nil {
		paced.controller.Adopt(stored)
		return paced
	}
	controller := autotune.New(stored, e.Pace.Learned)
	return &pacedEndpoint{controller: controller, saved: time.Now(), learned: controller.Learned()}
}

// step hands a controller what was seen of an endpoint, and stores what it decides.
func (p *pacer) step(ctx context.Context, paced *pacedEndpoint, seen autotune.Sample, e *pace.PacedEndpoint) error {
	before := paced.controller.Settings()
	changes := paced.controller.Step(seen)
	learned := paced.controller.Learned()
	if len(changes) == 0 && (bytes.Equal(learned, paced.learned) || time.Since(paced.saved) < keepLearned) {
		return nil
	}
	set := paced.controller.Settings()
	stored := pace.LearnedPace{InFlight: set.InFlight, Rate: set.Rate, Chunk: set.Chunk, Learned: learned}
	told := make([]pace.Change, len(changes))
	for i, c := range changes {
		told[i] = pace.Change(c)
	}
	if err := pace.New(p.node.core.Store).SavePace(ctx, p.lease, e.Endpoint, stored, told); err != nil {
		return err
	}
	paced.saved, paced.learned = time.Now(), learned
	for _, c := range changes {
		p.node.core.Log.Info("pace", zap.String("endpoint", e.Endpoint), zap.String("what", c.What),
			zap.String("before", c.Before), zap.String("after", c.After), zap.String("reason", c.Reason))
	}
	if set.InFlight > before.InFlight || set.Rate != before.Rate {
		p.node.core.WakeOthers()
	}
	return nil
}

// sampleOf is what was seen of an endpoint, with what JetStream says of its queue, if it says anything.
func sampleOf(
	e *pace.PacedEndpoint, queue *jetstream.ConsumerInfo, at time.Time, window time.Duration,
) autotune.Sample {
	s := autotune.Sample{At: at, Window: window, Live: e.Live, Others: e.Others, Demand: e.Demand, Ceiling: e.Ceiling,
		Paused: e.Pace.Open, InFlightAuto: e.InFlightAuto, ChunkAuto: e.ChunkAuto, ChunkTime: e.ChunkTime,
		ChunkMax: e.ChunkMax, Ended: make([]autotune.Ended, len(e.Ended))}
	if e.Pace.Cap > 0 {
		s.ChunkMax = min(cmp.Or(s.ChunkMax, e.Pace.Cap), e.Pace.Cap)
	}
	for i, x := range e.Ended {
		s.Ended[i] = autotune.Ended{Code: x.Code, Requests: x.Slices, Items: x.Items, Refused: x.Refused, Timed: x.Timed,
			Took: x.Took, Clocked: x.Clocked, Stay: x.Stay}
		if x.Code == "" {
			s.Ended[i].Done = max(0, x.Items-max(x.Retried, x.Refused))
		}
	}
	// What the stream knows nothing of was asked over core NATS.
	if queue != nil && (e.Live == 0 || queue.NumPending > 0 || queue.NumAckPending > 0) {
		s.Known, s.Queued, s.InHands = true, int(queue.NumPending), queue.NumAckPending
	}
	return s
}

// queues asks JetStream for the queues of the endpoints at which something is out.
func (n *Node) queues(ctx context.Context, of []pace.PacedEndpoint) map[string]*jetstream.ConsumerInfo {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.LeaseTTL/2)
	defer cancel()
	var ask []string
	for i := range of {
		// What is out of a function, a host or a source is in its hands.
		if name := of[i].Endpoint; of[i].Live+of[i].Others > 0 && wire.ValidateName(name) == nil {
			ask = append(ask, name)
		}
	}
	return n.queuesOf(ctx, ask)
}

// fewQueues is how many queues are asked for one by one. More than that are read together.
const fewQueues = 8

// queuesOf asks JetStream for the consumers of endpoints. Those that are missing are nil in it, those of which nothing
// is known in time are not in it. A cluster in which one consumer is silent brings no list: then each is asked for by
// itself.
func (n *Node) queuesOf(ctx context.Context, names []string) map[string]*jetstream.ConsumerInfo {
	of := map[string]*jetstream.ConsumerInfo{}
	if len(names) > fewQueues {
		var err error
		if of, err = n.backlogs.all(ctx, n.core.JS); err != nil {
			n.core.Log.Debug("ask for the queues of endpoints; asking for each", zap.Int("endpoints", len(names)),
				zap.Error(err))
		}
	}
	core.Shuffle(names) // when the time does not do for all of them, it is others that are asked the next time
	for _, name := range names {
		if of[name] != nil || ctx.Err() != nil {
			continue
		}
		timed, cancel := context.WithTimeout(ctx, queueTimeout)
		consumer, err := n.core.JS.Consumer(timed, wire.StreamWork, wire.ConsumerName(name))
		cancel()
		switch {
		case err == nil:
			of[name] = consumer.CachedInfo()
		case errors.Is(err, jetstream.ErrConsumerNotFound):
			of[name] = nil
		default:
			n.core.Log.Debug("ask for the queue of an endpoint", zap.String("endpoint", name), zap.Error(err))
		}
	}
	return of
}

// queueList is the consumers of all endpoints as they were a moment ago.
type queueList struct {
	mu sync.Mutex
	at time.Time
	of map[string]*jetstream.ConsumerInfo
}

// queuesFor is for how long a list of queues is good: those who ask for it once a second, each for itself, share one.
const queuesFor = 900 * time.Millisecond

// all lists the consumers of all endpoints. With an error it returns those that it has read.
func (l *queueList) all(ctx context.Context, js jetstream.JetStream) (map[string]*jetstream.ConsumerInfo, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if asked := time.Now(); asked.Sub(l.at) >= queuesFor {
		ctx, cancel := context.WithTimeout(ctx, queueTimeout)
		defer cancel()
		stream, err := js.Stream(ctx, wire.StreamWork)
		if err != nil {
			return map[string]*jetstream.ConsumerInfo{}, err
		}
		of, err := streams.In(ctx, stream, streams.OfWork)
		if err != nil {
			return of, err
		}
		l.at, l.of = asked, of
	}
	return maps.Clone(l.of), nil
}
