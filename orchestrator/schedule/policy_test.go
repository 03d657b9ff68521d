package schedule_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/schedule"
)

func TestWindow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ window, zone, due, start, doneBy string }{
		// Over midnight.
		{"22:00-06:00", "UTC", "2026-01-01T20:00:00Z", "2026-01-01T22:00:00Z", "2026-01-02T06:00:00Z"},
		{"22:00-06:00", "UTC", "2026-01-01T23:00:00Z", "2026-01-01T23:00:00Z", "2026-01-02T06:00:00Z"},
		{"22:00-06:00", "UTC", "2026-01-02T05:59:59Z", "2026-01-02T05:59:59Z", "2026-01-02T06:00:00Z"},
		{"22:00-06:00", "UTC", "2026-01-02T06:00:00Z", "2026-01-02T22:00:00Z", "2026-01-03T06:00:00Z"},
		{"22:00-06:00", "UTC", "2026-01-01T22:00:00Z", "2026-01-01T22:00:00Z", "2026-01-02T06:00:00Z"},
		// Within a day, and halves.
		{"09:00-17:00", "Asia/Tokyo", "2026-01-01T12:00:00Z", "2026-01-02T00:00:00Z", "2026-01-02T08:00:00Z"},
		{"22:00-", "UTC", "2026-01-01T23:30:00Z", "2026-01-01T23:30:00Z", ""},
		{"22:00-", "UTC", "2026-01-02T00:00:00Z", "2026-01-02T22:00:00Z", ""},
		{"-06:00", "UTC", "2026-01-01T06:00:00Z", "2026-01-01T06:00:00Z", "2026-01-02T06:00:00Z"},
		// Berlin jumps from 2 to 3 on 29 March: an end that is left out is where the clock jumps, and so is a beginning.
		{"22:00-02:30", "Europe/Berlin", "2026-03-28T21:30:00Z", "2026-03-28T21:30:00Z", "2026-03-29T01:00:00Z"},
		{"02:30-06:00", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T04:00:00Z"},
		// It goes from 3 to 2 on 25 October: the first half past two counts, for both.
		{"22:00-02:30", "Europe/Berlin", "2026-10-24T21:00:00Z", "2026-10-24T21:00:00Z", "2026-10-25T00:30:00Z"},
		{"02:30-06:00", "Europe/Berlin", "2026-10-25T01:10:00Z", "2026-10-25T01:10:00Z", "2026-10-25T05:00:00Z"},
		// Apia had no 30 December 2011.
		{"22:00-06:00", "Pacific/Apia", "2011-12-30T08:30:00Z", "2011-12-30T08:30:00Z", "2011-12-30T10:00:00Z"},
	} {
		from, to, _ := strings.Cut(c.window, "-")
		lines := fmt.Sprintf("every: 5m\nzone: %s\nnot_before: '%s'\ndone_by: '%s'\n", c.zone, from, to)
		s := parse(t, strings.NewReplacer("not_before: ''\n", "", "done_by: ''\n", "").Replace(lines))
		start := s.Planned(instant(t, c.due))
		testenv.Same(t, start, instant(t, c.start), "%s in %s: due at %s it starts at", c.window, c.zone, c.due)
		by := s.DoneBy(start)
		if (by != nil) != (c.doneBy != "") || by != nil && !by.Equal(instant(t, c.doneBy)) {
			t.Errorf("%s in %s: due at %s it is to be done by %s; want %s", c.window, c.zone, c.due, by, c.doneBy)
		}
	}
}

func TestStartAtWaitsForTheWindowThatIsOpenNow(t *testing.T) {
	t.Parallel()
	s := parse(t, "cron: 0 23 * * *\nnot_before: '22:00'\ndone_by: '06:00'\nstart_deadline: 2h\n")
	planned := instant(t, "2026-01-01T23:00:00Z")
	for now, want := range map[string]string{
		"2026-01-01T20:00:00Z": "2026-01-01T23:00:00Z",
		"2026-01-02T05:00:00Z": "2026-01-02T05:00:00Z",
		"2026-01-02T07:00:00Z": "2026-01-02T22:00:00Z",
	} {
		testenv.Same(t, s.StartAt(planned, instant(t, now)), instant(t, want), "at %s it may start at", now)
	}
	testenv.Same(t, *s.StartBy(planned), instant(t, "2026-01-02T01:00:00Z"), "it is to start by")
}

