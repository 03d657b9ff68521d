package schedule

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3" //nolint:depguard // this is the guard
)

const maxCronBytes = 300

// expression wraps robfig/cron for UTC: in a zone it skips what the clock skips, and repeats what it repeats.
type expression struct {
	*cron.SpecSchedule
	allHours bool // the hour begins with *
	days     [2]string
}

var errCronFields = errors.New("want five fields: minute hour day-of-month month day-of-week, like 30 2 * * 1-5; " +
	"or one of @hourly, @daily, @weekly, @monthly, @yearly")

func parseCron(text string) (*expression, time.Duration, error) {
	text = strings.TrimSpace(text)
	if len(text) > maxCronBytes {
		return nil, 0, fmt.Errorf("it has %d characters; an expression has at most %d", len(text), maxCronBytes)
	}
	if strings.Contains(text, "TZ=") {
		return nil, 0, errors.New("a time zone does not belong in the expression; use the field zone")
	}
	if every, ok := strings.CutPrefix(text, "@every"); ok {
		interval, err := parseEvery(strings.TrimSpace(every))
		return nil, interval, err
	}
	e, err := newExpression(text)
	if err != nil {
		return nil, 0, err
	}
	if e.after(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, 0, fmt.Errorf("%q never fires: there is no such day; put right day-of-month and month", text)
	}
	return e, 0, nil
}

func newExpression(text string) (*expression, error) {
	e := &expression{allHours: text == "@hourly", days: [2]string{"*", "*"}}
	if !strings.HasPrefix(text, "@") {
		fields := strings.Fields(text)
		if len(fields) == 6 {
			return nil, errors.New("it has six fields, and seconds are not part of schedules; " + errCronFields.Error())
		}
		if len(fields) != 5 {
			return nil, fmt.Errorf("it has %d fields; %w", len(fields), errCronFields)
		}
		if err := checkFields(fields); err != nil {
			return nil, err
		}
		e.allHours = strings.HasPrefix(fields[1], "*") || strings.HasPrefix(fields[1], "?") // which means the same
		e.days = [2]string{fields[2], fields[4]}
		fields[4] = withSunday(fields[4])
		text = strings.Join(fields, " ")
	}
	parsed, err := guarded(text)
	if err != nil {
		return nil, err
	}
	e.SpecSchedule = parsed
	e.Location = time.UTC
	return e, nil
}

// checkFields rejects what the parser accepts with an unexpected meaning: empty parts of lists, ranges that begin
// with *, and steps beyond the field. It also explains what only other programs support.
func checkFields(fields []string) error {
	part := regexp.MustCompile(`^([*?]|[0-9]{1,4}(-[0-9]{1,4})?|[A-Za-z]{3}(-[A-Za-z]{3})?)(/[0-9]{1,4})?$`)
	values, least, most := []int{60, 24, 31, 12, 7}, []int{0, 0, 1, 1, 0}, []int{59, 23, 31, 12, 7}
	for i, name := range []string{"minute", "hour", "day-of-month", "month", "day-of-week"} {
		for text := range strings.SplitSeq(fields[i], ",") {
			if text == "" {
				return fmt.Errorf("%s %q has an empty part; take the comma away", name, fields[i])
			}
			if !part.MatchString(text) {
				return fmt.Errorf("%s %q: want *, a number, a name like jan or mon, a range like 1-5, "+
					"or one of these with a step like */15; L, W and # are not known", name, fields[i])
			}
			span, step, _ := strings.Cut(text, "/")
			for number := range strings.SplitSeq(span, "-") {
				if n, err := strconv.Atoi(number); err == nil && (n < least[i] || n > most[i]) {
					return fmt.Errorf("%s %q: want %d to %d", name, fields[i], least[i], most[i])
				}
			}
			if n, _ := strconv.Atoi(step); n > values[i] {
				return fmt.Errorf("%s %q: the step is %d, and the field has %d values; give a step of at most that, or "+
					"every: with an interval", name, fields[i], n, values[i])
			}
		}
	}
	return nil
}

// withSunday replaces 7, which means Sunday in crons, also as the end of a range, by what the library supports.
func withSunday(field string) string {
	parts := strings.Split(field, ",")
	for i, text := range parts {
		days, step, _ := strings.Cut(text, "/")
		first, last, isRange := strings.Cut(days, "-")
		from, err := strconv.Atoi(first)
		if err != nil || first != "7" && last != "7" {
			continue
		}
		to, every := 7, 1
		if isRange {
			to, _ = strconv.Atoi(last)
		}
		if step != "" {
			every, _ = strconv.Atoi(step)
		}
		if from > to || to > 7 || every == 0 {
			continue // the library reports the error
		}
		var all []string
		for ; from <= to; from += every {
			all = append(all, strconv.Itoa(from%7))
		}
		parts[i] = strings.Join(all, ",")
	}
	return strings.Join(parts, ",")
}

func guarded(text string) (parsed *cron.SpecSchedule, err error) {
	defer func() {
		if p := recover(); p != nil {
			parsed, err = nil, fmt.Errorf("%w; this one cannot be read", errCronFields)
		}
	}()
	const fields = cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor
	found, err := cron.NewParser(fields).Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w; this has a mistake: %.80s", errCronFields, err.Error())
	}
	parsed, ok := found.(*cron.SpecSchedule)
	if !ok {
		return nil, errCronFields
	}
	return parsed, nil
}

// after returns the first later wall time, or zero. The library stops after five years, but from 2096 to 2104 there
// is no 29th of February.
func (e *expression) after(wall time.Time) time.Time {
	for range 3 {
		if next := e.Next(wall); !next.IsZero() {
			return next
		}
		wall = time.Date(wall.Year()+5, 1, 1, 0, 0, 0, 0, time.UTC).Add(-1)
	}
	return time.Time{}
}

func parseEvery(text string) (time.Duration, error) {
	every, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("want an interval like 15m or 12h, a day being 24h; this is %.40q", text)
	}
	return every, checkEvery(every)
}

func checkEvery(every time.Duration) error {
	switch {
	case every < MinEvery:
		return fmt.Errorf("%s is too often; at least %s", every, MinEvery)
	case every > MaxEvery:
		return fmt.Errorf("%s is too seldom; at most %s", every, MaxEvery)
	case every%time.Second != 0:
		return fmt.Errorf("want whole seconds; this is %s", every)
	}
	return nil
}
