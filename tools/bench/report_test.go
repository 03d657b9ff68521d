package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func resultOf(name string, rates ...float64) result {
	r := result{Name: name}
	for _, rate := range rates {
		cpu := map[string]float64{"client": 1}
		r.Samples = append(r.Samples, sample{Items: 1000, Seconds: 1000 / rate, Rate: rate, CPU: cpu})
	}
	return r
}

func TestRatiosAreTakenRoundByRound(t *testing.T) {
	t.Parallel()
	found, missing := ratios([]result{resultOf("tranche", 100, 50, 300), resultOf("floor", 100, 25, 100)})
	want := []ratio{{spread{2, 1, 3}, "tranche / floor", 1}}
	if !slices.Equal(found, want) {
		t.Errorf("ratios = %v, want %v", found, want)
	}
	if want := []string{"tranche / floor-raw", "tranche / river", "flow / 3 runs of tranche",
		"gather / floor-gather"}; !slices.Equal(missing, want) {
		t.Errorf("missing = %q, want %q", missing, want)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	r := report{rounds: 1, keys: "ordered", results: []result{resultOf("tranche", 123_456)}}
	r.table("a scene", "without rows")
	r.table("latency", "runs", "p50 ms", "p99 ms", "max ms").add(
		percentiles{p50: 12_340 * time.Microsecond}.row("1 item: start to completion event", 200)...)
	text := r.String()
	for _, line := range []string{
		"| contestant | items | items/s, median | min–max | seconds, median | of it intake |",
		"| tranche | 1,000 | 123,456 | 123,456–123,456 | 0.01 | – |",
		"| 1 item: start to completion event | 200 | 12.3 | 0.0 | 0.0 |",
		"- Not measured in this run: tranche / floor, tranche / floor-raw, tranche / river, flow / 3 runs of tranche, " +
			"gather / floor-gather.",
	} {
		if !slices.Contains(strings.Split(text, "\n"), line) {
			t.Errorf("no line %q in\n%s", line, text)
		}
	}
	if strings.Contains(text, "round by round") || strings.Contains(text, "a scene") {
		t.Errorf("a table without rows:\n%s", text)
	}
}

func TestPercentilesOf(t *testing.T) {
	t.Parallel()
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	for name, c := range map[string]struct {
		times []time.Duration
		want  percentiles
	}{
		"one":     {[]time.Duration{5}, percentiles{5, 5, 5}},
		"two":     {[]time.Duration{9, 5}, percentiles{5, 9, 9}},
		"hundred": {hundred, percentiles{50, 99, 100}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := percentilesOf(c.times); got != c.want {
				t.Errorf("percentilesOf = %v, want %v", got, c.want)
			}
		})
	}
}
