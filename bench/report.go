package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

const (
	formatText     = "text"
	formatMarkdown = "markdown"
	formatJSON     = "json"
)

// report is all that one run found out.
type report struct {
	Machine    machine  `json:"machine"`
	Items      int      `json:"items"`
	RiverItems int      `json:"river_items"`
	Rounds     int      `json:"rounds"`
	Keys       string   `json:"keys"`
	Results    []result `json:"results"`
	Latency    *latency `json:"latency,omitempty"`
}

func (r report) write(w io.Writer, format string) error {
	switch format {
	case formatJSON:
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	case formatMarkdown:
		return r.writeMarkdown(w)
	default:
		return r.writeText(w)
	}
}

// heading is the first row of the table of rates.
var heading = []string{
	"contestant", "items", "items/s", "min–max", "× floor", "× river", "WAL bytes/item", "CPU seconds", "node peak RSS",
}

// rows is the table of rates.
func (r report) rows() [][]string {
	rows := make([][]string, len(r.Results))
	for i, res := range r.Results {
		rate := res.rate()
		rows[i] = []string{
			res.Name,
			thousands(float64(res.Samples[0].Items)),
			thousands(rate.median),
			thousands(rate.low) + "–" + thousands(rate.high),
			r.ratio(res, "floor"),
			r.ratio(res, "river"),
			thousands(res.spread(func(s sample) float64 { return s.WALPerItem }).median),
			res.cpu(),
			res.memory(),
		}
	}
	return rows
}

// ratio divides the medians of rates.
func (r report) ratio(res result, by string) string {
	other := find(r.Results, by)
	if other == nil {
		return "–"
	}
	return fmt.Sprintf("%.2f", res.rate().median/other.rate().median)
}

// cpu returns the median seconds by process.
func (r result) cpu() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(r.Samples[0].CPU)) {
		seconds := r.spread(func(s sample) float64 { return s.CPU[name] }).median
		parts = append(parts, fmt.Sprintf("%s %.1f", name, seconds))
	}
	return strings.Join(parts, ", ")
}

func (r result) memory() string {
	peak := r.spread(func(s sample) float64 { return float64(s.PeakRSS) }).high
	if peak == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f MiB", peak/(1<<20))
}

// notes are the lines under the table.
func (r report) notes() []string {
	notes := []string{
		r.Machine.String(),
		fmt.Sprintf("%d rounds, interleaved; medians. Keys in the input: %s.", r.Rounds, r.Keys),
	}
	for _, res := range r.Results {
		if res.Setup != "" {
			notes = append(notes, fmt.Sprintf("%s: %s.", res.Name, res.Setup))
		}
	}
	return notes
}

func (r report) writeText(w io.Writer) error {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{heading}, r.rows()...) {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, note := range r.notes() {
		fmt.Fprintln(&text, note)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func (r report) writeMarkdown(w io.Writer) error {
	var text strings.Builder
	for _, note := range r.notes() {
		fmt.Fprintf(&text, "- %s\n", note)
	}
	text.WriteByte('\n')
	writeRow(&text, heading)
	writeRow(&text, slices.Repeat([]string{"---"}, len(heading)))
	for _, row := range r.rows() {
		writeRow(&text, row)
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func writeRow(text *strings.Builder, cells []string) {
	fmt.Fprintf(text, "| %s |\n", strings.Join(cells, " | "))
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
