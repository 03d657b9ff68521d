package metrics

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tranchehq/tranche/internal/testing/testenv"
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
	testenv.NoError(t, registry.Register(told))
	families := testenv.Must(registry.Gather())(t)
	sum := 0.0
	for _, f := range families {
		if f.GetName() == "tranche_fake" {
			sum += f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	testenv.Same(t, sum, 7, "it is told as")
	if !slices.ContainsFunc(c.all, func(m Metric) bool { return m.Name == "tranche_fake" && len(m.Labels) == 2 }) {
		t.Errorf("it is not in the catalog: %v", c.all)
	}
}
