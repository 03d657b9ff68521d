package schedule_test

import (
	"archive/zip"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/schedule"
)

// zones are the names of all time zones that Go knows.
func zones(t *testing.T) (names []string) {
	t.Helper()
	root := testenv.Must(exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output())(t)
	list := testenv.Must(zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip")))(t)
	defer func() { _ = list.Close() }() // it was only read
	for _, f := range list.File {
		if !f.FileInfo().IsDir() {
			names = append(names, f.Name)
		}
	}
	return names
}

// change is a clock that is put forward or back.
type change struct {
	zone *time.Location
	at   time.Time // the first instant of the new time
}

func offset(zone *time.Location, at time.Time) int {
	_, offset := at.In(zone).Zone()
	return offset
}

// changes are what a zone's clock does between two times.
func changes(zone *time.Location, from, to time.Time) (found []change) {
	_, at := from.In(zone).ZoneBounds()
	for ; !at.IsZero() && at.Before(to); _, at = at.ZoneBounds() {
		found = append(found, change{zone, at.UTC()})
	}
	return found
}

// minutes is what a clock shows around a change, minute by minute.
type minutes struct {
	at    []time.Time
	walls []int64       // what it shows, in minutes
	first map[int64]int // the index at which that is shown first
}

func around(c change) *minutes {
	m := &minutes{first: map[int64]int{}}
	for at := c.at.Add(-30 * time.Hour); at.Before(c.at.Add(30 * time.Hour)); at = at.Add(time.Minute) {
		local := at.In(c.zone)
		year, month, day := local.Date()
		wall := time.Date(year, month, day, local.Hour(), local.Minute(), 0, 0, time.UTC).Unix() / 60
		if _, seen := m.first[wall]; !seen {
			m.first[wall] = len(m.at)
		}
		m.at, m.walls = append(m.at, at), append(m.walls, wall)
	}
	return m
}

// byWall is when wall times that match come, each once: at the first minute that shows it or, when none does, at the
// first one after the clock has jumped over it.
func (m *minutes) byWall(matches func(wall time.Time) bool, from, to time.Time) (due []time.Time) {
	begin, end := slices.Index(m.at, from), slices.Index(m.at, to)
	lowest, highest := slices.Min(m.walls[begin:end+1]), slices.Max(m.walls[begin:end+1])
	for wall := lowest; wall <= highest; wall++ {
		if !matches(time.Unix(wall*60, 0).UTC()) {
			continue
		}
		i, shown := m.first[wall]
		for ; !shown; i++ {
			shown = i > 0 && m.walls[i-1] < wall && m.walls[i] > wall
			if shown {
				break
			}
		}
		if at := m.at[i]; at.After(from) && !at.After(to) && !slices.ContainsFunc(due, at.Equal) {
			due = append(due, at)
		}
	}
	slices.SortFunc(due, time.Time.Compare)
	return due
}

// byElapsed is every minute at which the clock shows what matches.
func (m *minutes) byElapsed(matches func(wall time.Time) bool, from, to time.Time) (due []time.Time) {
	for i, at := range m.at {
		if at.After(from) && !at.After(to) && matches(time.Unix(m.walls[i]*60, 0).UTC()) {
			due = append(due, at)
		}
	}
	return due
}

// expressions and what they mean, said without them.
func expressions() map[string]func(wall time.Time) bool {
	at := func(hours, minutes []int) func(time.Time) bool {
		return func(w time.Time) bool {
			return (hours == nil || slices.Contains(hours, w.Hour())) && slices.Contains(minutes, w.Minute())
		}
	}
	return map[string]func(time.Time) bool{
		"30 2 * * *":       at([]int{2}, []int{30}),
		"0 0 * * *":        at([]int{0}, []int{0}),
		"59 23 * * *":      at([]int{23}, []int{59}),
		"*/15 0-3 * * *":   at([]int{0, 1, 2, 3}, []int{0, 15, 30, 45}),
		"5 1,2,3,23 * * *": at([]int{1, 2, 3, 23}, []int{5}),
		"10 2 * * 0":       func(w time.Time) bool { return w.Weekday() == time.Sunday && w.Hour() == 2 && w.Minute() == 10 },
		"20 1-4 * * 1-6": func(w time.Time) bool {
			return w.Weekday() != time.Sunday && w.Hour() >= 1 && w.Hour() <= 4 && w.Minute() == 20
		},
		"*/30 * * * *": at(nil, []int{0, 30}),
		"7 * * * *":    at(nil, []int{7}),
		"0 */2 * * *":  func(w time.Time) bool { return w.Hour()%2 == 0 && w.Minute() == 0 },
		"45 * * * 0":   func(w time.Time) bool { return w.Weekday() == time.Sunday && w.Minute() == 45 },
	}
}

// TestEveryChangeOfEveryClock compares the due times around each change of each zone in two years, and around odd ones
// of the past, with what looking at the clock minute by minute comes to.
func TestEveryChangeOfEveryClock(t *testing.T) {
	t.Parallel()
	from, to := instant(t, "2026-01-01T00:00:00Z"), instant(t, "2028-01-01T00:00:00Z")
	alike := map[string][]change{} // zones whose clocks do the same, once
	names := zones(t)
	for _, name := range names {
		zone := testenv.Must(time.LoadLocation(name))(t)
		found := changes(zone, from, to)
		key := fmt.Sprint(offset(zone, from))
		for _, c := range found {
			key += fmt.Sprint(" ", c.at.Unix(), offset(zone, c.at))
		}
		if _, known := alike[key]; !known {
			alike[key] = found
		}
	}
	for name, year := range map[string]int{
		"Pacific/Apia": 2011, "Pacific/Kwajalein": 1993, "America/Caracas": 2016, "Asia/Pyongyang": 2018,
		"Europe/Istanbul": 2016, "Antarctica/Troll": 2015, "Asia/Kolkata": 1945, "Africa/Monrovia": 1979,
	} {
		zone := testenv.Must(time.LoadLocation(name))(t)
		begin := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		alike[name] = changes(zone, begin, begin.AddDate(1, 0, 0))
	}
	checked := 0
	for _, all := range alike {
		specs := map[string]*schedule.Spec{}
		for _, c := range all {
			compare(t, c, specs)
			checked++
		}
		if t.Failed() {
			break
		}
	}
	if len(names) < 590 || checked < 120 {
		t.Errorf("%d zones and %d changes are too few to be all", len(names), checked)
	}
	t.Logf("%d zones, %d different clocks, %d changes", len(names), len(alike), checked)
}

// compare checks all expressions around a change. It keeps what it has parsed for the zone.
func compare(t *testing.T, c change, specs map[string]*schedule.Spec) {
	t.Helper()
	around := around(c)
	from, to := c.at.Add(-5*time.Hour), c.at.Add(5*time.Hour)
	for text, matches := range expressions() {
		if specs[text] == nil {
			specs[text] = parse(t, fmt.Sprintf("cron: %q\nzone: %s\n", text, c.zone))
		}
		s := specs[text]
		var got []time.Time
		for due, ok := s.Next(from); ok && !due.After(to); due, ok = s.Next(due) {
			got = append(got, due)
		}
		want := around.byWall(matches, from, to)
		if strings.HasPrefix(strings.Fields(text)[1], "*") {
			want = around.byElapsed(matches, from, to)
		}
		if !slices.EqualFunc(got, want, time.Time.Equal) {
			t.Errorf("%s in %s around %s: %s; want %s", text, c.zone, c.at.Format(time.RFC3339),
				shown(t, got, c.zone.String()), shown(t, want, c.zone.String()))
			return
		}
		// Also from any moment, as when a schedule is applied: what is due next does not depend on what was asked before.
		for after := from; after.Before(to); after = after.Add(41 * time.Minute) {
			rest := want[slices.IndexFunc(append(want, to.Add(1)), after.Before):]
			if due, ok := s.Next(after); len(rest) > 0 && (!ok || !due.Equal(rest[0])) {
				t.Errorf("%s in %s after %s: %s; want %s", text, c.zone, after.Format(time.RFC3339), due.In(c.zone),
					rest[0].In(c.zone))
				return
			}
		}
	}
}
