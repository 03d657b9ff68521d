package admin

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/forecast"
)

const nightPlan = `
steps:
  - {name: check, endpoint: checks, chunk: 100, in_flight: 8}
  - {name: send, endpoint: mails, chunk: 100, in_flight: 8, needs: [check], barrier: approve}
`

// A run is simulated without a server; errors name the flag and what is accepted.
func TestSimulate(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "night.yaml")
	testenv.NoError(t, os.WriteFile(file, []byte(nightPlan), 0o600))
	play := func(change func(*simulateCommand)) (string, error) {
		s := &simulateCommand{Plan: file, Items: 80_000, Latency: []string{"check=1s", "send=500ms±50ms"},
			Start: "2099-01-31T22:00"} // 100 s, then 50 s
		change(s)
		var out bytes.Buffer
		err := s.Run(t.Context(), &cli.Console{In: strings.NewReader(""), Out: &out, Err: &out}, nil)
		return out.String(), err
	}
	for name, c := range map[string]struct {
		change func(*simulateCommand)
		says   []string
	}{
		"alone": {func(s *simulateCommand) { s.DoneBy = "22:10" }, []string{"Jan 31 22:02:3", "22:10:00", ": met\n",
			"8 requests in flight by its in_flight", "step send is approved immediately", "█"}},
		"an outage": {func(s *simulateCommand) {
			s.Outage, s.DoneBy = []string{"check@22:01+20m"}, "22:10"
		}, []string{"Jan 31 22:22:3", "late by 12m"}},
		"an outage by another clock": {func(s *simulateCommand) {
			at := testenv.Must(time.ParseInLocation("2006-01-02T15:04", "2099-01-31T22:01", time.Local))(t)
			s.Outage = []string{"check@" + at.In(time.FixedZone("", 3600)).Format(time.RFC3339) + "+20m"}
		}, []string{"Jan 31 22:22:3"}},
		"slow":     {func(s *simulateCommand) { s.Slow = []string{"check=2x@22:00+1h"} }, []string{"Jan 31 22:04:1"}},
		"retries":  {func(s *simulateCommand) { s.Retries = []string{"check=50%"} }, []string{"Jan 31 22:03:2"}},
		"settings": {func(s *simulateCommand) { s.Set = []string{"check.in_flight=4"} }, []string{"Jan 31 22:04:1"}},
	} {
		out, err := play(c.change)
		for _, says := range c.says {
			if err != nil || !strings.Contains(out, says) {
				t.Errorf("%s: %v; want %q in\n%s", name, err, says, out)
			}
		}
	}
	for says, change := range map[string]func(*simulateCommand){
		"the latency of its requests is unknown":   func(s *simulateCommand) { s.Latency = s.Latency[:1] },
		`no step "mail"; it has: check, send`:      func(s *simulateCommand) { s.Latency = []string{"mail=1s"} },
		`invalid time "fast"; want one like 200ms`: func(s *simulateCommand) { s.Latency = []string{"send=fast"} },
		`invalid share "2"; want 0%`:               func(s *simulateCommand) { s.Retries = []string{"send=2"} },
		`invalid factor "a"`:                       func(s *simulateCommand) { s.Slow = []string{"send=ax@23:00+1m"} },
		`send@25:00+1m: invalid time`:              func(s *simulateCommand) { s.Outage = []string{"send@25:00+1m"} },
		`invalid span ""; want how long it lasts`:  func(s *simulateCommand) { s.Outage = []string{"send@23:00"} },
		"send: want one like":                      func(s *simulateCommand) { s.Outage = []string{"send"} },
		`--set send.color=1: no setting "color"`:   func(s *simulateCommand) { s.Set = []string{"send.color=1"} },
		`--set mail.rate=1: the run has no step`:   func(s *simulateCommand) { s.Set = []string{"mail.rate=1"} },
		`--done-by: invalid time "noon"`:           func(s *simulateCommand) { s.DoneBy = "noon" },
		`invalid time "2001-01-31T22:00"`:          func(s *simulateCommand) { s.Start = "2001-01-31T22:00" },
		"more than ten years": func(s *simulateCommand) {
			s.Items, s.Latency = 1_000_000_000, []string{"check=24h", "send=1s"}
		},
		"not before 2099-01-31T22:00": func(s *simulateCommand) { s.DoneBy = "2099-01-31T21:00" },
	} {
		out, err := play(change)
		testenv.Says(t, err, says, "%s", out)
	}
}

// What a rerun requested again is not a retry.
func TestAProfileTellsRetriesFromRerun(t *testing.T) {
	t.Parallel()
	n := &forecast.Network{Steps: []forecast.Step{{}}}
	profile(n, map[string]int{"send": 0}, []client.StepReport{{Name: "send", Requests: 22, Asked: 220, Retried: 20,
		Done: 100, P50Seconds: 1}})
	testenv.Same(t, n.Steps[0].Cost.Again, 0.1, "of the items are retried")
}
