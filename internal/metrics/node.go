package metrics

import (
	"runtime"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/database"
)

// Sources is what is read when somebody asks.
type Sources struct {
	Node interface {
		Stats() orchestrator.Stats
		Leading() *orchestrator.Leading // nil: it does not lead
	}
	Store *database.DB
	NC    *nats.Conn
}

// Bind says where to read what is read. Before that none of it is told.
func (m *Metrics) Bind(s Sources) { m.sources.Store(&s) }

// newBuild tells what runs.
func newBuild(c *catalog, build buildinfo.Info) prometheus.Collector {
	const name = "tranche_build_info"
	const help = "1, with the version, the commit and its date of the program, and the version of Go."
	c.note(typeGauge, name, help, []string{"version", "commit", "date", "go_version"})
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help,
		ConstLabels: prometheus.Labels{"version": build.Version, "commit": build.Commit, "date": build.Date,
			"go_version": runtime.Version()},
	}, func() float64 { return 1 })
}

// node tells what a node says of itself.
type node struct {
	m *Metrics

	stats                           []stat
	leads, connected, working, hung read

	poolUsed, poolIdle, poolMax, poolWaits, poolWaited read

	epoch, dutyRuns, dutyFailures, dutySucceeded, dutyRunning read
}

// stat is one of the node's counters.
type stat struct {
	read

	of func(*orchestrator.Stats) int64
}

func newNode(m *Metrics) *node {
	c := &m.catalog
	n := &node{m: m, stats: stats(c)}
	n.leads = c.gauge("tranche_node_leads", "1 while this node leads, else 0.")
	n.connected = c.gauge("tranche_nats_connected", "1 while this node is connected to NATS, else 0.")
	n.working = c.gauge("tranche_node_chunks", "Chunks that the node works on itself now.")
	n.hung = c.gauge("tranche_node_calls_hung", "Calls of functions that were given up and have not come back.")
	n.poolUsed = c.gauge("tranche_pool_connections_used",
		"Connections to the database in use, by what they are for.", "pool")
	n.poolIdle = c.gauge("tranche_pool_connections_idle", "Those that are open and free.", "pool")
	n.poolMax = c.gauge("tranche_pool_connections_limit", "How many there may be.", "pool")
	n.poolWaits = c.total("tranche_pool_waits_total", "Times that somebody waited for a connection.", "pool")
	n.poolWaited = c.total("tranche_pool_wait_seconds_total", "For how long, together.", "pool")
	c.leader = true
	n.epoch = c.gauge("tranche_leader_epoch", "Epoch of the lease.")
	n.dutyRuns = c.total("tranche_duty_runs_total", "Times that a duty ran since this node leads.", "duty")
	n.dutyFailures = c.total("tranche_duty_failures_total", "Those of them that failed.", "duty")
	n.dutySucceeded = c.gauge("tranche_duty_last_success_timestamp_seconds",
		"When a duty ran last without failing, by the node's clock.", "duty")
	n.dutyRunning = c.gauge("tranche_duty_running_seconds", "For how long a duty has been running; 0: it rests.", "duty")
	c.leader = false
	return n
}

