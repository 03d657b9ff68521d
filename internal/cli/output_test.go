package cli

import (
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// PROOF: who may do what, 8.
func TestInert(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain, äöü 漢字":     "plain, äöü 漢字",
		"\x1b[31mred":       `\x1b[31mred`,
		"a\rb\nc\td\x00":    `a\x0db\x0ac\x09d\x00`,
		"\u202egnp.exe":     `\u202egnp.exe`,
		"zero\u200bwidth":   `zero\u200bwidth`,
		"c1 \u009b31m":      `c1 \u009b31m`,
		"\xff\xfe":          `\xff\xfe`,
		"isolate \u2066x":   `isolate \u2066x`,
		"line\u2028break":   `line\u2028break`,
		"del\x7f":           `del\x7f`,
		"real \ufffd stays": "real \ufffd stays",
	} {
		testenv.Same(t, EscapeControl(in), want, "inert(%q)", in)
	}
	testenv.Same(t, InertText("one\ntwo\x07"), "one\ntwo\\x07", "inertText kept or lost a line")
}

func TestInertWriterKeepsCutCharacters(t *testing.T) {
	t.Parallel()
	const text = "ä漢😀\x1b[2J\u202e\tx\n"
	var out strings.Builder
	w := &inertWriter{to: &out}
	for i := range len(text) {
		if n, err := w.Write([]byte{text[i]}); n != 1 || err != nil {
			t.Fatalf("wrote %d, %v", n, err)
		}
	}
	testenv.Same(t, out.String(), `ä漢😀\x1b[2J\u202e`+"\tx\n", "the output")
}

func TestDoneByIsOnTheClockHere(t *testing.T) { //nolint:paralleltest // it changes the zone of all
	defer func(zone *time.Location) { time.Local = zone }(time.Local)
	time.Local = time.FixedZone("CEST", 2*60*60)
	synctest.Test(t, func(t *testing.T) { // it is 02:00 here
		for text, want := range map[string]string{"06:00": "2000-01-01T06:00:00+02:00", "02:00": "2000-01-02T02:00:00+02:00",
			"06:00 UTC": "06:00 UTC", "none": "none"} {
			testenv.Same(t, *DoneBy(&text), want, "%s", text)
		}
	})
}

// A terminal has a table within its columns: text gives way, numbers do not. Elsewhere nothing is cut.
func TestTableFits(t *testing.T) {
	t.Parallel()
	table := NewTable("NAME|N>|LAST", 0)
	table.Row("ä", "1,000", "")
	testenv.Same(t, table.String(), "NAME      N  LAST\nä     1,000\n", "the table")
	table = NewTable("NAME|N>|MESSAGE|AT", 0)
	long, name := strings.Repeat("m", 300), strings.Repeat("n", 30)
	table.Row(name, "1,000,000,000", long, "12:00:00 UTC")
	if got := table.String(); !strings.Contains(got, long) || !strings.Contains(got, name) {
		t.Errorf("it is cut where there is room: %q", got)
	}
	for _, room := range []int{40, 60, 80, 120} {
		table.room = room
		testenv.Has(t, table.String(), "1,000,000,000", "the number is cut in a line of %d: %q", room, table)
		for line := range strings.Lines(table.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > room {
				t.Errorf("%d characters in a line of %d: %q", n, room, line)
			}
		}
	}
	table.room = 80
	testenv.Has(t, table.String(), "12:00:00 UTC", "what is short is cut")
}

