package metrics

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/workqueue/database"
	healthstore "github.com/tranchehq/tranche/workqueue/health"
)

// streamPrefix is the prefix of our streams' names, fewer than maxStreams.
const (
	streamPrefix = "TRANCHE_"
	maxStreams   = 20
)

type seen struct {
	db         *healthstore.Metrics // nil: it could not be read
	streams    []streamUse
	calls      map[string]uint64    // unanswered, by endpoint
	ends       map[string]time.Time // the last end of runs in progress, by quantile
	health     health.Report        // empty: unknown
	took       time.Duration
	at         time.Time
	endpoints  map[string]*endpointSum
	collectors map[string]*healthstore.CollectorMetrics
}

type streamUse struct {
	name                   string
	bytes, messages, limit float64 // limit: of bytes; 0: none
}

type system struct {
	m       *Metrics
	every   time.Duration
	timeout time.Duration // of a whole reading
	streams *names
	always  *table[*seen]
	read    *table[*seen] // from the database, while it can be read

	mu    sync.Mutex // held during a reading: other callers wait for its result
	last  seen
	whose int64 // epoch of the reading: a later one starts over
}

func newSystem(m *Metrics, config *Config) *system {
	m.catalog.leader = true
	s := &system{m: m, every: cmp.Or(config.Every, DefaultEvery), timeout: cmp.Or(config.Timeout, DefaultTimeout),
		streams: newNames(maxStreams), always: gauges(&m.catalog, alwaysRows()),
		read: gauges(&m.catalog, slices.Concat(runRows(m.namespaces.of), endpointRows(), collectorRows(), besideRows()))}
	m.catalog.leader = false
	return s
}

func (s *system) Describe(to chan<- *prometheus.Desc) {
	s.always.Describe(to)
	s.read.Describe(to)
}

func (s *system) Collect(to chan<- prometheus.Metric) {
	from := s.m.sources.Load()
	if from == nil {
		return
	}
	leading := from.Node.Leading()
	if leading == nil {
		return
	}
	now := s.look(from, leading.Epoch)
	s.always.collect(to, &now)
	if now.db != nil {
		now.endpoints, now.collectors = s.m.sumEndpoints(&now), s.m.sumCollectors(now.db.Collectors)
		s.read.collect(to, &now)
	}
}

func (s *system) look(from *Sources, epoch int64) seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.whose == epoch && time.Since(s.last.at) < s.rest() {
		return s.last
	}
	s.whose = epoch
	ctx, cancel := context.WithTimeout(database.ForLeader(context.Background()), s.timeout)
	defer cancel()
	begun := time.Now()
	now := seen{}
	var others sync.WaitGroup
	if js, err := jetstream.New(from.NC); err == nil && from.NC.IsConnected() {
		others.Go(func() { now.streams = s.lookAtStreams(ctx, js) })
		others.Go(func() { now.calls = callsIn(ctx, js) })
	}
	others.Go(func() {
		if judge := s.m.judge.Load(); judge != nil {
			if report, err := judge.Report(ctx); err == nil { // else it took too long
				now.health = *report
			}
		}
	})
	others.Go(func() { now.ends = s.lastEnds(ctx) })
	var err error
	if now.db, err = healthstore.New(from.Store).Metrics(ctx); err != nil {
		s.m.log.Warn("metrics of the database are left out", zap.Error(err))
	}
	others.Wait()
	now.took = time.Since(begun)
	now.at = time.Now()
	s.last = now
	return now
}

// lastEnds returns when the last active run with a forecast will end.
func (s *system) lastEnds(ctx context.Context) map[string]time.Time {
	judge := s.m.judge.Load()
	if judge == nil {
		return nil
	}
	runs, err := judge.Foretold(ctx)
	if err != nil {
		s.m.log.Warn("metrics of forecasts are left out", zap.Error(err))
		return nil
	}
	ends := map[string]time.Time{}
	for i := range runs {
		if f := runs[i].Forecast; f != nil && f.P50 != nil {
			for quantile, at := range map[string]*time.Time{"0.1": f.P10, "0.5": f.P50, "0.9": f.P90} {
				if at.After(ends[quantile]) {
					ends[quantile] = *at
				}
			}
		}
	}
	return ends
}

// rest is the time until the next reading: a hundred times the duration of the last, so that reading uses less than
// 1% of a core, up to maxRest.
func (s *system) rest() time.Duration {
	if s.last.db == nil {
		return s.every
	}
	return max(s.every, min(restShare*s.last.took, maxRest))
}

const (
	restShare = 100
	// maxRest limits the time between readings, however slow they are.
	maxRest = time.Minute
)

func (s *system) lookAtStreams(ctx context.Context, js jetstream.JetStream) (all []streamUse) {
	list := js.ListStreams(ctx)
	for info := range list.Info() {
		name := info.Config.Name
		if strings.HasPrefix(name, streamPrefix) && s.streams.of(name) == name {
			all = append(all, streamUse{name, float64(info.State.Bytes), float64(info.State.Msgs),
				float64(max(info.Config.MaxBytes, 0))})
		}
	}
	if list.Err() != nil {
		return nil
	}
	return all
}

func callsIn(ctx context.Context, js jetstream.JetStream) map[string]uint64 {
	work, err := js.Stream(ctx, wire.StreamWork)
	if err != nil {
		return nil
	}
	info, err := work.Info(ctx, jetstream.WithSubjectFilter(wire.WorkSubject("*")))
	if err != nil {
		return nil
	}
	calls := map[string]uint64{}
	for subject, n := range info.State.Subjects {
		if endpoint, lane := wire.EndpointOf(strings.TrimPrefix(subject, wire.WorkPrefix)); lane {
			calls[endpoint] = n
		}
	}
	return calls
}
