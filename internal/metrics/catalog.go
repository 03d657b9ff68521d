package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tranchehq/tranche/workqueue/control"
	healthstore "github.com/tranchehq/tranche/workqueue/health"
)

// Metric describes one metric of ours, for people.
type Metric struct {
	Name, Type string
	Labels     []string
	Help       string
	Leader     bool // told by the node that leads alone
}

// Types of metrics.
const (
	typeCounter   = "counter"
	typeGauge     = "gauge"
	typeHistogram = "histogram"
)

// catalog makes metrics, and remembers which there are.
type catalog struct {
	all    []Metric
	leader bool // what follows is the leader's
}

func (c *catalog) note(typ, name, help string, labels []string) {
	c.all = append(c.all, Metric{Name: name, Type: typ, Labels: labels, Help: help, Leader: c.leader})
}

func (c *catalog) counter(name, help string) prometheus.Counter {
	c.note(typeCounter, name, help, nil)
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (c *catalog) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c.note(typeCounter, name, help, labels)
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// Of native histograms: buckets grow by a tenth, and there are no more than nativeBuckets at once.
const (
	nativeGrowth  = 1.1
	nativeBuckets = 100
)

// histogram has buckets from a millisecond to a minute for those who take no native ones.
func (c *catalog) histogram(name, help string) prometheus.Histogram {
	c.note(typeHistogram, name, help, nil)
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help,
		Buckets:                     []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		NativeHistogramBucketFactor: nativeGrowth, NativeHistogramMaxBucketNumber: nativeBuckets,
		NativeHistogramMinResetDuration: time.Hour,
	})
}

// read is a metric whose value is read when somebody asks.
type read struct {
	*prometheus.Desc

	typ prometheus.ValueType
}

