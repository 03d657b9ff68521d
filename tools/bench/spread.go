package main

import (
	"math"
	"slices"
	"time"
)

// spread is a median with its range.
type spread struct{ median, low, high float64 }

// spreadOf needs at least one value.
func spreadOf(values []float64) spread {
	values = slices.Sorted(slices.Values(values))
	mid := len(values) / 2
	median := values[mid]
	if len(values)%2 == 0 {
		median = (values[mid-1] + values[mid]) / 2
	}
	return spread{median, values[0], values[len(values)-1]}
}

// percentilesOf needs at least one time. A percentile is the smallest time that so many of them do not exceed.
func percentilesOf(times []time.Duration) percentiles {
	times = slices.Sorted(slices.Values(times))
	rank := func(share float64) time.Duration {
		return times[int(math.Ceil(share*float64(len(times))))-1]
	}
	return percentiles{P50: rank(0.50), P99: rank(0.99), Max: times[len(times)-1]}
}
