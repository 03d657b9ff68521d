// Package metrics measures a node for Prometheus: counters of its work, and the state of the whole system, read at
// scrapes.
//
// Guarantees: no label holds run IDs, item keys or messages. Each label has a bounded number of values: beyond
// [Config.Endpoints] endpoints, and as many collectors, the rest is summed under [Other]; names that only outside
// messages claim get no value. Metrics of the database come from the leader only, so that sums over nodes are right.
// They are read at most every [Config.Every], within a few seconds; while that fails the rest is still reported.
//
// It judges nothing: alert rules are in deploy/prometheus. Package tracing exports the same metrics by OTLP.
//
// A Metrics is safe for concurrent use.
package metrics

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Defaults of Config.
const (
	DefaultEndpoints = 250
	// DefaultEvery is the time between two readings, however many scrapes there are; longer if readings are slow.
	DefaultEvery = 10 * time.Second
	// DefaultTimeout limits a whole reading: scrapers usually wait for ten seconds.
	DefaultTimeout = 5 * time.Second
)

const (
	// maxReasons and maxRequests limit the distinct reasons of quarantined replies, and the distinct API requests.
	maxReasons, maxRequests = 50, 2000
	// scrapesAtOnce limits concurrent scrapes.
	scrapesAtOnce = 8
)

// Config configures a Metrics. A zero field means its default.
type Config struct {
	Log   *zap.Logger // nil: none
	Build buildinfo.Info
	// Registerer gets all metrics; nil: a new registry that includes process and Go metrics.
	Registerer prometheus.Registerer
	Endpoints  int           // distinct endpoints, and as many collectors
	Every      time.Duration // between two readings of the database
	Timeout    time.Duration // of a reading; 0: DefaultTimeout
}

// Metrics records a node's work and serves it to Prometheus.
type Metrics struct {
	log      *zap.Logger
	catalog  catalog
	gatherer *prometheus.Registry // nil: another registry
	handler  http.Handler
	sources  atomic.Pointer[Sources]
	judge    atomic.Pointer[health.Watch]
	unready  atomic.Pointer[func(context.Context) map[string]bool]

	endpoints, collectors, namespaces, reasons, requests *names

	items, ended, asked *prometheus.CounterVec
	happened            map[core.Event]*event
	took                map[core.Timing]prometheus.Histogram
}

var _ core.Meter = (*Metrics)(nil)

// New returns a Metrics. Until Bind it has only recorded metrics.
func New(config Config) (*Metrics, error) {
	m := &Metrics{log: config.Log, reasons: newNames(maxReasons), requests: newNames(maxRequests)}
	m.log = cmp.Or(m.log, zap.NewNop())
	if config.Endpoints < 0 || config.Every < 0 {
		return nil, errors.New("metrics: Config.Endpoints and Config.Every must not be negative")
	}
	most := cmp.Or(config.Endpoints, DefaultEndpoints)
	m.endpoints, m.collectors, m.namespaces = newNames(most), newNames(most), newNames(most)
	own := []prometheus.Collector{newBuild(&m.catalog, config.Build)}
	own = append(own, m.counted()...)
	own = append(own, newNode(m), newSystem(m, &config))
	to := config.Registerer
	if to == nil {
		m.gatherer = prometheus.NewRegistry()
		to = m.gatherer
		own = append(own, collectors.NewGoCollector(),
			collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		m.handler = promhttp.HandlerFor(m.gatherer, promhttp.HandlerOpts{EnableOpenMetrics: true,
			MaxRequestsInFlight: scrapesAtOnce, ErrorLog: zap.NewStdLog(m.log), ErrorHandling: promhttp.ContinueOnError})
	}
	for _, c := range own {
		if err := to.Register(c); err != nil {
			return nil, errors.Join(errors.New("metrics: register"), err)
		}
	}
	return m, nil
}

// Gatherer returns the registry; nil if Config.Registerer is used.
func (m *Metrics) Gatherer() prometheus.Gatherer {
	if m.gatherer == nil {
		return nil
	}
	return m.gatherer
}

// ServeHTTP answers a scrape.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if m.handler == nil {
		http.Error(w, "the program that embeds this node has its metrics", http.StatusNotFound)
		return
	}
	m.handler.ServeHTTP(w, r)
}