// TestJitter wants it the same each time, another for other due times and names, spread over all of it, and within the
// window.
func TestJitter(t *testing.T) {
	t.Parallel()
	const lines = "every: 5m\njitter: 10m\n"
	s, other := parse(t, lines), parse(t, lines+"name: other\n")
	begin := instant(t, "2026-01-01T00:00:00Z")
	const n = 2000
	buckets := [10]int{}
	same := 0
	for _, due := range s.NextN(begin, n) {
		late := s.Planned(due).Sub(due)
		if late < 0 || late >= 10*time.Minute || s.Planned(due.In(time.FixedZone("x", 3600))).Sub(due) != late {
			t.Fatalf("due at %s it starts %s later", due, late)
		}
		if other.Planned(due).Sub(due) == late {
			same++
		}
		buckets[late/time.Minute]++
	}
	for i, got := range buckets {
		if got < n/10*7/10 || got > n/10*13/10 {
			t.Errorf("%d of %d start in minute %d: %v", got, n, i, buckets)
		}
	}
	if same > n/100 {
		t.Errorf("of two schedules %d of %d due times have the same jitter", same, n)
	}
	known := s.Planned(begin).Sub(begin)
	testenv.Same(t, known, 535_491*time.Millisecond, "the jitter of %s, on which nodes of two versions agree", begin)
	narrow := parse(t, "every: 5m\njitter: 3h\nnot_before: '22:00'\ndone_by: '23:00'\n")
	for _, due := range narrow.NextN(begin, 300) {
		testenv.MustSame(t, narrow.Planned(due).Hour(), 22, "due at %s it starts at", due)
	}
}

// times writes due times as hours and minutes.
func times(dues []time.Time) string {
	texts := make([]string, len(dues))
	for i, due := range dues {
		texts[i] = due.Format("15:04")
	}
	return strings.Join(texts, " ")
}

func TestDue(t *testing.T) {
	t.Parallel()
	const hourly = "cron: 0 * * * *\n"
	for _, c := range []struct{ lines, last, now, fire, missed string }{
		{hourly, "08:00:00", "09:00:00", "09:00", ""},
		{hourly, "08:00:00", "08:59:59", "", ""},
		{hourly, "08:00:00", "09:01:00", "09:00", ""},
		// Down from half past eight until just before noon.
		{hourly, "08:00:00", "11:55:00", "11:00", "09:00 10:00"},
		{hourly + "misfire: none\n", "08:00:00", "11:55:00", "", "09:00 10:00 11:00"},
		{hourly + "misfire: all\n", "08:00:00", "11:55:00", "09:00 10:00 11:00", ""},
		{hourly + "misfire: all\nmisfire_limit: 2\n", "08:00:00", "11:55:00", "10:00 11:00", "09:00"},
		// And until just after it: the newest is in time, and is the one.
		{hourly, "08:00:00", "12:00:30", "12:00", "09:00 10:00 11:00"},
		{hourly + "misfire: none\n", "08:00:00", "12:00:30", "12:00", "09:00 10:00 11:00"},
		{hourly + "misfire: all\nmisfire_limit: 2\n", "08:00:00", "12:00:30", "10:00 11:00 12:00", "09:00"},
		// What waits for its window is not missed.
		{hourly + "misfire: none\nnot_before: '12:00'\ndone_by: '20:00'\n",
			"08:00:00", "11:55:00", "09:00 10:00 11:00", ""},
	} {
		s := parse(t, c.lines)
		got := s.Due(instant(t, "2026-01-01T"+c.last+"Z"), instant(t, "2026-01-01T"+c.now+"Z"))
		if times(got.Fire) != c.fire || times(got.Missed) != c.missed || got.More {
			t.Errorf("%q from %s to %s fires %s and misses %s; want %s and %s", c.lines, c.last, c.now, times(got.Fire),
				times(got.Missed), c.fire, c.missed)
		}
		want, _ := s.Next(instant(t, "2026-01-01T"+c.now+"Z"))
		testenv.Same(t, got.Next, want, "%q at %s continues at", c.lines, c.now)
	}
}