// Every command that lists goes by this: cells are safe to print, numbers stand to the right, a narrow terminal goes
// without what matters least, and an empty list and one with more to come say so.
func TestList(t *testing.T) {
	t.Parallel()
	type thing struct {
		key  string
		n    int
		run  *string
		text string
	}
	all := []thing{{"a\x1b[31m", 1000, nil, "long"}, {"b", 7, new(string), "short"}}
	list := List[thing]{Columns: "KEY|N>|RUN|TEXT?", Empty: "nothing", Next: int64(8),
		Row: func(v *thing) []any { return []any{v.key, v.n, v.run, v.text} }}
	const want = "KEY            N  RUN  TEXT\na\\x1b[31m  1,000  -    long\nb              7       short\n"
	testenv.Same(t, list.Text(all, 0), want, "the list")
	if got := list.Text(all, 80); strings.Contains(got, "TEXT") || strings.Contains(got, "long") {
		t.Errorf("a narrow terminal has %q", got)
	}
	var out, notes strings.Builder
	term := &Console{Out: &out, Err: &notes}
	if err := list.Print(term, all, nil); err != nil || out.String() != want ||
		notes.String() != "tranche: there are more; continue with --after 8\n" {
		t.Errorf("printed %q, said %q, %v", out.String(), notes.String(), err)
	}
	for next, want := range map[any]string{new(int64): "--after 0", (*int64)(nil): "", "": "", "x": "--after x"} {
		notes.Reset()
		list.Next = next
		if err := list.Print(term, all, nil); err != nil || (want == "") != (notes.Len() == 0) ||
			!strings.Contains(notes.String(), want) {
			t.Errorf("before %v it says %q, %v; want %q", next, notes.String(), err, want)
		}
	}
	out.Reset()
	testenv.NoError(t, list.Print(term, nil, nil))
	testenv.Same(t, out.String(), "nothing\n", "an empty list")
	testenv.Is(t, list.Print(term, all, io.ErrUnexpectedEOF), io.ErrUnexpectedEOF, "the error is lost")
	out.Reset()
	term.JSON, term.Answer = true, []byte(`{"x":1}`)
	testenv.NoError(t, list.Print(term, all, nil))
	testenv.Same(t, out.String(), "{\n  \"x\": 1\n}\n", "as JSON it")
}

// What a list shows of a key is found again.
func TestEscapesAreTakenBack(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"plain", "a\x1b[31m", "\u202eb", "tab\there", "ä\x00"} {
		shown := EscapeControl(key)
		if got, escaped := Unescaped(shown); got != key || escaped != (shown != key) {
			t.Errorf("%q is shown as %s, and read as %q, %v", key, shown, got, escaped)
		}
	}
	for _, text := range []string{`a\xZZ`, `\x1`, `\`, `\u12`} {
		if got, escaped := Unescaped(text); got != text || escaped {
			t.Errorf("%s: %q, %v", text, got, escaped)
		}
	}
}

func TestNumbersAreWritten(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		0: "0", 999: "999", 1000: "1,000", -999: "-999", -1000: "-1,000", -1234567: "-1,234,567",
		math.MaxInt64: "9,223,372,036,854,775,807", math.MinInt64: "-9,223,372,036,854,775,808",
	} {
		testenv.Same(t, Count(n), want, "count(%d)", n)
	}
	for n, want := range map[float64]string{
		0: "0.0", 0.001: "0.001", 0.5: "0.5", 1234.5: "1,234", 1e308: "1,000,000,000,000,000,000",
	} {
		testenv.Same(t, Pace(n), want, "pace(%v)", n)
	}
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 800 * time.Millisecond: "0.8s", 12 * time.Second: "12s", 185 * time.Second: "3m05s",
		130 * time.Minute: "2h10m",
	} {
		testenv.Same(t, Span(d), want, "span(%s)", d)
	}
}

func TestReadKeys(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range 250_000 {
		fmt.Fprintln(&many, i)
	}
	parts, err := ReadKeys("-", strings.NewReader(many.String()))
	if err != nil || len(parts) != 3 || len(parts[0]) != MaxKeysOfRequest || len(parts[2]) != 50_000 ||
		parts[2][49_999] != "249999" {
		t.Errorf("%d parts, %v", len(parts), err)
	}
	parts, err = ReadKeys("-", strings.NewReader("\ufeffa\r\n\r\n b \nc"))
	if err != nil || len(parts) != 1 || strings.Join(parts[0], "|") != "a| b |c" {
		t.Errorf("%q, %v", parts, err)
	}
	wide := strings.Repeat(strings.Repeat("x", 1000)+"\n", 10_000)
	if parts, err = ReadKeys("-", strings.NewReader(wide)); err != nil || len(parts) != 2 {
		t.Errorf("%d parts of long keys, %v", len(parts), err)
	}
	for text, want := range map[string]string{
		"": "no key", "\n\r\n": "no key", strings.Repeat("x", 1<<17): "line 1 is longer", "a\n\xff\n": "line 2 is not UTF-8",
	} {
		_, err := ReadKeys("-", strings.NewReader(text))
		testenv.Says(t, err, want, "%.10q", text)
	}
}
