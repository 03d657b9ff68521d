package metrics

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// fakes is a table as a collector.
type fakes struct{ *table[*nodeSays] }

func (f fakes) Collect(to chan<- prometheus.Metric) { f.collect(to, &nodeSays{leads: true}) }

// To add a metric, a row is added to its table, and nothing else: it is described, told and listed.
func TestAMetricIsOneRow(t *testing.T) {
	t.Parallel()
	var c catalog
	rows := append(nodeGauges(), row[*nodeSays]{"tranche_fake", "A fake.", "kind,of",
		func(n *nodeSays, put func(float64, ...string)) { put(6+yes(n.leads), "a", "b") }})
	told := fakes{gauges(&c, rows)}
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(told); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() == "tranche_fake" {
			sum += f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	if sum != 7 {
		t.Errorf("it is told as %v; want 7", sum)
	}
	if !slices.ContainsFunc(c.all, func(m Metric) bool { return m.Name == "tranche_fake" && len(m.Labels) == 2 }) {
		t.Errorf("it is not in the catalog: %v", c.all)
	}
}