// With jitter a due time may be planned after the next one: it is not missed before that.
func TestJitterLongerThanTheInterval(t *testing.T) {
	t.Parallel()
	s := parse(t, "every: 1m\njitter: 10m\nmisfire: none\n")
	now := instant(t, "2026-01-01T09:00:00Z")
	got := s.Due(now.Add(-time.Hour), now)
	testenv.Same(t, len(got.Fire)+len(got.Missed), 60, "due times")
	for _, due := range got.Missed {
		if s.Planned(due).After(now.Add(-schedule.OnTime)) {
			t.Errorf("%s is missed at %s and planned for %s", due, now, s.Planned(due))
		}
	}
}

// TestDueAfterYears wants the newest due times, however many there were.
func TestDueAfterYears(t *testing.T) {
	t.Parallel()
	last, now := instant(t, "2016-01-01T00:00:00Z"), instant(t, "2026-01-01T12:30:30Z")
	for lines, want := range map[string]struct{ fire, newest string }{
		"every: 1m\n":                    {"12:30", "12:29"},
		"every: 1m\nmisfire: none\n":     {"12:30", "12:29"},
		"cron: '* * 1 1 *'\n":            {"12:30", "12:29"},
		"every: 1000h\n":                 {"16:00", ""},
		"cron: 0 0 29 2 *\n":             {"00:00", "00:00"},
		"every: 1m\nmisfire: all\n":      {"12:20 12:21 12:22 12:23 12:24 12:25 12:26 12:27 12:28 12:29 12:30", "12:19"},
		"cron: 5 4 * * *\nmisfire: none": {"", "04:05"},
	} {
		s := parse(t, lines)
		got := s.Due(last, now)
		wantMore := lines != "every: 1000h\n" && !strings.Contains(lines, "29 2")
		if len(got.Missed) == 0 || times(got.Fire) != want.fire || got.More != wantMore ||
			len(got.Missed) > schedule.MaxMissed {
			t.Errorf("%q: it fires %s, misses %d, more %v", lines, times(got.Fire), len(got.Missed), got.More)
			continue
		}
		if newest := times(got.Missed[len(got.Missed)-1:]); want.newest != "" && newest != want.newest {
			t.Errorf("%q: the newest that is missed is %s; want %s", lines, newest, want.newest)
		}
	}
}

// parse reads a schedule of which only the lines that matter are given.
func parse(t testing.TB, lines string) *schedule.Spec {
	t.Helper()
	return testenv.Must(schedule.Parse("s", []byte("plan: p\nitems: {file: f.csv}\n"+lines)))(t)
}

// shown is a list of times on the wall of a zone, with the offset.
func shown(t testing.TB, dues []time.Time, zone string) string {
	t.Helper()
	at := testenv.Must(time.LoadLocation(zone))(t)
	texts := make([]string, len(dues))
	for i, due := range dues {
		texts[i] = due.In(at).Format("02 15:04-07")
	}
	return strings.Join(texts, ", ")
}

