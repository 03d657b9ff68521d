package workqueue_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue/explain"
	"github.com/tranchehq/tranche/workqueue/health"
)

// A service that works far longer on requests and on items than before is told of, with both figures and since when.
// Larger requests of the same items, and smaller ones, are no slower service.
func TestAServiceThatBecameSlow(t *testing.T) {
	t.Parallel()
	type requests struct {
		chunk int
		took  float64 // seconds, of each
	}
	for name, tc := range map[string]struct {
		before, now requests
		ago         string // that the requests before ended
		slow        string
	}{
		"39 s, 1 ms before": {requests{100, 0.1}, requests{1, 39}, "1 hour",
			storetest.Endpoint + " became slow: an item takes 39 s, and took 1 ms before"},
		"large requests":        {requests{1, 0.5}, requests{100, 50}, "1 hour", ""},
		"small requests":        {requests{100, 1.5}, requests{1, 1.2}, "1 hour", ""},
		"somewhat slower":       {requests{1, 1}, requests{1, 9}, "1 hour", ""},
		"slow as long as known": {requests{1, 39}, requests{1, 39}, "1 hour", ""},
		"quick a month ago":     {requests{1, 0.01}, requests{1, 39}, "30 days", ""},
		"quick again":           {requests{1, 0.001}, requests{1, 39}, "1 hour", ""},
		"a host": {requests{100, 0.1}, requests{1, 39}, "1 hour",
			storetest.Endpoint + " became slow: an item takes 39 s, and took 1 ms before"},
		"a host, of waits of ours":      {requests{100, 0.1}, requests{1, 39}, "1 hour", ""},
		"a host, asked something else":  {requests{100, 0.1}, requests{1, 39}, "1 hour", ""},
		"a function of the node itself": {requests{100, 0.1}, requests{1, 39}, "1 hour", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			for _, r := range []requests{tc.before, tc.now} {
				run := b.Load(storetest.Chunked(r.chunk), 5*r.chunk)
				for _, s := range b.Claim(run, 5) {
					a := storetest.Whole(s)
					a.Took = r.took
					b.Record(a)
				}
				if r == tc.before && b.Number(`SELECT count(*) FROM batchrun`) == 1 {
					b.Exec(`UPDATE work_slice SET ended_at = ended_at - $1::interval`, tc.ago)
				}
			}
			if name == "quick again" {
				b.Exec(`UPDATE work_slice SET took = 0.001 WHERE ended_at = (SELECT max(ended_at) FROM work_slice)`)
			}
			run := b.Load(storetest.Chunked(1), 1)
			switch {
			case strings.HasPrefix(name, "a host"):
				b.Exec(`UPDATE run_step SET kind = 'http', config = '{"url": "x"}'`)
				b.Exec(`UPDATE work_slice SET worked = took`)
			case strings.HasPrefix(name, "a function"):
				b.Exec(`UPDATE run_step SET kind = 'local'`)
			}
			switch name {
			case "a host, of waits of ours":
				b.Exec(`UPDATE work_slice SET worked = 0.001`)
			case "a host, asked something else":
				b.Exec(`UPDATE run_step SET config = '{"url": "y"}'
					WHERE run_id IN (SELECT run_id FROM work_slice WHERE took < 1)`)
			}
			facts, err := health.New(b.Store).Health(t.Context(), health.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			of, err := explain.New(b.Store).ExplainEndpoint(t.Context(), storetest.Endpoint)
			if err != nil {
				t.Fatal(err)
			}
			notes := slices.Concat(b.explain(run).Notes, of.Notes)
			if tc.slow == "" {
				if len(facts.Slow) != 0 || len(notes) != 0 {
					t.Errorf("%+v, %q; want nothing", facts.Slow, notes)
				}
				return
			}
			if len(facts.Slow) != 1 || facts.Slow[0].String() != tc.slow || facts.Slow[0].Runs != 1 {
				t.Fatalf("%+v; want %s", facts.Slow, tc.slow)
			}
			if n := b.Number(`SELECT count(*) FROM (SELECT min(ended_at) AS first FROM work_slice WHERE took = 39) w
				WHERE first = $1::timestamptz + interval '39 s'`, facts.Slow[0].Since); n != 1 {
				t.Errorf("since %s; want when the first slow request began", facts.Slow[0].Since)
			}
			if len(notes) != 2 || !strings.Contains(notes[0], tc.slow) || !strings.Contains(notes[1], tc.slow) {
				t.Errorf("explained: %q", notes)
			}
		})
	}
}
