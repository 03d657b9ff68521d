// Package demokit presents demonstrations: a [Story] for the screen, a [Shell] for the commands, and [Child]
// processes in a [Dir].
//
// Guarantees: a child ends before its Stop returns, and on Linux also when the program is killed; a directory
// belongs to one story at a time. Concurrency: Child and Shell are safe for concurrent use; a Story belongs to one
// goroutine.
package demokit

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// columns is the width of the output: that of the smallest terminals.
const columns = 78

// ANSI colors.
const (
	plain = ""
	Bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
)

// Story writes the demonstration. After a failed write it is silent; see [Story.Err].
type Story struct {
	out   io.Writer
	color bool
	live  bool // a terminal: lines may be overwritten
	step  int
	err   error
	undo  []func(context.Context) error
}

func New(out io.Writer, color bool) *Story {
	file, ok := out.(*os.File)
	return &Story{out: out, color: color, live: ok && term.IsTerminal(int(file.Fd()))}
}

// Err returns the first write error.
func (s *Story) Err() error {
	if s.err == nil {
		return nil
	}
	return fmt.Errorf("write to standard output: %w", s.err)
}

// Tell runs the chapters until one fails or cannot be written, and then runs what OnStop registered.
func (s *Story) Tell(ctx context.Context, chapters ...func(context.Context) error) (err error) {
	defer func() {
		if ctx.Err() != nil && err != nil { // errors caused by the end of ctx do not matter
			err = ctx.Err()
		}
		err = errors.Join(err, s.stop(ctx))
	}()
	for _, chapter := range chapters {
		if err := Try(func() { Stop(chapter(ctx)) }); err != nil {
			return err
		}
		if err := s.Err(); err != nil {
			return err
		}
	}
	return nil
}

// over carries the error of [Stop].
type over struct{ err error }

// Stop ends the story, or the function of [Try], if there is an error. Only their goroutine may call it.
func Stop(err error) {
	if err != nil {
		panic(over{err})
	}
}

// Must returns value, or ends like [Stop].
func Must[T any](value T, err error) T {
	Stop(err)
	return value
}

// Try runs f and returns the error that ended it by [Stop].
func Try(f func()) (err error) {
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case over:
			err = cause.err
		default:
			panic(cause)
		}
	}()
	f()
	return nil
}

// OnStop registers a function for the end of the story. Functions run in reverse order.
func (s *Story) OnStop(undo func(context.Context) error) { s.undo = append(s.undo, undo) }

// StopTimeout limits the end of the story.
const StopTimeout = time.Minute

// stop has its own timeout: ctx may have ended.
func (s *Story) stop(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), StopTimeout)
	defer cancel()
	for _, undo := range slices.Backward(s.undo) {
		err = errors.Join(err, undo(ctx))
	}
	return err
}

func (s *Story) write(text string) {
	if s.err == nil {
		_, s.err = io.WriteString(s.out, text)
	}
}

