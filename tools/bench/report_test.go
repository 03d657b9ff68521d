package main

import (
	"slices"
	"testing"
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
