package orchestrator

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/autotune"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/orchestrator/streams"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/pace"
)

const (
	// keepLearned is how old unsaved learned values may be that came without a change; a new leader loses them.
	keepLearned  = 30 * time.Second
	queueTimeout = 500 * time.Millisecond
	pruneEvery   = 10 * time.Minute
	paceInterval = time.Second
)

// pacing is the leader task that sets the pace of endpoints where it is automatic, every paceInterval.
func (n *Node) pacing() func(context.Context, workqueue.Lease) (time.Duration, error) {
	p := newPacer(n, workqueue.Lease{})
	return func(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
		if lease != p.lease {
			p = newPacer(n, lease) // an earlier leader may have decided otherwise
		}
		return paceInterval, p.round(ctx)
	}
}

// pacer has a controller per endpoint, while the node leads. It is for one goroutine.
type pacer struct {
	node   *Node
	lease  workqueue.Lease
	since  time.Time // requests that ended before were observed
	of     map[string]*pacedEndpoint
	pruned time.Time
	still  time.Time // time of the last round, if nothing had ended by then
}

type pacedEndpoint struct {
	controller *autotune.Controller
	saved      time.Time
	learned    []byte // as stored
}

func newPacer(n *Node, lease workqueue.Lease) *pacer {
	return &pacer{node: n, lease: lease, of: map[string]*pacedEndpoint{}, pruned: time.Now()}
}

// round checks all endpoints once. One that cannot be stored does not delay the rest.
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
	p.of = seen // endpoints without work start from the stored values again
	if time.Since(p.pruned) > pruneEvery {
		p.pruned = time.Now()
		_, err := pace.New(p.node.core.Store).PruneChanges(timed, p.lease)
		failed = errors.Join(failed, err)
	}
	return failed
}

// stillFor limits how long the pacer only checks whether requests ended: after StaleAfter, measurements do not count.
const stillFor = autotune.StaleAfter - 2*time.Second

// rests skips a round over many endpoints when there is nothing to learn: a round reads all their waiting runs.
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

func (p *pacer) paced(e *pace.PacedEndpoint) *pacedEndpoint {
	stored := autotune.Settings{InFlight: e.Pace.InFlight, Rate: e.Pace.Rate, Chunk: e.Pace.Chunk}
	if paced := p.of[e.Endpoint]; paced != nil {
		paced.controller.Adopt(stored)
		return paced
	}
	controller := autotune.New(stored, e.Pace.Learned)
	return &pacedEndpoint{controller: controller, saved: time.Now(), learned: controller.Learned()}
}

// step passes a sample to a controller, and stores its decisions.
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
	// Requests that the stream does not have went over core NATS.
	if queue != nil && (e.Live == 0 || queue.NumPending > 0 || queue.NumAckPending > 0) {
		s.Known, s.Queued, s.InHands = true, int(queue.NumPending), queue.NumAckPending
	}
	return s
}

func (n *Node) queues(ctx context.Context, of []pace.PacedEndpoint) map[string]*jetstream.ConsumerInfo {
	ctx, cancel := context.WithTimeout(ctx, n.cfg.LeaseTTL/2)
	defer cancel()
	var ask []string
	for i := range of {
		// Requests to a function, a host or a source have no queue.
		if name := of[i].Endpoint; of[i].Live+of[i].Others > 0 && wire.ValidateName(name) == nil {
			ask = append(ask, name)
		}
	}
	return n.queuesOf(ctx, ask)
}

// fewQueues is the most queues queried one by one. More are read as a list.
const fewQueues = 8

// queuesOf queries JetStream for the consumers of endpoints: nil if missing, absent if unknown. A cluster with one
// silent consumer returns no list: then each is queried alone.
func (n *Node) queuesOf(ctx context.Context, names []string) map[string]*jetstream.ConsumerInfo {
	of := map[string]*jetstream.ConsumerInfo{}
	if len(names) > fewQueues {
		var err error
		if of, err = n.backlogs.all(ctx, n.core.JS); err != nil {
			n.core.Log.Debug("read the queues of endpoints; reading each", zap.Int("endpoints", len(names)),
				zap.Error(err))
		}
	}
	core.Shuffle(names) // when time runs out, the next call covers other endpoints
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
			n.core.Log.Debug("read the queue of an endpoint", zap.String("endpoint", name), zap.Error(err))
		}
	}
	return of
}

type queueList struct {
	mu sync.Mutex
	at time.Time
	of map[string]*jetstream.ConsumerInfo
}

// queuesFor is how long a list stays valid: tasks that read it once a second share one.
const queuesFor = 900 * time.Millisecond

// all lists the consumers of all endpoints. With an error it returns those read so far.
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

const (
	// deadlineEvery is how often runs with a done_by are paced, and helpEvery how often a fix is sought for one that will
	// be late.
	deadlineEvery = 10 * time.Second
	helpEvery     = time.Minute
)

// deadlines is the leader task that paces runs so that they are done by their time, and says which will not be. It also
// keeps what requests cost in runs that completed.
func (n *Node) deadlines() func(context.Context, workqueue.Lease) (time.Duration, error) {
	looked := map[workqueue.RunID]time.Time{} // for what would help
	var profiled time.Time
	return func(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
		timed, cancel := context.WithTimeout(ctx, deadlineEvery)
		defer cancel()
		due, err := inspect.New(n.core.Store).Deadlines(timed)
		if err != nil {
			return deadlineEvery, err
		}
		if due == nil {
			profiled, err = n.keepProfiles(timed, lease, profiled)
			return deadlineEvery, err
		}
		helped := false // one a turn, and time left to store
		thinking, done := context.WithTimeout(timed, deadlineEvery/2)
		defer done()
		paces, err := due.Paces(thinking, func(run workqueue.RunID) bool {
			if helped || time.Since(looked[run]) < helpEvery {
				return false
			}
			helped, looked[run] = true, time.Now()
			return true
		})
		for i := range paces {
			err = errors.Join(err, n.setPace(timed, lease, &paces[i]))
		}
		until, kept := n.keepProfiles(timed, lease, profiled)
		profiled = until
		return deadlineEvery, errors.Join(err, kept)
	}
}

// keepProfiles stores what requests cost in runs that completed lately, and returns until when.
func (n *Node) keepProfiles(ctx context.Context, lease workqueue.Lease, since time.Time) (time.Time, error) {
	profiles, until, err := inspect.New(n.core.Store).Profiles(ctx, since)
	if err == nil && len(profiles) > 0 {
		err = control.New(n.core.Store).KeepProfiles(ctx, lease, profiles)
	}
	if err != nil {
		return since, err
	}
	return until, nil
}

// setPace stores a pace that changed, or the risk of being late.
func (n *Node) setPace(ctx context.Context, lease workqueue.Lease, p *control.RunPace) error {
	differs := func(s control.StepPace) bool { return s.Cap != s.WasCap || s.Share != s.WasShare }
	if p.Risk == nil && !p.WasAtRisk && !slices.ContainsFunc(p.Steps, differs) {
		return nil
	}
	changed, err := control.New(n.core.Store).SetPace(ctx, lease, p)
	if err == nil && changed {
		n.core.Log.Info("pace", zap.Stringer("run", p.Run), zap.String("reason", p.Why()))
		n.core.WakeOthers()
	}
	return err
}
