package schedule

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Resolved is the settings of the run of a due time.
type Resolved struct {
	RunName string
	Params  map[string]string
	Items   Items // without variables
}

// dueLayout is the format of {due}: in UTC, since two instants may have the same local time.
const dueLayout = "2006-01-02T15:04:05Z"

// Resolve inserts a due time.
func (s *Spec) Resolve(due time.Time) (Resolved, error) {
	in := &values{spec: s, due: due.In(s.clock.zone), params: map[string]string{}}
	out := Resolved{Params: map[string]string{}, Items: s.Items}
	for name, text := range s.Params { // params may use due times only, so their order does not matter
		value, err := in.fill("params."+name, text, plain)
		if err != nil {
			return Resolved{}, err
		}
		out.Params[name] = value
	}
	in.params = out.Params
	err := cmp.Or(in.into(&out.RunName, "run_name", s.RunName, plain),
		in.into(&out.Items.File, "items.file", s.Items.File, plain),
		in.into(&out.Items.URL, "items.url", s.Items.URL, escaped))
	if err == nil && s.Items.SQL != nil {
		query := *s.Items.SQL
		in.params = nil // params may come from clients, and would become SQL
		err = in.into(&query.Query, "items.sql.query", query.Query, plain)
		out.Items.SQL = &query
	}
	return out, err
}

func plain(value string) string { return value }

// escaped escapes a value for a URL's path or query. A plus would mean a space only in a query.
func escaped(value string) string { return strings.ReplaceAll(url.QueryEscape(value), "+", "%20") }

type values struct {
	spec   *Spec
	due    time.Time
	params map[string]string // nil: not allowed here
}

// VariableError is a text with an unknown variable.
type VariableError struct {
	Field, Problem string
}

func (e *VariableError) Error() string { return e.Field + ": " + e.Problem }

func (in *values) into(out *string, field, text string, escape func(string) string) (err error) {
	*out, err = in.fill(field, text, escape)
	return err
}

// fill replaces variables in braces; {{ and }} are braces.
func (in *values) fill(field, text string, escape func(string) string) (string, error) {
	var out strings.Builder
	for text != "" {
		at := strings.IndexAny(text, "{}")
		if at < 0 {
			break
		}
		out.WriteString(text[:at])
		rest := text[at+1:]
		if strings.HasPrefix(rest, text[at:at+1]) {
			out.WriteByte(text[at])
			text = rest[1:]
			continue
		}
		name, after, closed := strings.Cut(rest, "}")
		if text[at] == '}' || !closed {
			return "", &VariableError{field, "a single brace; write {{ or }} for a literal brace"}
		}
		value, known := in.value(name)
		if !known {
			return "", &VariableError{field, in.unknown(name)}
		}
		out.WriteString(escape(value))
		text = after
	}
	out.WriteString(text)
	return out.String(), nil
}

func (in *values) value(name string) (value string, known bool) {
	if param, ok := strings.CutPrefix(name, "params."); ok {
		value, known = in.params[param]
		return value, known
	}
	switch name {
	case "schedule":
		return in.spec.Name, true
	case "due":
		return in.due.UTC().Format(dueLayout), true
	case "due.yesterday":
		y, m, d := in.due.Date() // in UTC: in the zone, that day's midnight may not exist
		return time.Date(y, m, d-1, 0, 0, 0, 0, time.UTC).Format(time.DateOnly), true
	case "due.week":
		year, week := in.due.ISOWeek()
		return fmt.Sprintf("%04d-W%02d", year, week), true
	case "due.unix":
		return strconv.FormatInt(in.due.Unix(), 10), true
	}
	layout := map[string]string{"due.date": time.DateOnly, "due.time": "15:04", "due.year": "2006", "due.month": "01",
		"due.day": "02", "due.hour": "15", "due.minute": "04"}[name]
	return in.due.Format(layout), layout != ""
}

const variables = "schedule, due, due.date, due.time, due.year, due.month, due.day, due.hour, due.minute, " +
	"due.yesterday, due.week, due.unix"

func (in *values) unknown(name string) string {
	known := variables
	switch {
	case in.params == nil:
		known += " (params may not be part of SQL)"
	case len(in.params) == 0:
	default:
		known += " and params.NAME of the schedule's params"
	}
	return fmt.Sprintf("there is no variable {%.60s}; there are %s; {{ and }} are braces", name, known)
}
