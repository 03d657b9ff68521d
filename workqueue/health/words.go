package health

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/tranchehq/tranche/workqueue"
)

// Count formats a number with its noun: 1 item, 2 items.
func Count[N ~int | ~int64 | ~uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func countOf(n any, noun string) string {
	if text := fmt.Sprint(n); text != "1" {
		return text + " " + noun + "s"
	}
	return "1 " + noun
}

func thereAre(n any, noun string) string {
	switch fmt.Sprint(n) {
	case "0":
		return "no " + noun + " is"
	case "1":
		return "1 " + noun + " is"
	default:
		return countOf(n, noun) + " are"
	}
}

func uses(runs any) string {
	switch fmt.Sprint(runs) {
	case "0":
		return "No running run uses"
	case "1":
		return "1 running run uses"
	default:
		return fmt.Sprintf("%d running runs use", runs)
	}
}

func runName(r Row) string {
	if name := r.text("name"); name != "" {
		return "run " + name
	}
	return fmt.Sprintf("run %.8s of %s", r.text("subject"), r.text("plan"))
}

func logsOf(endpoint string) string {
	switch kind, of := workqueue.TargetKind(endpoint); kind {
	case workqueue.KindHTTP:
		return "Ask who runs " + of
	case workqueue.KindSQL:
		return "Check what the database of source " + of + " does"
	default:
		return "Find its instances, and check their logs"
	}
}

// Ago formats a duration in human-readable form.
func Ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(max(d, 0).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	default:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	}
}

func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

// OneLine makes foreign text, like a run's name, safe in a line: without breaks, invisible or bidi characters.
func OneLine(text string, most int) string {
	return Clip(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r), unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, text), most)
}

// Clip cuts a text to at most that many characters.
func Clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	runes := []rune(strings.ToValidUTF8(text, "\uFFFD"))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}
