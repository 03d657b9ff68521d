package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/tranchehq/tranche/orchestrator/client"
)

// document prints one JSON document.
func (c *console) document(v any) error {
	encoder := json.NewEncoder(c.out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(v); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

// keep has a request's answer kept as it was sent, for sent.
func (c *console) keep() client.CallOption { return client.Raw(&c.answer) }

// sent prints the answer that was kept last, as the server sent it: also what this program does not know.
func (c *console) sent() error {
	var out bytes.Buffer
	if err := json.Indent(&out, c.answer, "", "  "); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	out.WriteByte('\n')
	if _, err := c.out.Write(out.Bytes()); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

func (c *console) printf(format string, args ...any) error {
	if _, err := fmt.Fprintf(c.out, format, args...); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

// isTerminal reports whether a person looks at w.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// width is how many columns w has.
func width(w io.Writer) int {
	if file, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(file.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 80
}

func osUser() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return os.Getenv("USER")
}

// room is how many characters a line may have: on a terminal its columns, elsewhere 0 for any number.
func (c *console) room() int {
	if isTerminalOut(c) {
		return c.columns
	}
	return 0
}

// narrow is the room of a line that has no place for more than what matters most.
func narrow(room int) bool { return room > 0 && room < 100 }

// short cuts a text to a number of characters.
func short(s string, limit int) string {
	runes := []rune(s)
	if len(runes) <= limit {
		return s
	}
	return string(runes[:max(limit-1, 0)]) + "…"
}

// pace writes a number a second. What is slow is not nothing.
func pace(rate float64) string {
	switch {
	case rate > 0 && rate < 0.1:
		return fmt.Sprintf("%.1g", rate)
	case rate < 10:
		return fmt.Sprintf("%.1f", rate)
	default:
		return count(int64(min(rate, 1e18)))
	}
}

// count writes a number with separators: 1,234,567.
func count(n int64) string {
	digits, first := strconv.FormatInt(n, 10), 0
	if n < 0 {
		first = len("-")
	}
	for i := len(digits) - 3; i > first; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// span writes a duration as people say it: 0.8s, 12s, 3m05s, 2h10m.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	default:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
}

// shortTime leaves out of a setting what is zero: 1h, not 1h0m0s.
func shortTime(setting string) string {
	if minutes, ok := strings.CutSuffix(setting, "m0s"); ok {
		setting = minutes + "m"
	}
	if hours, ok := strings.CutSuffix(setting, "h0m"); ok {
		setting = hours + "h"
	}
	return setting
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// moment writes a time as the reader's clock shows it.
func moment(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

// table is rows of cells, aligned in columns. The first row is the head.
type table struct {
	rows  [][]string
	right map[int]bool // columns of numbers
	room  int          // characters of a line; 0: as many as it takes
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// String lays the table out, two spaces between columns, no spaces at the ends of lines.
func (t *table) String() string {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if t.right[i] {
				cell, pad = pad+cell, ""
			}
			line.WriteString(cell + pad + "  ")
		}
		text := strings.TrimRight(line.String(), " ")
		if t.room > 0 {
			text = short(text, t.room)
		}
		b.WriteString(text + "\n")
	}
	return b.String()
}

// isTerminalOut reports whether a person looks at standard output.
func isTerminalOut(term *console) bool {
	_, ok := term.out.(*inertWriter)
	return ok
}

func listLimit(limit, most int) error {
	if limit < 1 || limit > most {
		return fmt.Errorf("--limit is %d; it must lie between 1 and %d", limit, most)
	}
	return nil
}
