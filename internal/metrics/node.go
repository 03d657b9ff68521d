package metrics

import (
	"context"
	"runtime"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Sources are read at scrapes.
type Sources struct {
	Node  *orchestrator.Node
	Store *database.DB
	NC    *nats.Conn
	// Certificates returns expiry times of certificates by owner; nil: unknown.
	Certificates func() map[string]time.Time
}

// Bind sets the sources. Before that their metrics are missing.
func (m *Metrics) Bind(s Sources) { m.sources.Store(&s) }

func newBuild(c *catalog, build buildinfo.Info) prometheus.Collector {
	const name = "tranche_build_info"
	const help = "1, with versions as labels."
	c.note(typeGauge, name, help, []string{"version", "commit", "date", "go_version"})
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help,
		ConstLabels: prometheus.Labels{"version": build.Version, "commit": build.Commit, "date": build.Date,
			"go_version": runtime.Version()},
	}, func() float64 { return 1 })
}

type nodeSays struct {
	orchestrator.Stats

	leads, connected bool
	pools            []database.PoolUse
	unready          map[string]bool      // by reason
	certificates     map[string]time.Time // expiry by owner
}

type node struct {
	m              *Metrics
	gauges, totals *table[*nodeSays]
	// Of the leader.
	leader, leaderTotals *table[*orchestrator.Leading]
}

func newNode(m *Metrics) *node {
	c := &m.catalog
	n := &node{m: m, gauges: gauges(c, nodeGauges()), totals: totals(c, nodeTotals())}
	c.leader = true
	n.leader, n.leaderTotals = gauges(c, leaderGauges()), totals(c, leaderTotals())
	c.leader = false
	return n
}

func nodeGauges() []row[*nodeSays] {
	return []row[*nodeSays]{
		{"tranche_node_is_leader", "1 while this node leads, else 0.", "",
			one(func(n *nodeSays) float64 { return yes(n.leads) })},
		{"tranche_nats_connected", "1 while this node is connected to NATS, else 0.", "",
			one(func(n *nodeSays) float64 { return yes(n.connected) })},
		{"tranche_node_unready", "1 while this node is not ready, by reason (jetstream: no quorum; standby: commits wait).",
			"reason", func(n *nodeSays, put func(float64, ...string)) {
				for reason, holds := range n.unready {
					put(yes(holds), reason)
				}
			}},
		{"tranche_certificate_expiry_timestamp_seconds", "Expiry of the certificate of api (this node), nats or postgresql.",
			"of", func(n *nodeSays, put func(float64, ...string)) {
				for of, end := range n.certificates {
					put(float64(end.Unix()), of)
				}
			}},
		{"tranche_node_chunks", "Chunks the node itself is working on.", "",
			one(func(n *nodeSays) int64 { return n.Fetching })},
		{"tranche_node_calls_stuck", "Abandoned function calls that have not returned.", "",
			one(func(n *nodeSays) int64 { return n.Hung })},
		{"tranche_pool_connections_used", "Database connections in use.", "pool",
			perPool(func(p *database.PoolUse) float64 { return float64(p.AcquiredConns()) })},
		{"tranche_pool_connections_idle", "Idle database connections.", "pool",
			perPool(func(p *database.PoolUse) float64 { return float64(p.IdleConns()) })},
		{"tranche_pool_connections_limit", "Limit of database connections.", "pool",
			perPool(func(p *database.PoolUse) float64 { return float64(p.MaxConns()) })},
	}
}

