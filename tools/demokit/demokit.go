// Package demokit is what demonstrations are told with: a [Story] on a person's screen, a [Shell] for the commands that
// the person would type, and each [Child], a process that runs meanwhile, in a [Dir] of their own.
//
// Guarantees: children have ended when their Stop returns, and on Linux also when the program is killed; a directory
// belongs to one story at a time. Concurrency: a Child and a Shell may be used at once, a Story by one goroutine.
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

// columns is the width that the story is told in: the smallest terminal's.
const columns = 78

// Colours, where the person wants them.
const (
	plain = ""
	Bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
)

// Story is what the person reads. After a write that failed it goes on in silence; Err tells.
type Story struct {
	out   io.Writer
	color bool
	live  bool // a person looks: lines may be overwritten
	step  int
	err   error
	undo  []func(context.Context) error
}

// New returns a story that is told on out.
func New(out io.Writer, color bool) *Story {
	return &Story{out: out, color: color, live: isTerminal(out)}
}

// Err returns what kept the story from being told.
func (s *Story) Err() error {
	if s.err == nil {
		return nil
	}
	return fmt.Errorf("write to standard output: %w", s.err)
}

// Tell tells one chapter after the other, until one fails or can be written nowhere, and then ends what was begun.
func (s *Story) Tell(ctx context.Context, chapters ...func(context.Context) error) (err error) {
	defer func() {
		if ctx.Err() != nil && err != nil { // what that broke is of no interest
			err = ctx.Err()
		}
		err = errors.Join(err, s.stop(ctx))
	}()
	for _, chapter := range chapters {
		if err := told(ctx, chapter); err != nil {
			return err
		}
		if err := s.Err(); err != nil {
			return err
		}
	}
	return nil
}

// over is what ends a story in the middle of a chapter.
type over struct{ err error }

// Stop ends the story when there is an error. It is for chapters, in the goroutine of [Story.Tell].
func Stop(err error) {
	if err != nil {
		panic(over{err})
	}
}

// Must returns a value, or ends the story as [Stop] does.
func Must[T any](value T, err error) T {
	Stop(err)
	return value
}

// told tells a chapter.
func told(ctx context.Context, chapter func(context.Context) error) (err error) {
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case over:
			err = cause.err
		default:
			panic(cause)
		}
	}()
	return chapter(ctx)
}

// OnStop has something ended when the story has, in the opposite order of their beginnings.
func (s *Story) OnStop(undo func(context.Context) error) { s.undo = append(s.undo, undo) }

// StopTimeout bounds the end of everything.
const StopTimeout = time.Minute

// stop has its own time: ctx may have ended.
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

// Paint colours a text.
func (s *Story) Paint(colour, text string) string {
	if !s.color || colour == plain {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// Title begins the story.
func (s *Story) Title(text string) { s.write(s.Paint(Bold, text) + "\n") }

// Chapter begins a numbered part.
func (s *Story) Chapter(text string) {
	s.step++
	s.write("\n" + s.Paint(Bold, fmt.Sprintf("%d. %s", s.step, text)) + "\n")
}

// Command shows what is about to be run, as it would be typed.
func (s *Story) Command(lines ...string) {
	for i, line := range lines {
		lead := "$ "
		if i > 0 {
			lead = "    "
		}
		s.write(s.Paint(dim, lead) + s.Paint(Bold, line) + "\n")
	}
}

// File shows a file, with a margin.
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

// Say tells a line.
func (s *Story) Say(format string, args ...any) { s.write(fmt.Sprintf(format, args...) + "\n") }

// Fact tells what was done on the left, and how long it took and how fast it went on the right. No rate when n is 0.
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

// Check shows one comparison of a proof.
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

// tick is how often a person sees that something long goes on.
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

// isTerminal reports whether a person looks at w.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// Grouped writes a number with separators: 1,234,567.
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

// Check is one comparison: what was found, on the left, with what there should be, on the right.
type Check struct {
	Left       string
	Got, Want  int64
	Right      string
	FirstWrong string // an example of what is unequal, where there is one
}

// Holds reports whether both are equal.
func (c Check) Holds() bool { return c.Got == c.Want && c.FirstWrong == "" }

// Difference says what is unequal.
func (c Check) Difference() string {
	text := fmt.Sprintf("%s %s, but %s %s", c.Left, Grouped(c.Got), Grouped(c.Want), c.Right)
	if c.FirstWrong != "" {
		text += " (" + c.FirstWrong + ")"
	}
	return text
}

// Environment is this process's, without what would lead a child elsewhere, and with more.
func Environment(more ...string) []string {
	leads := func(variable string) bool {
		for _, prefix := range []string{"TRANCHE_", "NATS_", "PG"} {
			if strings.HasPrefix(variable, prefix) {
				return true
			}
		}
		return false
	}
	return append(slices.DeleteFunc(os.Environ(), leads), more...)
}

// BusyError is returned when another one works in the directory.
type BusyError struct{ Dir string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("another one works in %s; wait for its end, or choose another directory with --dir", e.Dir)
}

// CommandError is returned when a program that was run ended with an exit code it should not have.
type CommandError struct {
	Command string
	Code    int    // -1: ended by a signal
	Want    int    // the code it should have had
	Said    string // the last of what it wrote, where the person has not seen it
}

func (e *CommandError) Error() string {
	text := fmt.Sprintf("%s ended with exit code %d, not %d", e.Command, e.Code, e.Want)
	if e.Code < 0 {
		text = e.Command + " was ended by a signal"
	}
	if e.Said != "" {
		text += ":\n" + e.Said
	}
	return text
}

// UnequalError is returned when a proof failed.
type UnequalError struct {
	What        string   // and where it is
	Differences []string // a line each
}

func (e *UnequalError) Error() string { return e.What + ": " + strings.Join(e.Differences, "; ") }

// Verdict returns an [UnequalError] unless everything holds.
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

// EachLine reads a file of JSON lines.
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
