package demo

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// columns is the width that the story is told in: the smallest terminal's.
const columns = 78

// Colours, where the person wants them.
const (
	plain = ""
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
)

// story is what the person reads. After a write that failed it goes on in silence; err tells.
type story struct {
	out   io.Writer
	color bool
	live  bool // a person looks: lines may be overwritten
	step  int
	err   error
}

func (s *story) write(text string) {
	if s.err == nil {
		_, s.err = io.WriteString(s.out, text)
	}
}

func (s *story) paint(colour, text string) string {
	if !s.color || colour == plain {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (s *story) title(text string) { s.write(s.paint(bold, text) + "\n") }

// chapter begins a numbered part.
func (s *story) chapter(text string) {
	s.step++
	s.write("\n" + s.paint(bold, fmt.Sprintf("%d. %s", s.step, text)) + "\n")
}

// command shows what is about to be run, as it would be typed.
func (s *story) command(lines ...string) {
	for i, line := range lines {
		lead := "$ "
		if i > 0 {
			lead = "    "
		}
		s.write(s.paint(dim, lead) + s.paint(bold, line) + "\n")
	}
}

// file shows a file, with a margin.
func (s *story) file(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("show a file: %w", err)
	}
	s.command("cat " + filepath.Base(path))
	for line := range strings.Lines(string(text)) {
		s.write("  " + line)
	}
	return nil
}

func (s *story) say(format string, args ...any) { s.write(fmt.Sprintf(format, args...) + "\n") }

// fact tells what was done on the left, and how long it took and how fast it went on the right. No rate when n is 0.
func (s *story) fact(text string, took time.Duration, n int) {
	right := fmt.Sprintf("%.1f s", took.Seconds())
	if n > 0 && took > 0 {
		right += fmt.Sprintf("  %9s/s", grouped(int64(float64(n)/took.Seconds())))
	} else {
		right += strings.Repeat(" ", 13)
	}
	gap := max(2, columns-utf8.RuneCountInString(text)-len(right))
	s.write(text + strings.Repeat(" ", gap) + s.paint(dim, strings.TrimRight(right, " ")) + "\n")
}

// check shows one comparison of the proof.
func (s *story) check(c check) {
	mark, equals := s.paint(green, "ok"), "="
	if !c.holds() {
		mark, equals = s.paint(red, "NO"), "≠"
	}
	s.write(fmt.Sprintf("%s  %-19s %15s %s %15s  %s\n", mark, c.left, grouped(c.got), equals, grouped(c.want), c.right))
	if c.firstWrong != "" {
		s.write("    " + s.paint(red, c.firstWrong) + "\n")
	}
}

// tick is how often a person sees that something long goes on.
const tick = time.Second

// during runs fn. On a terminal it shows the seconds meanwhile.
func (s *story) during(fn func() error) error {
	if !s.live {
		return fn()
	}
	done := make(chan error, 1)
	go func() { done <- fn() }()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for seconds := 1; ; seconds++ {
		select {
		case err := <-done:
			s.write("\r\x1b[K")
			return err
		case <-ticker.C:
			s.write(fmt.Sprintf("\r\x1b[K%d s", seconds))
		}
	}
}

// isTerminal reports whether a person looks at w.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// grouped writes a number with separators: 1,234,567.
func grouped(n int64) string {
	digits := fmt.Sprint(n)
	if n < 0 {
		return "-" + grouped(-n)
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