func nodeTotals() []row[*nodeSays] {
	return []row[*nodeSays]{
		{"tranche_pool_waits_total", "Waits for a connection.", "pool",
			perPool(func(p *database.PoolUse) float64 { return float64(p.EmptyAcquireCount()) })},
		{"tranche_pool_wait_seconds_total", "Total time of waits for a connection.", "pool",
			perPool(func(p *database.PoolUse) float64 { return p.EmptyAcquireWaitTime().Seconds() })},
		{"tranche_claims_total", "Claims with work.", "", one(func(n *nodeSays) int64 { return n.Claims })},
		{"tranche_claims_empty_total", "Claims without work.", "", one(func(n *nodeSays) int64 { return n.EmptyClaims })},
		{"tranche_slices_claimed_total", "Slices claimed.", "", one(func(n *nodeSays) int64 { return n.Slices })},
		{"tranche_slices_split_total", "Slices split because they were too large.", "",
			one(func(n *nodeSays) int64 { return n.Splits })},
		{"tranche_slices_released_total", "Slices of dead nodes and lost streams reissued.", "",
			one(func(n *nodeSays) int64 { return n.Released })},
		{"tranche_slices_extended_total", "Deadlines moved because no service had the request.", "",
			one(func(n *nodeSays) int64 { return n.Extended })},
		{"tranche_publishes_retried_total", "Publishes that were retried.", "",
			one(func(n *nodeSays) int64 { return n.Republished })},
		{"tranche_publishes_postponed_total", "Slices that could not be published and were postponed.", "",
			one(func(n *nodeSays) int64 { return n.Postponed })},
		{"tranche_records_total", "Transactions that recorded outcomes.", "",
			one(func(n *nodeSays) int64 { return n.Commits })},
		{"tranche_replies_total", "Messages of replies recorded.", "", one(func(n *nodeSays) int64 { return n.Replies })},
		{"tranche_replies_stale_total", "Messages of stale replies.", "", one(func(n *nodeSays) int64 { return n.Stale })},
		{"tranche_slots_duplicate_total", "Slots of items already answered.", "",
			one(func(n *nodeSays) int64 { return n.Duplicates })},
		{"tranche_messages_exhausted_total", "Messages removed because JetStream no longer delivers them.", "",
			one(func(n *nodeSays) int64 { return n.Exhausted })},
		{"tranche_dead_letters_requeued_total", "Dead letters sent again.", "",
			one(func(n *nodeSays) int64 { return n.Requeued })},
		{"tranche_sessions_lost_total",
			"Times this node lost its session.", "",
			one(func(n *nodeSays) int64 { return n.SessionsLost })},
		{"tranche_collector_flushes_total", "Flushes of collectors.", "",
			one(func(n *nodeSays) int64 { return n.Flushes })},
		{"tranche_collector_operations_done_total", "Operations that succeeded.", "",
			one(func(n *nodeSays) int64 { return n.FlushedOps })},
		{"tranche_collector_operations_failed_total", "Failed attempts of operations.", "",
			one(func(n *nodeSays) int64 { return n.FailedOps })},
	}
}

func perPool(value func(*database.PoolUse) float64) func(*nodeSays, func(float64, ...string)) {
	return func(n *nodeSays, put func(float64, ...string)) {
		for i := range n.pools {
			put(value(&n.pools[i]), n.pools[i].Name)
		}
	}
}

func leaderGauges() []row[*orchestrator.Leading] {
	return []row[*orchestrator.Leading]{
		{"tranche_leader_epoch", "Epoch of the lease.", "", one(func(l *orchestrator.Leading) int64 { return l.Epoch })},
		{"tranche_leader_task_last_success_timestamp_seconds",
			"When a task last succeeded.", "task",
			func(l *orchestrator.Leading, put func(float64, ...string)) {
				for i := range l.LeaderTasks {
					if d := &l.LeaderTasks[i]; d.Succeeded >= 0 {
						put(float64(time.Now().Add(-d.Succeeded).UnixMilli())/1e3, d.Name)
					}
				}
			}},
		{"tranche_leader_task_running_seconds", "How long a task has been running; 0: idle.", "task",
			perTask(func(d *inspect.TaskPulse) float64 { return d.Running.Seconds() })},
	}
}

func leaderTotals() []row[*orchestrator.Leading] {
	return []row[*orchestrator.Leading]{
		{"tranche_leader_task_runs_total", "Runs of a task since this node became leader.", "task",
			perTask(func(d *inspect.TaskPulse) float64 { return float64(d.Runs) })},
		{"tranche_leader_task_failures_total", "Failed runs of a task.", "task",
			perTask(func(d *inspect.TaskPulse) float64 { return float64(d.Failures) })},
	}
}

func perTask(value func(*inspect.TaskPulse) float64) func(*orchestrator.Leading, func(float64, ...string)) {
	return func(l *orchestrator.Leading, put func(float64, ...string)) {
		for i := range l.LeaderTasks {
			put(value(&l.LeaderTasks[i]), l.LeaderTasks[i].Name)
		}
	}
}

func (n *node) Describe(to chan<- *prometheus.Desc) {
	n.gauges.Describe(to)
	n.totals.Describe(to)
	n.leader.Describe(to)
	n.leaderTotals.Describe(to)
}

func (n *node) Collect(to chan<- prometheus.Metric) {
	s := n.m.sources.Load()
	if s == nil {
		return
	}
	leading := s.Node.Leading()
	says := &nodeSays{s.Node.Stats(), leading != nil, s.NC.IsConnected(), s.Store.Pools(), nil, nil}
	if s.Certificates != nil {
		says.certificates = s.Certificates()
	}
	if unready := n.m.unready.Load(); unready != nil {
		says.unready = (*unready)(context.Background()) // which limits its own time
	}
	n.gauges.collect(to, says)
	n.totals.collect(to, says)
	if leading != nil {
		n.leader.collect(to, leading)
		n.leaderTotals.collect(to, leading)
	}
}
