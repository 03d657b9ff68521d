package main

import "fmt"

// goal is a ratio of rates that Tranche should reach.
type goal struct {
	against string
	least   float64 // 0: published as it is
}

// goals are the comparisons that docs/benchmarks.md makes.
func goals() []goal { return []goal{{"floor", 1}, {"floor-raw", 0}, {"river", 5}} }

// ratio is how many times the items a second of another contestant Tranche does, round by round: what disturbs the
// machine for longer than a round disturbs both.
type ratio struct {
	Against string  `json:"against"`
	Median  float64 `json:"median"`
	Low     float64 `json:"low"`
	High    float64 `json:"high"`
	Goal    float64 `json:"goal,omitempty"`
}

// ratios compares tranche with whichever others were measured, and says of the rest what is missing.
func ratios(results []result) (found []ratio, missing []string) {
	ours := find(results, "tranche")
	for _, g := range goals() {
		theirs := find(results, g.against)
		if ours == nil || theirs == nil {
			missing = append(missing, fmt.Sprintf("tranche / %s", g.against))
			continue
		}
		s := spreadOf(roundRatios(ours.Samples, theirs.Samples))
		found = append(found, ratio{Against: g.against, Median: s.median, Low: s.low, High: s.high, Goal: g.least})
	}
	return found, missing
}

// roundRatios divides the rates of the same rounds. Both have as many.
func roundRatios(ours, theirs []sample) []float64 {
	out := make([]float64, len(ours))
	for i := range ours {
		out[i] = ours[i].Rate / theirs[i].Rate
	}
	return out
}
