package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

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
