package main

import "fmt"

// goal is a ratio of rates that Tranche should reach.
type goal struct {
	ours, against string
	runs          float64 // of the other, for one of ours
	least         float64 // 0: published as it is
}

func (g goal) String() string {
	if g.runs > 1 {
		return fmt.Sprintf("%s / %.0f runs of %s", g.ours, g.runs, g.against)
	}
	return g.ours + " / " + g.against
}

// goals are the comparisons that docs/benchmarks.md makes. A flow of three stages stands beside three runs of one.
func goals() []goal {
	return []goal{
		{"tranche", "floor", 1, 1}, {"tranche", "floor-raw", 1, 0}, {"tranche", "river", 1, 5}, {"flow", "tranche", 3, 0},
		{"gather", "floor-gather", 1, 0},
	}
}

// ratio is how many times the items a second of another contestant one of ours does, round by round: what disturbs the
// machine for longer than a round disturbs both.
type ratio struct {
	Of     string  `json:"of"` // such as "tranche / floor"
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Goal   float64 `json:"goal,omitempty"`
}

// ratios compares whatever was measured, and says of the rest what is missing.
func ratios(results []result) (found []ratio, missing []string) {
	for _, g := range goals() {
		ours, theirs := find(results, g.ours), find(results, g.against)
		if ours == nil || theirs == nil {
			missing = append(missing, g.String())
			continue
		}
		s := spreadOf(roundRatios(ours.Samples, theirs.Samples, g.runs))
		found = append(found, ratio{Of: g.String(), Median: s.median, Low: s.low, High: s.high, Goal: g.least})
	}
	return found, missing
}

// roundRatios divides the rates of the same rounds, the others doing their work as many times. Both have as many rounds.
func roundRatios(ours, theirs []sample, runs float64) []float64 {
	out := make([]float64, len(ours))
	for i := range ours {
		out[i] = runs * ours[i].Rate / theirs[i].Rate
	}
	return out
}
