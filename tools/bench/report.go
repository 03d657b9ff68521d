package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
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