// Catalog lists our metrics by name, without those of the process and Go.
func (m *Metrics) Catalog() []Metric {
	all := slices.Clone(m.catalog.all)
	slices.SortFunc(all, func(a, b Metric) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// event is a counter of events: to add one, add a row to events.
type event struct {
	name, help string
	label      string              // of the kind of event; empty: none
	value      func(string) string // of the label
	*prometheus.CounterVec
}

func (m *Metrics) events() map[core.Event]*event {
	plain := func(of string) string { return of }
	return map[core.Event]*event{
		core.EventSent: {name: "tranche_requests_sent_total", label: "endpoint", value: m.endpoints.of,
			help: "Requests sent, and chunks the node itself began."},
		core.EventAgain: {name: "tranche_requests_resent_total", label: "endpoint", value: m.endpoints.of,
			help: "Requests sent again."},
		core.EventRedelivered: {name: "tranche_replies_redelivered_total", label: "endpoint",
			value: m.endpoints.claimed, help: "Messages of replies delivered more than once."},
		core.EventQuarantined: {name: "tranche_replies_quarantined_total", label: "reason", value: m.reasons.of,
			help: "Messages put into quarantine."},
		core.EventDead: {name: "tranche_dead_letters_total", label: "endpoint", value: m.endpoints.claimed,
			help: "Requests kept as dead letters."},
		core.EventCompleted: {name: "tranche_runs_completed_total", label: "outcome", value: plain,
			help: "Runs, or later generations, completed by this node: outcome is clean or failures."},
		core.EventLoaded:      {name: "tranche_intake_rows_total", help: "Items read for runs, failed loads included."},
		core.EventLoadedBytes: {name: "tranche_intake_bytes_total", help: "Bytes of payloads read for runs."},
	}
}

func timings() map[core.Timing][2]string {
	return map[core.Timing][2]string{
		core.TimingClaim: {"tranche_claim_duration_seconds", "Duration of claims with work."},
		core.TimingPublish: {"tranche_publish_duration_seconds",
			"From claim to JetStream's acknowledgement."},
		core.TimingRecord: {"tranche_record_duration_seconds",
			"Duration of transactions that record outcomes."},
		core.TimingCompletion: {"tranche_run_completion_delay_seconds",
			"From a run's last reply to its completion event."},
	}
}

func (m *Metrics) counted() []prometheus.Collector {
	c := &m.catalog
	m.items = c.counters("tranche_items_finished_total",
		"Items that ended at a step: outcome is done or failed.", "endpoint", "outcome")
	m.ended = c.counters("tranche_requests_ended_total",
		"Requests that ended: answered, refused (whole), expired, or lost with a node, a stream or a message.",
		"endpoint", "outcome")
	m.asked = c.counters("tranche_api_requests_total",
		"API requests.", "route", "role", "code")
	all := []prometheus.Collector{m.items, m.ended, m.asked}
	m.happened = m.events()
	for _, e := range m.happened {
		if e.label == "" {
			e.CounterVec = c.counters(e.name, e.help)
			e.WithLabelValues() // series without labels exist from the start
		} else {
			e.CounterVec = c.counters(e.name, e.help, e.label)
		}
		all = append(all, e.CounterVec)
	}
	m.took = map[core.Timing]prometheus.Histogram{}
	for what, t := range timings() {
		m.took[what] = c.histogram(t[0], t[1])
		all = append(all, m.took[what])
	}
	return all
}

// Took implements core.Meter.
func (m *Metrics) Took(what core.Timing, d time.Duration) { m.took[what].Observe(d.Seconds()) }

// Happened implements core.Meter.
func (m *Metrics) Happened(what core.Event, of string, n int) {
	e := m.happened[what]
	if e.label == "" {
		e.WithLabelValues().Add(float64(n))
	} else {
		e.WithLabelValues(e.value(of)).Add(float64(n))
	}
}

// Settled implements core.Meter.
func (m *Metrics) Settled(of []settle.Settled) {
	for i := range of {
		s := &of[i]
		endpoint := m.endpoints.of(s.Endpoint)
		// Zeros are added too: a series that begins with its first failure would show no increase.
		m.items.WithLabelValues(endpoint, "done").Add(float64(s.Done))
		m.items.WithLabelValues(endpoint, "failed").Add(float64(s.Failed))
		m.ended.WithLabelValues(endpoint, "answered").Add(float64(s.Answered))
		m.ended.WithLabelValues(endpoint, "refused").Add(float64(s.Refused))
		m.ended.WithLabelValues(endpoint, "expired").Add(float64(s.Expired))
		m.ended.WithLabelValues(endpoint, "lost").Add(float64(s.Lost))
	}
}

// Asked records an answered API request.
func (m *Metrics) Asked(route, role string, code int) {
	status := strconv.Itoa(code)
	if m.requests.of(route+" "+role+" "+status) == Other {
		route, role = Other, Other
	}
	m.asked.WithLabelValues(route, role, status).Inc()
}

// Watch sets, once, what finds conditions and forecasts, and the reasons why the node is not ready.
func (m *Metrics) Watch(judge *health.Watch, unready func(context.Context) map[string]bool) {
	m.judge.Store(judge)
	m.unready.Store(&unready)
}

// Other is the label value of everything without a separate value. No endpoint or collector can have this name.
const Other = "(other)"

// names limits the values of a label. The first ones stay until the process ends, because a series that disappears
// and returns looks like a counter reset.
type names struct {
	mu    sync.Mutex
	most  int
	known map[string]bool
}

func newNames(most int) *names { return &names{most: most, known: map[string]bool{}} }

// of returns the label value of a name: the name itself while there is room.
func (n *names) of(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.known[name]:
		return name
	case len(n.known) >= n.most:
		return Other
	}
	n.known[name] = true
	return name
}

// claimed returns the label value of a name claimed by an outside message: the name itself only if already known.
func (n *names) claimed(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known[name] {
		return name
	}
	return Other
}
