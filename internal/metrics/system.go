package metrics

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue/database"
	healthstore "github.com/tranchehq/tranche/workqueue/health"
)

// streamPrefix is how the names of our streams begin, of which there are fewer than maxStreams.
const (
	streamPrefix = "TRANCHE_"
	maxStreams   = 20
)

// seen is what was read at one time.
type seen struct {
	db         *healthstore.Metrics // nil: it could not be read
	streams    []streamUse
	calls      map[string]uint64 // that are not answered, by endpoint
	conditions []healthstore.Condition
	took       time.Duration
	at         time.Time
}

// streamUse is what a stream holds.
type streamUse struct {
	name                   string
	bytes, messages, limit float64 // limit: of bytes; 0: none
}

// system tells what the node that leads sees of the whole.
type system struct {
	m       *Metrics
	every   time.Duration
	timeout time.Duration // of a reading as a whole
	streams *names

	mu    sync.Mutex // held while it is read: who comes meanwhile waits for the same
	last  seen
	whose int64 // epoch in which it was read: a later one begins anew

	read, took, conditions                                  read
	runs, held, oldestRun, overdue                          read
	ready, scheduled, inFlight, requests, limit, oldest     read
	breaker, rate, chunk, unheard, calls                    read
	opOldest, opMaxAge, opParked                            read
	schedulesOverdue, schedulesUnstarted, schedulesOldest   read
	schedulesFailing, schedulesLate                         read
	letters, strays, events                                 read
	nodes, bytes, connections, connectionsLimit, oldestTx   read
	deadRows, streamBytes, streamMessages, streamBytesLimit read
}

func newSystem(m *Metrics, config *Config) *system {
	c := &m.catalog
	c.leader = true
	s := &system{m: m, every: cmp.Or(config.Every, DefaultEvery), timeout: cmp.Or(config.Timeout, DefaultTimeout),
		streams: newNames(maxStreams)}
	s.read = c.gauge("tranche_reading_success", "1 when the database could be read for what follows, else 0.")
	s.took = c.gauge("tranche_reading_duration_seconds", "What the last reading took.")
	s.conditions = c.gauge("tranche_health_conditions",
		"Conditions that a person must see to, as tranche health and its page have them; 20 of a kind at the most.",
		"kind", "severity")
	s.runs = c.gauge("tranche_runs", "Runs under way: state is loading, running or held.", "state")
	s.held = c.gauge("tranche_runs_held", "Runs that are held: reason is operator, threshold, guard or canary.", "reason")
	s.oldestRun = c.gauge("tranche_run_oldest_unfinished_seconds", "Age of the oldest run under way; 0: there is none.")
	s.overdue = c.gauge("tranche_runs_overdue", "Open runs that were not sealed in time.")
	s.describeWork(c)
	s.describeBeside(c)
	c.leader = false
	return s
}

func (s *system) describeWork(c *catalog) {
	s.ready = c.gauge("tranche_endpoint_items_ready",
		"Items of runs that are not held that may be sent now.", "endpoint")
	s.scheduled = c.gauge("tranche_endpoint_items_scheduled",
		"Items that are to be tried again after a pause.", "endpoint")
	s.inFlight = c.gauge("tranche_endpoint_items_in_flight", "Items that are out.", "endpoint")
	s.requests = c.gauge("tranche_endpoint_requests_in_flight", "Requests that are out.", "endpoint")
	s.limit = c.gauge("tranche_endpoint_requests_limit",
		"How many may be: what operators set, or else what nodes have found.", "endpoint")
	s.oldest = c.gauge("tranche_endpoint_oldest_wait_seconds",
		"For how long the oldest request has been in the stream that no service has taken; 0: there is none.", "endpoint")
	s.breaker = c.gauge("tranche_endpoint_breaker_open", "1 while the breaker is open, else 0.", "endpoint")
	s.rate = c.gauge("tranche_endpoint_pace_items_per_second",
		"Items a second, at most: what operators set or services have shown, whichever is less; absent: no limit.",
		"endpoint")
	s.chunk = c.gauge("tranche_endpoint_pace_chunk_items",
		"Items in a request that get most done; absent: not known yet.", "endpoint")
	s.unheard = c.gauge("tranche_endpoint_unheard",
		"1 while runs have work for it and nobody listens, else 0.", "endpoint")
	s.calls = c.gauge("tranche_endpoint_calls_unanswered",
		"Requests that somebody waits for, in the lane of calls: not taken, or being worked on.", "endpoint")
	s.opOldest = c.gauge("tranche_collector_oldest_operation_seconds",
		"Age of the oldest operation of the key that is due first, or being flushed; 0: there is none.", "collector")
	s.opMaxAge = c.gauge("tranche_collector_max_age_seconds",
		"When operations are to be flushed at the latest.", "collector")
	s.opParked = c.gauge("tranche_collector_operations_parked",
		"Operations that wait for somebody to retry or drop them; 10000 at the most.", "collector")
}