func (c *catalog) gauge(name, help string, labels ...string) read {
	c.note(typeGauge, name, help, labels)
	return read{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

func (c *catalog) total(name, help string, labels ...string) read {
	c.note(typeCounter, name, help, labels)
	return read{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue}
}

// send tells a value.
func (r read) send(to chan<- prometheus.Metric, value float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(r.Desc, r.typ, value, labels...)
}

func yes(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func (s *system) tellConditions(to chan<- prometheus.Metric, all []healthstore.Condition) {
	type kind struct{ kind, severity string }
	count := map[kind]int{}
	for i := range all {
		count[kind{string(all[i].Kind), string(all[i].Severity)}]++
	}
	for k, n := range count {
		s.conditions.send(to, float64(n), k.kind, k.severity)
	}
}

func (s *system) tellRuns(to chan<- prometheus.Metric, r *healthstore.Metrics) {
	states := map[string]int64{"loading": 0, "running": 0, "held": 0}
	holds := map[string]int64{}
	for _, hold := range []control.Hold{control.HoldOperator, control.HoldThreshold, control.HoldGuard,
		control.HoldCanary} {
		holds[string(hold)] = 0
	}
	oldest := 0.0
	for _, of := range r.Runs {
		states[of.State] += of.Count
		oldest = max(oldest, of.Oldest)
		if of.Hold != "" {
			holds[of.Hold] += of.Count
		}
	}
	for state, n := range states {
		s.runs.send(to, float64(n), state)
	}
	for hold, n := range holds {
		s.held.send(to, float64(n), hold)
	}
	s.oldestRun.send(to, oldest)
	s.overdue.send(to, float64(r.Overdue))
}

// endpointSum is an endpoint, or all that have no name of their own: amounts are summed, the worst wait counts, and a
// breaker that is open.
type endpointSum struct {
	ready, scheduled, inFlight, requests, oldest, calls float64
	limit, rate, chunk                                  *float64
	open, unheard                                       bool
}

func (s *system) tellEndpoints(to chan<- prometheus.Metric, now seen) {
	all := map[string]*endpointSum{}
	of := func(name string) *endpointSum {
		name = s.m.endpoints.of(name)
		if all[name] == nil {
			all[name] = &endpointSum{}
		}
		return all[name]
	}
	for i := range now.db.Endpoints {
		e := &now.db.Endpoints[i]
		sum := of(e.Endpoint)
		sum.ready += float64(e.Ready)
		sum.scheduled += float64(e.Scheduled)
		sum.inFlight += float64(e.InFlight)
		sum.requests += float64(e.Requests)
		sum.oldest, sum.open = max(sum.oldest, e.Oldest), sum.open || e.Open
		add(&sum.limit, e.Limit)
		add(&sum.rate, e.Rate)
		add(&sum.chunk, e.Chunk)
	}
	for name, n := range now.calls {
		of(s.m.endpoints.claimed(name)).calls += float64(n) // anybody may publish
	}
	for i := range now.conditions {
		if c := &now.conditions[i]; c.Kind == healthstore.NoListeners {
			of(c.Subject).unheard = true
		}
	}
	for name, sum := range all {
		if name == Other {
			sum.chunk = nil // a sum says nothing
		}
		s.ready.send(to, sum.ready, name)
		s.scheduled.send(to, sum.scheduled, name)
		s.inFlight.send(to, sum.inFlight, name)
		s.requests.send(to, sum.requests, name)
		s.oldest.send(to, sum.oldest, name)
		s.breaker.send(to, yes(sum.open), name)
		s.unheard.send(to, yes(sum.unheard), name)
		s.calls.send(to, sum.calls, name)
		for r, value := range map[*read]*float64{&s.limit: sum.limit, &s.rate: sum.rate, &s.chunk: sum.chunk} {
			if value != nil {
				r.send(to, *value, name)
			}
		}
	}
}

// add sums what may be missing.
func add[N int64 | float64](to **float64, value *N) {
	if value == nil {
		return
	}
	sum := float64(*value)
	if *to != nil {
		sum += **to
	}
	*to = &sum
}

func (s *system) tellCollectors(to chan<- prometheus.Metric, all []healthstore.CollectorMetrics) {
	sums := map[string]*healthstore.CollectorMetrics{}
	for i := range all {
		name := s.m.collectors.of(all[i].Collector)
		sum := sums[name]
		if sum == nil {
			sum = &healthstore.CollectorMetrics{}
			sums[name] = sum
		}
		sum.Parked += all[i].Parked
		sum.Oldest, sum.MaxAge = max(sum.Oldest, all[i].Oldest), max(sum.MaxAge, all[i].MaxAge)
	}
	for name, sum := range sums {
		s.opOldest.send(to, sum.Oldest, name)
		s.opMaxAge.send(to, sum.MaxAge, name)
		s.opParked.send(to, float64(sum.Parked), name)
	}
}

func (s *system) tellBeside(to chan<- prometheus.Metric, r *healthstore.Metrics) {
	s.schedulesOverdue.send(to, float64(r.Schedules.Overdue))
	s.schedulesOldest.send(to, r.Schedules.OldestDue)
	s.schedulesUnstarted.send(to, float64(r.Schedules.Unstarted))
	s.schedulesFailing.send(to, float64(r.Schedules.Failing))
	s.schedulesLate.send(to, float64(r.Schedules.Late))
	s.letters.send(to, float64(r.Leftovers.Letters))
	s.strays.send(to, float64(r.Leftovers.Quarantined))
	s.events.send(to, float64(r.Leftovers.Events))
	s.nodes.send(to, float64(r.Nodes.Alive), "alive")
	s.nodes.send(to, float64(r.Nodes.Dead), "dead")
	s.bytes.send(to, float64(r.Database.Bytes))
	s.connections.send(to, float64(r.Database.Connections))
	s.connectionsLimit.send(to, float64(r.Database.MaxConnections))
	s.oldestTx.send(to, r.Database.OldestTransaction)
	for _, t := range r.Tables {
		s.deadRows.send(to, float64(t.Dead), t.Name)
	}
}
