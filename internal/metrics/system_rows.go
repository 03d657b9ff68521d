package metrics

import (
	"math"
	"slices"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	healthstore "github.com/tranchehq/tranche/workqueue/health"
)

// alwaysRows are exposed even if the database cannot be read.
func alwaysRows() []row[*seen] {
	return []row[*seen]{
		{"tranche_database_scrape_success", "1 if the database could be read for these metrics, else 0.", "",
			one(func(s *seen) float64 { return yes(s.db != nil) })},
		{"tranche_database_scrape_duration_seconds", "Duration of the last read.", "",
			one(func(s *seen) float64 { return s.took.Seconds() })},
		{"tranche_health_conditions",
			"Conditions of tranche health, at most 20 of a kind, without muted ones.",
			"kind,severity", conditionsByKind},
		{"tranche_health_count", "What the conditions of a kind count, at most 20 and muted ones too: items, dead " +
			"letters, messages, operations or events; else themselves.", "kind", countsByKind},
		{"tranche_stream_size_bytes", "Size of a stream.", "stream",
			perStream(func(u *streamUse) float64 { return u.bytes })},
		{"tranche_stream_messages", "Messages in a stream.", "stream",
			perStream(func(u *streamUse) float64 { return u.messages })},
		{"tranche_stream_limit_bytes", "Limit of a stream; absent: none.", "stream",
			func(s *seen, put func(float64, ...string)) {
				for _, u := range s.streams {
					if u.limit > 0 {
						put(u.limit, u.name)
					}
				}
			}},
	}
}

func perStream(value func(*streamUse) float64) func(*seen, func(float64, ...string)) {
	return func(s *seen, put func(float64, ...string)) {
		for i := range s.streams {
			put(value(&s.streams[i]), s.streams[i].name)
		}
	}
}

func conditionsByKind(s *seen, put func(float64, ...string)) {
	type kind struct{ kind, severity string }
	count := map[kind]int{}
	for i := range s.health.Conditions {
		count[kind{string(s.health.Conditions[i].Kind), string(s.health.Conditions[i].Severity)}]++
	}
	for k, n := range count {
		put(float64(n), k.kind, k.severity)
	}
}

func countsByKind(s *seen, put func(float64, ...string)) {
	count := map[healthstore.Kind]int64{}
	for _, c := range slices.Concat(s.health.Conditions, s.health.Muted) {
		count[c.Kind] += c.Count
	}
	for k, n := range count {
		put(float64(n), string(k))
	}
}

func number[N int | int64 | float64](value func(*healthstore.Metrics) N) func(*seen, func(float64, ...string)) {
	return one(func(s *seen) N { return value(s.db) })
}

func runRows(in func(namespace string) string) []row[*seen] {
	sum := func(was, n float64) float64 { return was + n }
	count := func(by func(*healthstore.RunMetrics) string) func(*healthstore.RunMetrics) (string, float64) {
		return func(r *healthstore.RunMetrics) (string, float64) { return by(r), float64(r.Count) }
	}
	plain := func(n func(*healthstore.RunMetrics) float64) func(*healthstore.RunMetrics) (string, float64) {
		return func(r *healthstore.RunMetrics) (string, float64) { return "", n(r) }
	}
	return []row[*seen]{
		{"tranche_runs", "Runs in progress: state is loading, running or held.", "namespace,state",
			perRuns(in, sum, count(func(r *healthstore.RunMetrics) string { return r.State }), "loading", "running", "held")},
		{"tranche_runs_held", "Held runs: reason is operator, threshold, fail_fast or canary.", "namespace,reason",
			perRuns(in, sum, count(func(r *healthstore.RunMetrics) string { return r.Hold }), string(control.HoldOperator),
				string(control.HoldThreshold), string(control.HoldFailFast), string(control.HoldCanary))},
		{"tranche_run_oldest_unfinished_seconds", "Age of the oldest run in progress; 0: none.", "namespace",
			perRuns(in, math.Max, plain(func(r *healthstore.RunMetrics) float64 { return r.Oldest }), "")},
		{"tranche_runs_end_timestamp_seconds", "When the last of the 50 most urgent runs in progress will end, by " +
			"forecast: quantile is 0.1, 0.5 or 0.9; absent: none has a time.", "quantile",
			func(s *seen, put func(float64, ...string)) {
				for quantile, at := range s.ends {
					put(float64(at.Unix()), quantile)
				}
			}},
		{"tranche_runs_overdue", "Open runs not sealed before their deadline.", "namespace",
			perRuns(in, sum, plain(func(r *healthstore.RunMetrics) float64 { return float64(r.Overdue) }), "")},
		{"tranche_runs_late", "Runs not done by their done_by.", "namespace",
			perRuns(in, sum, plain(func(r *healthstore.RunMetrics) float64 { return float64(r.Late) }), "")},
	}
}