func (s *system) describeBeside(c *catalog) {
	s.schedulesOverdue = c.gauge("tranche_schedules_overdue", "Schedules whose due time has come and was not taken.")
	s.schedulesOldest = c.gauge("tranche_schedule_oldest_overdue_seconds",
		"For how long, the first of them; 0: there is none.")
	s.schedulesUnstarted = c.gauge("tranche_schedules_unstarted",
		"Due times that were taken and have no run after a minute.")
	s.schedulesFailing = c.gauge("tranche_schedules_failing", "Schedules whose last due time has no run.")
	s.schedulesLate = c.gauge("tranche_schedules_late", "Runs of schedules that go on after the end of their window.")
	s.letters = c.gauge("tranche_dead_letters", "Dead letters that wait for somebody; 10000 at the most.")
	s.strays = c.gauge("tranche_replies_quarantined", "Messages put aside in the last day; 10000 at the most.")
	s.events = c.gauge("tranche_events_unpublished", "Events that are not published after a minute; 10000 at the most.")
	s.nodes = c.gauge("tranche_nodes",
		"Nodes: alive, or dead within the last hour, without a word, and not started again on their host.", "state")
	s.bytes = c.gauge("tranche_database_size_bytes", "What the database takes on its disk.")
	s.connections = c.gauge("tranche_database_connections", "Connections to the PostgreSQL server, of everybody.")
	s.connectionsLimit = c.gauge("tranche_database_connections_limit", "How many it takes.")
	s.oldestTx = c.gauge("tranche_database_oldest_transaction_seconds",
		"Age of the oldest transaction that the node's role may see.")
	s.deadRows = c.gauge("tranche_database_dead_rows",
		"Rows that VACUUM has yet to clear, as PostgreSQL estimates.", "table")
	s.streamBytes = c.gauge("tranche_stream_size_bytes", "What a stream holds.", "stream")
	s.streamMessages = c.gauge("tranche_stream_messages", "The same in messages.", "stream")
	s.streamBytesLimit = c.gauge("tranche_stream_limit_bytes", "What it may hold; absent: it has no limit.", "stream")
}

// Describe implements prometheus.Collector.
func (s *system) Describe(to chan<- *prometheus.Desc) {
	for _, r := range []read{s.read, s.took, s.conditions, s.runs, s.held, s.oldestRun, s.overdue, s.ready, s.scheduled,
		s.inFlight, s.requests, s.limit, s.oldest, s.breaker, s.rate, s.chunk, s.unheard, s.calls, s.opOldest,
		s.opMaxAge, s.opParked, s.schedulesOverdue, s.schedulesUnstarted, s.schedulesOldest, s.schedulesFailing,
		s.schedulesLate,
		s.letters, s.strays, s.events, s.nodes, s.bytes, s.connections, s.connectionsLimit, s.oldestTx, s.deadRows,
		s.streamBytes, s.streamMessages, s.streamBytesLimit} {
		to <- r.Desc
	}
}

// Collect implements prometheus.Collector.
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
	s.read.send(to, yes(now.db != nil))
	s.took.send(to, now.took.Seconds())
	s.tellConditions(to, now.conditions)
	for _, stream := range now.streams {
		s.streamBytes.send(to, stream.bytes, stream.name)
		s.streamMessages.send(to, stream.messages, stream.name)
		if stream.limit > 0 {
			s.streamBytesLimit.send(to, stream.limit, stream.name)
		}
	}
	if now.db == nil {
		return
	}
	s.tellRuns(to, now.db)
	s.tellEndpoints(to, now)
	s.tellCollectors(to, now.db.Collectors)
	s.tellBeside(to, now.db)
}

// look returns what was read lately, or reads it. Who comes while it is read waits for that.
func (s *system) look(from *Sources, epoch int64) seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.whose == epoch && time.Since(s.last.at) < s.rest() {
		return s.last
	}
	s.whose = epoch
	ctx, cancel := context.WithTimeout(database.ForDuties(context.Background()), s.timeout)
	defer cancel()
	begun := time.Now()
	now := seen{}
	var others sync.WaitGroup
	others.Go(func() { now.streams = s.lookAtStreams(ctx, from) })
	others.Go(func() { now.calls = callsIn(ctx, from) })
	others.Go(func() { now.conditions = s.conditionsOf(ctx) })
	var err error
	if now.db, err = healthstore.New(from.Store).Metrics(ctx); err != nil {
		s.m.log.Warn("metrics of the database are left out", zap.Error(err))
	}
	now.took = time.Since(begun)
	others.Wait()
	now.at = time.Now()
	s.last = now
	return now
}

// rest is the time until the next reading: a hundred times what the last took, so that reading takes less than 1% of a
// core, but not for so long that nobody would be told in time.
func (s *system) rest() time.Duration {
	if s.last.db == nil {
		return s.every
	}
	return max(s.every, min(restShare*s.last.took, maxRest))
}

const (
	restShare = 100
	// Between two readings, however many scrape, and between those that take long.
	maxRest = time.Minute
)

func (s *system) conditionsOf(ctx context.Context) []healthstore.Condition {
	judge := s.m.judge.Load()
	if judge == nil {
		return nil
	}
	report, err := (*judge)(ctx)
	if err != nil {
		return nil // it took too long
	}
	return report.Conditions
}

func (s *system) lookAtStreams(ctx context.Context, from *Sources) (all []streamUse) {
	if !from.NC.IsConnected() {
		return nil
	}
	js, err := jetstream.New(from.NC)
	if err != nil {
		return nil
	}
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

// callsIn counts, by endpoint, what lies in the lanes of calls.
func callsIn(ctx context.Context, from *Sources) map[string]uint64 {
	if !from.NC.IsConnected() {
		return nil
	}
	js, err := jetstream.New(from.NC)
	if err != nil {
		return nil
	}
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
