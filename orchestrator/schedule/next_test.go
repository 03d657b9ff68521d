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

// parse reads a schedule of which only the lines that matter are given.
func parse(t testing.TB, lines string) *schedule.Spec {
	t.Helper()
	s := testenv.Must(schedule.Parse("s", []byte("plan: p\nitems: {file: f.csv}\n"+lines)))(t)
	return s
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
		{`"*/30 * * * *"`, "Europe/Berlin", "2026-10-24T23:55:00Z", "25 02:00+02, 25 02:30+02, 25 02:00+01"},
		{`"30 * * * *"`, "Europe/Berlin", "2026-03-29T00:00:00Z", "29 01:30+01, 29 03:30+02, 29 04:30+02"},
		{`"@hourly"`, "Europe/Berlin", "2026-10-24T23:55:00Z", "25 02:00+02, 25 02:00+01, 25 03:00+01"},
		// Midnight is left out in Santiago, and half an hour on Lord Howe.
		{`"0 0 * * *"`, "America/Santiago", "2026-09-05T12:00:00Z", "06 01:00-03, 07 00:00-03, 08 00:00-03"},
		{`"15 2 * * *"`, "Australia/Lord_Howe", "2026-10-02T20:00:00Z", "04 02:30+11, 05 02:15+11, 06 02:15+11"},
		// Apia had no 30 December 2011, and goes on with the 31st.
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
		if got := shown(t, s.NextN(instant(t, c.after), 3), c.zone); got != c.want {
			t.Errorf("%s in %s after %s: %s; want %s", c.rule, c.zone, c.after, got, c.want)
		}
	}
}

func TestStoredSpecIsTheSame(t *testing.T) {
	t.Parallel()
	s := parse(t, "cron: 30 2 * * 1-5\nzone: Europe/Berlin\njitter: 5m\n"+
		"window: {not_before: '22:00', end_deadline: '06:00'}\n"+
		"settings: {rate: 100, chunk: auto}\nparams: {year: '{due.year}'}\nstart_deadline: 1h\n")
	text := testenv.Must(json.Marshal(s))(t)
	var back schedule.Spec
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if again, err := json.Marshal(&back); err != nil || !bytes.Equal(again, text) {
		t.Errorf("%s becomes %s, %v", text, again, err)
	}
	now := instant(t, "2026-03-27T12:00:00Z")
	if got, want := back.Preview(now, 5), s.Preview(now, 5); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v; want %v", got, want)
	}
}