// perRuns adds up what runs count for, by namespace and another label, whose values are all exposed; "": none.
func perRuns(in func(string) string, add func(was, n float64) float64,
	of func(*healthstore.RunMetrics) (value string, n float64), values ...string,
) func(*seen, func(float64, ...string)) {
	return func(s *seen, put func(float64, ...string)) {
		total := map[[2]string]float64{}
		none := healthstore.RunMetrics{Namespace: workqueue.DefaultNamespace}
		for _, r := range append([]healthstore.RunMetrics{none}, s.db.Runs...) {
			r.Namespace = in(r.Namespace)
			for _, value := range values {
				total[[2]string{r.Namespace, value}] += 0
			}
			if value, n := of(&r); slices.Contains(values, value) {
				k := [2]string{r.Namespace, value}
				total[k] = add(total[k], n)
			}
		}
		for k, n := range total {
			put(n, slices.DeleteFunc(k[:], func(label string) bool { return label == "" })...)
		}
	}
}

// endpointSum is an endpoint, or the sum of those under Other: amounts are added, the longest wait counts, and any
// open breaker.
type endpointSum struct {
	ready, scheduled, inFlight, requests, oldest, calls float64
	limit, rate, chunk                                  *float64
	open, unheard                                       bool
}

func endpointRows() []row[*seen] {
	return []row[*seen]{
		{"tranche_endpoint_items_ready", "Items that may be sent now.", "endpoint",
			perEndpoint(func(e *endpointSum) *float64 { return &e.ready })},
		{"tranche_endpoint_items_scheduled", "Items that wait for a retry.", "endpoint",
			perEndpoint(func(e *endpointSum) *float64 { return &e.scheduled })},
		{"tranche_endpoint_items_in_flight", "Items in flight.", "endpoint",
			perEndpoint(func(e *endpointSum) *float64 { return &e.inFlight })},
		{"tranche_endpoint_requests_in_flight", "Requests in flight.", "endpoint",
			perEndpoint(func(e *endpointSum) *float64 { return &e.requests })},
		{"tranche_endpoint_requests_limit",
			"Limit of requests in flight: set by operators, else learned.", "endpoint",
			perEndpoint(func(e *endpointSum) *float64 { return e.limit })},
		{"tranche_endpoint_oldest_wait_seconds",
			"Age of the oldest request that no service has taken; 0: none.", "endpoint",
			perEndpoint(func(e *endpointSum) *float64 { return &e.oldest })},
		{"tranche_endpoint_breaker_open", "1 while the breaker is open, else 0.", "endpoint",
			perEndpoint(func(e *endpointSum) *float64 { return new(yes(e.open)) })},
		{"tranche_endpoint_pace_items_per_second",
			"The lower of the set and the learned rate; absent: no limit.",
			"endpoint", perEndpoint(func(e *endpointSum) *float64 { return e.rate })},
		{"tranche_endpoint_pace_chunk_items", "The learned chunk size; absent: not known yet.", "endpoint",
			perEndpoint(func(e *endpointSum) *float64 { return e.chunk })},
		{"tranche_endpoint_no_listeners", "1 while runs have work for it and no service listens, else 0.", "endpoint",
			perEndpoint(func(e *endpointSum) *float64 { return new(yes(e.unheard)) })},
		{"tranche_endpoint_calls_unanswered",
			"Unanswered requests in the lane of calls.", "endpoint",
			perEndpoint(func(e *endpointSum) *float64 { return &e.calls })},
	}
}

