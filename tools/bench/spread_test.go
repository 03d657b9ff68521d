package main

import (
	"testing"
	"time"
)

func TestSpreadOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values []float64
		want   spread
	}{
		"one":  {[]float64{7}, spread{7, 7, 7}},
		"odd":  {[]float64{9, 1, 4}, spread{4, 1, 9}},
		"even": {[]float64{4, 1, 9, 2}, spread{3, 1, 9}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := spreadOf(c.values); got != c.want {
				t.Errorf("spreadOf(%v) = %v, want %v", c.values, got, c.want)
			}
		})
	}
}

func TestSpreadOfLeavesItsInputAlone(t *testing.T) {
	t.Parallel()
	values := []float64{3, 1, 2}
	spreadOf(values)
	if values[0] != 3 || values[1] != 1 || values[2] != 2 {
		t.Errorf("the input is now %v", values)
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
