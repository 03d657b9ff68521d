package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric describes one of our metrics.
type Metric struct {
	Name, Type string
	Labels     []string
	Help       string
	Leader     bool // only from the leader
}

// Types of metrics.
const (
	typeCounter   = "counter"
	typeGauge     = "gauge"
	typeHistogram = "histogram"
)

type catalog struct {
	all    []Metric
	leader bool // the following ones are the leader's
}

func (c *catalog) note(typ, name, help string, labels []string) {
	c.all = append(c.all, Metric{Name: name, Type: typ, Labels: labels, Help: help, Leader: c.leader})
}

func (c *catalog) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c.note(typeCounter, name, help, labels)
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// For native histograms: buckets grow by a tenth, and there are at most nativeBuckets.
const (
	nativeGrowth  = 1.1
	nativeBuckets = 100
)

// histogram also has classic buckets from a millisecond to a minute.
func (c *catalog) histogram(name, help string) prometheus.Histogram {
	c.note(typeHistogram, name, help, nil)
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help,
		Buckets:                     []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		NativeHistogramBucketFactor: nativeGrowth, NativeHistogramMaxBucketNumber: nativeBuckets,
		NativeHistogramMinResetDuration: time.Hour,
	})
}

// row is a metric that is read at scrapes: to add one, add a row to its table.
type row[From any] struct {
	name, help string
	label      string // of its series; empty: a single series; several are separated by commas
	values     func(from From, put func(value float64, labels ...string))
}

type table[From any] struct {
	descs []*prometheus.Desc
	typ   prometheus.ValueType
	rows  []row[From]
}

func gauges[From any](c *catalog, rows []row[From]) *table[From] {
	return newTable(c, typeGauge, prometheus.GaugeValue, rows)
}

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

func (t *table[From]) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range t.descs {
		to <- desc
	}
}

func (t *table[From]) collect(to chan<- prometheus.Metric, from From) {
	for i, r := range t.rows {
		r.values(from, func(value float64, labels ...string) {
			to <- prometheus.MustNewConstMetric(t.descs[i], t.typ, value, labels...)
		})
	}
}

func one[From any, N int | int64 | float64](value func(From) N) func(From, func(float64, ...string)) {
	return func(from From, put func(float64, ...string)) { put(float64(value(from))) }
}

func yes(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