func perEndpoint(value func(*endpointSum) *float64) func(*seen, func(float64, ...string)) {
	return func(s *seen, put func(float64, ...string)) {
		for name, e := range s.endpoints {
			if v := value(e); v != nil {
				put(*v, name)
			}
		}
	}
}

func (m *Metrics) sumEndpoints(now *seen) map[string]*endpointSum {
	all := map[string]*endpointSum{}
	of := func(name string) *endpointSum {
		name = m.endpoints.of(name)
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
		of(m.endpoints.claimed(name)).calls += float64(n) // anyone may publish
	}
	for i := range now.health.Conditions {
		if c := &now.health.Conditions[i]; c.Kind == healthstore.NoListeners {
			of(c.Subject).unheard = true
		}
	}
	if others := all[Other]; others != nil {
		others.chunk = nil // sums are meaningless
	}
	return all
}

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

func collectorRows() []row[*seen] {
	return []row[*seen]{
		{"tranche_collector_oldest_operation_seconds",
			"Age of the oldest operation of the key that is due first, or being flushed; 0: none.", "collector",
			perCollector(func(c *healthstore.CollectorMetrics) float64 { return c.Oldest })},
		{"tranche_collector_max_age_seconds", "The collector's max_age.", "collector",
			perCollector(func(c *healthstore.CollectorMetrics) float64 { return c.MaxAge })},
		{"tranche_collector_operations_parked",
			"Parked operations, at most 10000.", "collector",
			perCollector(func(c *healthstore.CollectorMetrics) float64 { return float64(c.Parked) })},
	}
}

func perCollector(value func(*healthstore.CollectorMetrics) float64) func(*seen, func(float64, ...string)) {
	return func(s *seen, put func(float64, ...string)) {
		for name, c := range s.collectors {
			put(value(c), name)
		}
	}
}

func (m *Metrics) sumCollectors(all []healthstore.CollectorMetrics) map[string]*healthstore.CollectorMetrics {
	sums := map[string]*healthstore.CollectorMetrics{}
	for i := range all {
		name := m.collectors.of(all[i].Collector)
		sum := sums[name]
		if sum == nil {
			sum = &healthstore.CollectorMetrics{}
			sums[name] = sum
		}
		sum.Parked += all[i].Parked
		sum.Oldest, sum.MaxAge = max(sum.Oldest, all[i].Oldest), max(sum.MaxAge, all[i].MaxAge)
	}
	return sums
}

func besideRows() []row[*seen] {
	type m = healthstore.Metrics
	return []row[*seen]{
		{"tranche_nodes",
			"Nodes that are alive, or died in the last hour and were not restarted.", "state",
			func(s *seen, put func(float64, ...string)) {
				put(float64(s.db.Nodes.Alive), "alive")
				put(float64(s.db.Nodes.Dead), "dead")
			}},
		{"tranche_database_size_bytes", "Size of the database on disk.", "",
			number(func(m *m) int64 { return m.Database.Bytes })},
		{"tranche_database_connections", "Connections to the PostgreSQL server, by all clients.", "",
			number(func(m *m) int64 { return m.Database.Connections })},
		{"tranche_database_connections_limit", "Limit of connections to the PostgreSQL server.", "",
			number(func(m *m) int64 { return m.Database.MaxConnections })},
		{"tranche_database_oldest_transaction_seconds", "Age of the oldest transaction that the node's role may see.", "",
			number(func(m *m) float64 { return m.Database.OldestTransaction })},
		{"tranche_database_dead_rows", "Dead rows, estimated by PostgreSQL.", "table",
			func(s *seen, put func(float64, ...string)) {
				for _, t := range s.db.Tables {
					put(float64(t.Dead), t.Name)
				}
			}},
	}
}
