package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/tools/demokit"
)

type report struct {
	machine machine
	rounds  int
	keys    string
	note    int
	results []result
	scenes  []*table // tables besides those of contestants
}

func (r *report) table(heading ...string) *table {
	t := &table{heading: heading}
	r.scenes = append(r.scenes, t)
	return t
}

// String returns the report as Markdown: notes and non-empty tables.
func (r *report) String() string {
	ratios, missing := ratios(r.results)
	var text strings.Builder
	for _, note := range r.notes(missing) {
		fmt.Fprintf(&text, "- %s\n", note)
	}
	for _, t := range append([]*table{r.rates(), r.costs(), comparison(ratios)}, r.scenes...) {
		if len(t.rows) == 0 {
			continue
		}
		rule := slices.Repeat([]string{"---"}, len(t.heading))
		text.WriteByte('\n')
		for _, row := range append([][]string{t.heading, rule}, t.rows...) {
			fmt.Fprintf(&text, "| %s |\n", strings.Join(row, " | "))
		}
	}
	return text.String()
}

func (r *report) rates() *table {
	t := &table{heading: []string{
		"contestant", "items", "items/s, median", "min–max", "seconds, median", "of it intake",
	}}
	for _, res := range r.results {
		rate := spreadOf(res.rates())
		seconds := res.spread(func(s sample) float64 { return s.Seconds })
		t.add(res.Name, thousands(float64(res.Samples[0].Items)), thousands(rate.median),
			thousands(rate.low)+"–"+thousands(rate.high), fmt.Sprintf("%.2f", seconds.median),
			share(res.spread(func(s sample) float64 { return s.Intake / s.Seconds }).median))
	}
	return t
}

func (r *report) costs() *table {
	t := &table{heading: []string{
		"contestant", "WAL bytes/item", "CPU µs/item, by process",
		"node peak RSS", "of it anonymous", "JetStream files, peak",
	}}
	for _, res := range r.results {
		t.add(res.Name, thousands(res.spread(func(s sample) float64 { return s.WALPerItem }).median), res.cpu(),
			mebibytes(res.spread(func(s sample) float64 { return float64(s.PeakRSS) }).high),
			mebibytes(res.spread(func(s sample) float64 { return float64(s.PeakAnon) }).high),
			mebibytes(res.spread(func(s sample) float64 { return float64(s.PeakStore) }).high))
	}
	return t
}

func comparison(ratios []ratio) *table {
	t := &table{heading: []string{"ratio of items/s, round by round", "median", "min–max", "to reach"}}
	for _, q := range ratios {
		goal := "–"
		if q.goal > 0 {
			goal = fmt.Sprintf("%.2f", q.goal)
		}
		t.add(q.of, fmt.Sprintf("%.2f", q.median), fmt.Sprintf("%.2f–%.2f", q.low, q.high), goal)
	}
	return t
}

func (r result) cpu() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(r.Samples[0].CPU)) {
		each := r.spread(func(s sample) float64 { return s.CPU[name] / float64(s.Items) }).median
		parts = append(parts, fmt.Sprintf("%s %.1f", name, each*1e6))
	}
	return strings.Join(parts, ", ")
}

func (r *report) notes(missing []string) []string {
	notes := []string{r.machine.String()}
	if len(r.results) > 0 {
		notes = append(notes, fmt.Sprintf("Rounds: %d, interleaved. Keys in the input: %s. Bytes of a note: %d.",
			r.rounds, r.keys, r.note))
	}
	for _, res := range r.results {
		if res.Setup != "" {
			notes = append(notes, fmt.Sprintf("%s: %s.", res.Name, res.Setup))
		}
	}
	if len(missing) > 0 && len(r.results) > 0 {
		notes = append(notes, "Not measured in this run: "+strings.Join(missing, ", ")+".")
	}
	return notes
}

type table struct {
	heading []string
	rows    [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func thousands(v float64) string { return demokit.Grouped(int64(math.Round(v))) }

func mebibytes(bytes float64) string {
	if bytes == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f MiB", bytes/(1<<20))
}

func share(of float64) string {
	if of == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f%%", of*100)
}

// goal is a ratio of rates that Tranche should reach.
type goal struct {
	ours, against string
	runs          float64 // runs of the other per run of Tranche
	least         float64 // 0: published without a goal
}

func (g goal) String() string {
	if g.runs > 1 {
		return fmt.Sprintf("%s / %.0f runs of %s", g.ours, g.runs, g.against)
	}
	return g.ours + " / " + g.against
}

// goals are the comparisons in docs/benchmarks.md. A flow of three stages is compared with three runs of one.
func goals() []goal {
	return []goal{
		{"tranche", "floor", 1, 1}, {"tranche", "floor-raw", 1, 0}, {"tranche", "river", 1, 5},
		{"ordered", "tranche", 1, 0.6}, {"flow", "tranche", 3, 0}, {"gather", "floor-gather", 1, 0},
	}
}

// ratio compares our items per second with another contestant's, round by round.
type ratio struct {
	spread

	of   string  // such as "tranche / floor"
	goal float64 // 0: none
}

func ratios(results []result) (found []ratio, missing []string) {
	for _, g := range goals() {
		ours, theirs := find(results, g.ours), find(results, g.against)
		if ours == nil || theirs == nil {
			missing = append(missing, g.String())
			continue
		}
		s := spreadOf(roundRatios(ours.rates(), theirs.rates(), g.runs))
		found = append(found, ratio{s, g.String(), g.least})
	}
	return found, missing
}

// roundRatios divides the numbers of the same rounds, scaled by runs. Both have equally many rounds.
func roundRatios(ours, theirs []float64, runs float64) []float64 {
	out := make([]float64, len(ours))
	for i := range ours {
		out[i] = runs * ours[i] / theirs[i]
	}
	return out
}

type spread struct{ median, low, high float64 }

// spreadOf requires at least one value.
func spreadOf(values []float64) spread {
	values = slices.Sorted(slices.Values(values))
	mid := len(values) / 2
	median := values[mid]
	if len(values)%2 == 0 {
		median = (values[mid-1] + values[mid]) / 2
	}
	return spread{median, values[0], values[len(values)-1]}
}

type percentiles struct{ p50, p99, max time.Duration }

// percentilesOf requires at least one time. A percentile is the smallest time that this share does not exceed.
func percentilesOf(times []time.Duration) percentiles {
	times = slices.Sorted(slices.Values(times))
	rank := func(share float64) time.Duration {
		return times[int(math.Ceil(share*float64(len(times))))-1]
	}
	return percentiles{p50: rank(0.50), p99: rank(0.99), max: times[len(times)-1]}
}

func (p percentiles) row(name string, runs int) []string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond)) }
	return []string{name, fmt.Sprint(runs), ms(p.p50), ms(p.p99), ms(p.max)}
}
