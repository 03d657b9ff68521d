package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
