package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric describes one metric of ours, for people.
type Metric struct {
	Name, Type string
	Labels     []string
	Help       string
	Leader     bool // told by the leader alone
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

// row is a metric whose values are read when someone asks: to add one, add a row to its table.
type row[From any] struct {
	name, help string
	label      string // what its series differ by; empty: there is one, and of several they stand with commas between
	values     func(from From, put func(value float64, labels ...string))
}

// table is metrics that are read from the same.
type table[From any] struct {
	descs []*prometheus.Desc
	typ   prometheus.ValueType
	rows  []row[From]
}

// gauges is a table of what goes up and down.
func gauges[From any](c *catalog, rows []row[From]) *table[From] {
	return newTable(c, typeGauge, prometheus.GaugeValue, rows)
}

// totals is a table of what only grows.
func totals[From any](c *catalog, rows []row[From]) *table[From] {
	return newTable(c, typeCounter, prometheus.CounterValue, rows)
}

func newTable[From any](c *catalog, name string, typ prometheus.ValueType, rows []row[From]) *table[From] {
	t := &table[From]{typ: typ, rows: rows}
	for _, r := range rows {
		var labels []string
		if r.label != "" {
			labels = strings.Split(r.label, ",")
		}
		c.note(name, r.name, r.help, labels)
		t.descs = append(t.descs, prometheus.NewDesc(r.name, r.help, labels, nil))
	}
	return t
}

// Describe is part of prometheus.Collector.
func (t *table[From]) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range t.descs {
		to <- desc
	}
}

// collect tells the values of all.
func (t *table[From]) collect(to chan<- prometheus.Metric, from From) {
	for i, r := range t.rows {
		r.values(from, func(value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(t.descs[i], t.typ, value, labels...)
		})
	}
}

// one is the value of a metric that has one series.
func one[From any, N int | int64 | float64](value func(From) N) func(From, func(float64, ...string)) {
	return func(from From, put func(float64, ...string)) { put(float64(value(from))) }
}

func yes(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