func stats(c *catalog) []stat {
	var all []stat
	add := func(name, help string, of func(*orchestrator.Stats) int64) {
		all = append(all, stat{c.total(name, help), of})
	}
	add("tranche_claims_total", "Claims that brought work.", func(s *orchestrator.Stats) int64 { return s.Claims })
	add("tranche_claims_empty_total", "Claims that brought none.",
		func(s *orchestrator.Stats) int64 { return s.EmptyClaims })
	add("tranche_slices_claimed_total", "Slices claimed.", func(s *orchestrator.Stats) int64 { return s.Slices })
	add("tranche_slices_split_total", "Slices cut because they were too much for a message, or for the node.",
		func(s *orchestrator.Stats) int64 { return s.Splits })
	add("tranche_slices_released_total", "Slices of dead nodes and lost streams that this node issued again.",
		func(s *orchestrator.Stats) int64 { return s.Released })
	add("tranche_slices_extended_total", "Deadlines moved, since no service had been handed the request.",
		func(s *orchestrator.Stats) int64 { return s.Extended })
	add("tranche_publishes_retried_total", "Publishes that were tried again.",
		func(s *orchestrator.Stats) int64 { return s.Republished })
	add("tranche_publishes_postponed_total", "Slices that could not be published and were given back for a while.",
		func(s *orchestrator.Stats) int64 { return s.Postponed })
	add("tranche_records_total", "Transactions that recorded outcomes.",
		func(s *orchestrator.Stats) int64 { return s.Commits })
	add("tranche_replies_total", "Messages of replies recorded.", func(s *orchestrator.Stats) int64 { return s.Replies })
	add("tranche_replies_stale_total", "Messages of replies to requests that were over: they touched nothing.",
		func(s *orchestrator.Stats) int64 { return s.Stale })
	add("tranche_slots_duplicate_total", "Slots of items that were answered before.",
		func(s *orchestrator.Stats) int64 { return s.Duplicates })
	add("tranche_messages_exhausted_total", "Messages removed that JetStream delivers no more.",
		func(s *orchestrator.Stats) int64 { return s.Exhausted })
	add("tranche_dead_letters_requeued_total", "Dead letters sent again.",
		func(s *orchestrator.Stats) int64 { return s.Requeued })
	add("tranche_sessions_lost_total",
		"Times that this node was cut off from the database for longer than a session lives.",
		func(s *orchestrator.Stats) int64 { return s.SessionsLost })
	add("tranche_collector_flushes_total", "Requests for collectors.",
		func(s *orchestrator.Stats) int64 { return s.Flushes })
	add("tranche_collector_operations_done_total", "Operations of collectors that succeeded.",
		func(s *orchestrator.Stats) int64 { return s.FlushedOps })
	add("tranche_collector_operations_failed_total", "Tries of operations that did not.",
		func(s *orchestrator.Stats) int64 { return s.FailedOps })
	return all
}

// Describe implements prometheus.Collector.
func (n *node) Describe(to chan<- *prometheus.Desc) {
	for i := range n.stats {
		to <- n.stats[i].Desc
	}
	for _, r := range []read{n.leads, n.connected, n.working, n.hung, n.poolUsed, n.poolIdle, n.poolMax, n.poolWaits,
		n.poolWaited, n.epoch, n.dutyRuns, n.dutyFailures, n.dutySucceeded, n.dutyRunning} {
		to <- r.Desc
	}
}

// Collect implements prometheus.Collector.
func (n *node) Collect(to chan<- prometheus.Metric) {
	s := n.m.sources.Load()
	if s == nil {
		return
	}
	now := s.Node.Stats()
	for i := range n.stats {
		n.stats[i].send(to, float64(n.stats[i].of(&now)))
	}
	n.working.send(to, float64(now.Fetching))
	n.hung.send(to, float64(now.Hung))
	n.connected.send(to, yes(s.NC.IsConnected()))
	for _, p := range s.Store.Pools() {
		n.poolUsed.send(to, float64(p.AcquiredConns()), p.Name)
		n.poolIdle.send(to, float64(p.IdleConns()), p.Name)
		n.poolMax.send(to, float64(p.MaxConns()), p.Name)
		n.poolWaits.send(to, float64(p.EmptyAcquireCount()), p.Name)
		n.poolWaited.send(to, p.EmptyAcquireWaitTime().Seconds(), p.Name)
	}
	n.leading(to, s.Node.Leading())
}

func (n *node) leading(to chan<- prometheus.Metric, l *orchestrator.Leading) {
	n.leads.send(to, yes(l != nil))
	if l == nil {
		return
	}
	n.epoch.send(to, float64(l.Epoch))
	for i := range l.Duties {
		d := &l.Duties[i]
		n.dutyRuns.send(to, float64(d.Runs), d.Name)
		n.dutyFailures.send(to, float64(d.Failures), d.Name)
		n.dutyRunning.send(to, d.Running.Seconds(), d.Name)
		if d.Succeeded >= 0 {
			at := time.Now().Add(-d.Succeeded)
			n.dutySucceeded.send(to, float64(at.UnixMilli())/1e3, d.Name)
		}
	}
}