func TestNext(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ rule, zone, after, want string }{
		// Berlin goes from 2 to 3 o'clock on 29 March 2026, and from 3 to 2 on 25 October.
		{`"30 2 * * *"`, "Europe/Berlin", "2026-03-27T12:00:00Z", "28 02:30+01, 29 03:00+02, 30 02:30+02"},
		{`"*/15 2 * * *"`, "Europe/Berlin", "2026-03-28T12:00:00Z", "29 03:00+02, 30 02:00+02, 30 02:15+02"},
		{`"0 3 * * *"`, "Europe/Berlin", "2026-03-28T12:00:00Z", "29 03:00+02, 30 03:00+02, 31 03:00+02"},
		{`"30 2,3 * * *"`, "Europe/Berlin", "2026-03-28T12:00:00Z", "29 03:00+02, 29 03:30+02, 30 02:30+02"},
		{`"30 2 * * *"`, "Europe/Berlin", "2026-10-24T12:00:00Z", "25 02:30+02, 26 02:30+01, 27 02:30+01"},
		{`"30 2,3 * * *"`, "Europe/Berlin", "2026-10-25T00:45:00Z", "25 03:30+01, 26 02:30+01, 26 03:30+01"},
		{`"30 2 * * *"`, "Europe/Berlin", "2026-10-25T01:15:00Z", "26 02:30+01, 27 02:30+01, 28 02:30+01"},
		{`"*/30 * * * *"`, "Europe/Berlin", "2026-10-24T23:55:00Z", "25 02:00+02, 25 02:30+02, 25 02:00+01"},
		{`"30 * * * *"`, "Europe/Berlin", "2026-03-29T00:00:00Z", "29 01:30+01, 29 03:30+02, 29 04:30+02"},
		{`"@hourly"`, "Europe/Berlin", "2026-10-24T23:55:00Z", "25 02:00+02, 25 02:00+01, 25 03:00+01"},
		// Midnight is left out in Santiago, and half an hour on Lord Howe.
		{`"0 0 * * *"`, "America/Santiago", "2026-09-05T12:00:00Z", "06 01:00-03, 07 00:00-03, 08 00:00-03"},
		{`"15 2 * * *"`, "Australia/Lord_Howe", "2026-10-02T20:00:00Z", "04 02:30+11, 05 02:15+11, 06 02:15+11"},
		{`"0 * * * *"`, "Australia/Lord_Howe", "2026-10-03T14:40:00Z", "04 03:00+11, 04 04:00+11, 04 05:00+11"},
		// Kwajalein had 30 September 1969 twice.
		{`"0 18 * * *"`, "Pacific/Kwajalein", "1969-10-01T02:00:00Z", "01 18:00-12, 02 18:00-12, 03 18:00-12"},
		// Apia had no 30 December 2011, and continues with the 31st.
		{`"0 9 * * *"`, "Pacific/Apia", "2011-12-29T12:00:00Z", "29 09:00-10, 31 00:00+14, 31 09:00+14"},
		// The 2nd of August 2026 is a Sunday.
		{`"0 9 * * 7"`, "UTC", "2026-08-01T00:00:00Z", "02 09:00+00, 09 09:00+00, 16 09:00+00"},
		{`"0 9 * * 6-7"`, "UTC", "2026-08-01T00:00:00Z", "01 09:00+00, 02 09:00+00, 08 09:00+00"},
		{`"0 9 * * 3,5-7/2"`, "UTC", "2026-08-01T00:00:00Z", "02 09:00+00, 05 09:00+00, 07 09:00+00"},
		{`"0 9 * * 0-7"`, "UTC", "2026-08-01T00:00:00Z", "01 09:00+00, 02 09:00+00, 03 09:00+00"},
		{`"0 9 * * 7/2"`, "UTC", "2026-08-01T00:00:00Z", "02 09:00+00, 09 09:00+00, 16 09:00+00"},
		{`"0 9 */31 * *"`, "UTC", "2026-08-01T00:00:00Z", "01 09:00+00, 01 09:00+00, 01 09:00+00"},
		{`"0 0 29 2 *"`, "UTC", "2096-03-01T00:00:00Z", "29 00:00+00, 29 00:00+00, 29 00:00+00"},
		{`"@every 90m"`, "UTC", "2026-01-01T00:00:00.5Z", "01 01:30+00, 01 03:00+00, 01 04:30+00"},
	} {
		s := parse(t, fmt.Sprintf("cron: %s\nzone: %s\n", c.rule, c.zone))
		testenv.Same(t, shown(t, s.NextN(instant(t, c.after), 3), c.zone), c.want,
			"%s in %s after %s", c.rule, c.zone, c.after)
	}
}

func TestStoredSpecIsTheSame(t *testing.T) {
	t.Parallel()
	s := parse(t, "cron: 30 2 * * 1-5\nzone: Europe/Berlin\njitter: 5m\n"+
		"not_before: '22:00'\ndone_by: '06:00'\n"+
		"settings: {rate: 100, chunk: auto}\nparams: {year: '{due.year}'}\nstart_deadline: 1h\n")
	text := testenv.Must(json.Marshal(s))(t)
	var back schedule.Spec
	testenv.MustSame(t, json.Unmarshal(text, &back), nil, "%s", text)
	if again, err := json.Marshal(&back); err != nil || !bytes.Equal(again, text) {
		t.Errorf("%s becomes %s, %v", text, again, err)
	}
	now := instant(t, "2026-03-27T12:00:00Z")
	if got, want := back.Preview(now, 5), s.Preview(now, 5); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v; want %v", got, want)
	}
}
