package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

const (
	formatText     = "text"
	formatMarkdown = "markdown"
	formatJSON     = "json"
)

// report is all that one run found out.
type report struct {
	Machine machine  `json:"machine"`
	Rounds  int      `json:"rounds"`
	Keys    string   `json:"keys"`
	Results []result `json:"results,omitempty"`
	Ratios  []ratio  `json:"ratios,omitempty"`
	Missing []string `json:"missing,omitempty"` // ratios that there cannot be, for want of a contestant
	Latency *latency `json:"latency,omitempty"`

	Holes     []holes      `json:"holes,omitempty"`
	Adaptive  []adaptive   `json:"adaptive,omitempty"`
	Fair      []fairness   `json:"fair,omitempty"`
	Isolation []isolation  `json:"isolation,omitempty"`
	Outages   []outageCase `json:"outages,omitempty"`
	Others    []otherCase  `json:"misbehaviour,omitempty"`
	Many      []many       `json:"many,omitempty"`
	Old       []old        `json:"old,omitempty"`
}

func (r *report) write(w io.Writer, format string) error {
	if format == formatJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	var text strings.Builder
	for _, note := range r.notes() {
		fmt.Fprintf(&text, "- %s\n", note)
	}
	for _, t := range r.tables() {
		text.WriteByte('\n')
		write := t.text
		if format == formatMarkdown {
			write = t.markdown
		}
		if err := write(&text); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// tables are those that have something in them.
func (r *report) tables() []*table {
	all := []*table{r.rates(), r.costs(), r.comparison(), r.latencies(), r.refills(), r.adaptation(), r.sweeps(), r.fairnesses(),
		r.isolations(), r.outages(), r.others(), r.manies(), r.olds()}
	return slices.DeleteFunc(all, func(t *table) bool { return len(t.rows) == 0 })
}

func (r *report) rates() *table {
	t := &table{heading: []string{
		"contestant", "items", "items/s, median", "min–max", "seconds, median", "of it intake",
	}}
	for _, res := range r.Results {
		rate := res.rate()
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
	for _, res := range r.Results {
		t.add(res.Name, thousands(res.spread(func(s sample) float64 { return s.WALPerItem }).median), res.cpu(),
			mebibytes(res.spread(func(s sample) float64 { return float64(s.PeakRSS) }).high),
			mebibytes(res.spread(func(s sample) float64 { return float64(s.PeakAnon) }).high),
			mebibytes(res.spread(func(s sample) float64 { return float64(s.PeakStore) }).high))
	}
	return t
}

func (r *report) comparison() *table {
	t := &table{heading: []string{"ratio of items/s, round by round", "median", "min–max", "to reach"}}
	for _, q := range r.Ratios {
		goal := "–"
		if q.Goal > 0 {
			goal = fmt.Sprintf("%.2f", q.Goal)
		}
		t.add(q.Of, fmt.Sprintf("%.2f", q.Median), fmt.Sprintf("%.2f–%.2f", q.Low, q.High), goal)
	}
	return t
}

func (r *report) latencies() *table {
	t := &table{heading: []string{"latency", "runs", "p50 ms", "p99 ms", "max ms"}}
	if l := r.Latency; l != nil {
		t.add(l.Single.row("1 item: start to completion event", l.Singles)...)
		t.add(l.Last.row("1 item: last reply to completion event", l.Singles)...)
		t.add(l.RunLast.row(fmt.Sprintf("%s items: last reply to completion event", thousands(float64(l.Items))), l.Runs)...)
	}
	return t
}

func (p percentiles) row(name string, runs int) []string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond)) }
	return []string{name, fmt.Sprint(runs), ms(p.P50), ms(p.P99), ms(p.Max)}
}

// cpu returns the median by process.
func (r result) cpu() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(r.Samples[0].CPU)) {
		each := r.spread(func(s sample) float64 { return s.CPU[name] / float64(s.Items) }).median
		parts = append(parts, fmt.Sprintf("%s %.1f", name, each*1e6))
	}
	return strings.Join(parts, ", ")
}

// notes say what the numbers come from.
func (r *report) notes() []string {
	notes := []string{r.Machine.String()}
	if len(r.Results) > 0 {
		notes = append(notes, fmt.Sprintf("Rounds: %d, interleaved. Keys in the input: %s.", r.Rounds, r.Keys))
	}
	for _, res := range r.Results {
		if res.Setup != "" {
			notes = append(notes, fmt.Sprintf("%s: %s.", res.Name, res.Setup))
		}
	}
	if len(r.Missing) > 0 && len(r.Results) > 0 {
		notes = append(notes, "Not measured in this run: "+strings.Join(r.Missing, ", ")+".")
	}
	return notes
}

// table is rows of cells under a heading.
type table struct {
	heading []string
	rows    [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// text writes the table in columns.
func (t *table) text(w io.Writer) error {
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{t.heading}, t.rows...) {
		if _, err := fmt.Fprintln(columns, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return columns.Flush()
}

// markdown writes the table as Markdown.
func (t *table) markdown(w io.Writer) error {
	rule := slices.Repeat([]string{"---"}, len(t.heading))
	for _, row := range append([][]string{t.heading, rule}, t.rows...) {
		if _, err := fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | ")); err != nil {
			return err
		}
	}
	return nil
}

// thousands writes a whole number in groups of three.
func thousands(v float64) string {
	digits := fmt.Sprintf("%.0f", v)
	var grouped strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			grouped.WriteByte(',')
		}
		grouped.WriteRune(d)
	}
	return grouped.String()
}

// mebibytes writes a size, a dash for none.
func mebibytes(bytes float64) string {
	if bytes == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f MiB", bytes/(1<<20))
}

// share writes a part of 1, a dash for none.
func share(of float64) string {
	if of == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f%%", of*100)
}

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