func (s *Story) Paint(color, text string) string {
	if !s.color || color == plain {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

func (s *Story) Title(text string) { s.write(s.Paint(Bold, text) + "\n") }

// Chapter starts a numbered part.
func (s *Story) Chapter(text string) {
	s.step++
	s.write("\n" + s.Paint(Bold, fmt.Sprintf("%d. %s", s.step, text)) + "\n")
}

// Command shows a command as one would type it.
func (s *Story) Command(lines ...string) {
	for i, line := range lines {
		lead := "$ "
		if i > 0 {
			lead = "    "
		}
		s.write(s.Paint(dim, lead) + s.Paint(Bold, line) + "\n")
	}
}

// File shows a file, indented.
func (s *Story) File(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("show a file: %w", err)
	}
	s.Command("cat " + filepath.Base(path))
	for line := range strings.Lines(string(text)) {
		s.write("  " + line)
	}
	return nil
}

func (s *Story) Say(format string, args ...any) { s.write(fmt.Sprintf(format, args...) + "\n") }

// Fact writes what was done on the left, and the duration and rate on the right. No rate if n is 0.
func (s *Story) Fact(text string, took time.Duration, n int) {
	right := fmt.Sprintf("%.1f s", took.Seconds())
	if n > 0 && took > 0 {
		right += fmt.Sprintf("  %9s/s", Grouped(int64(float64(n)/took.Seconds())))
	} else {
		right += strings.Repeat(" ", 13)
	}
	gap := max(2, columns-utf8.RuneCountInString(text)-len(right))
	s.write(text + strings.Repeat(" ", gap) + s.Paint(dim, strings.TrimRight(right, " ")) + "\n")
}

// Check shows a comparison of a proof.
func (s *Story) Check(c Check) {
	mark, equals := s.Paint(green, "ok"), "="
	if !c.Holds() {
		mark, equals = s.Paint(red, "NO"), "≠"
	}
	s.write(fmt.Sprintf("%s  %-19s %15s %s %15s  %s\n", mark, c.Left, Grouped(c.Got), equals, Grouped(c.Want), c.Right))
	if c.FirstWrong != "" {
		s.write("    " + s.Paint(red, c.FirstWrong) + "\n")
	}
}

const tick = time.Second

// During runs fn. On a terminal it shows the seconds meanwhile.
func (s *Story) During(fn func() error) error {
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

// Grouped formats a number with separators: 1,234,567.
func Grouped(n int64) string {
	digits := fmt.Sprint(n)
	if n < 0 {
		return "-" + Grouped(-n)
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Check is a comparison: found on the left, expected on the right.
type Check struct {
	Left       string
	Got, Want  int64
	Right      string
	FirstWrong string // an example of a difference, if there is one
}

func (c Check) Holds() bool { return c.Got == c.Want && c.FirstWrong == "" }

func (c Check) Difference() string {
	text := fmt.Sprintf("%s %s, but %s %s", c.Left, Grouped(c.Got), Grouped(c.Want), c.Right)
	if c.FirstWrong != "" {
		text += " (" + c.FirstWrong + ")"
	}
	return text
}

// Environment returns the environment plus more, without the settings of Tranche, NATS and PostgreSQL.
func Environment(more ...string) []string {
	leads := func(variable string) bool {
		begins := func(prefix string) bool { return strings.HasPrefix(variable, prefix) }
		return slices.ContainsFunc([]string{"TRANCHE_", "NATS_", "PG"}, begins)
	}
	return append(slices.DeleteFunc(os.Environ(), leads), more...)
}

// BusyError means that another story uses the directory.
type BusyError struct{ Dir string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("%s is in use by another demo; wait for its end, or choose another directory with --dir", e.Dir)
}

// UnequalError means that a proof failed.
type UnequalError struct {
	What        string   // with its place
	Differences []string // one line each
}

func (e *UnequalError) Error() string { return e.What + ": " + strings.Join(e.Differences, "; ") }

// Verdict returns an [UnequalError] unless all checks hold.
func Verdict(what string, checks []Check) error {
	var differences []string
	for _, c := range checks {
		if !c.Holds() {
			differences = append(differences, c.Difference())
		}
	}
	if len(differences) > 0 {
		return &UnequalError{What: what, Differences: differences}
	}
	return nil
}

// EachLine calls each for every value of a file of JSON lines.
func EachLine[T any](file string, each func(*T)) error {
	f, err := os.Open(filepath.Clean(file))
	if err != nil {
		return fmt.Errorf("read the results back: %w", err)
	}
	defer func() { _ = f.Close() }()
	lines := json.NewDecoder(bufio.NewReaderSize(f, 1<<20))
	for n := 1; ; n++ {
		var line T
		err := lines.Decode(&line)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the results back: %s, line %d: %w", file, n, err)
		}
		each(&line)
	}
}
