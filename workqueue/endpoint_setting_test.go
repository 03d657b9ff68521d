package workqueue_test

import (
	"errors"
	"math"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/health"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
)

func TestEndpointSettings(t *testing.T) {
	t.Parallel()
	b := setup(t)
	set := func(endpoint string, concurrency int) error {
		_, err := pacestore.New(b.Store).ChangeEndpoint(t.Context(), pacestore.EndpointChange{Endpoint: endpoint,
			Concurrency: &concurrency}, "ann")
		return err
	}
	for _, err := range []error{set("b", 3), set("a", pacestore.MaxEndpointConcurrency), set("b", 0)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{set("a", -1), set("a", pacestore.MaxEndpointConcurrency+1), set("", 1), set("\x00", 1)} {
		if _, ok := errors.AsType[*workqueue.SettingError](err); !ok {
			t.Errorf("got %v; want a SettingError", err)
		}
	}
	for _, rate := range []float64{-1, 1e-320, 1e-4, 1e8, 1e308, math.NaN(), math.Inf(1), math.Inf(-1)} {
		_, err := pacestore.New(b.Store).ChangeEndpoint(t.Context(), pacestore.EndpointChange{Endpoint: "a", Rate: &rate},
			"ann")
		if _, ok := errors.AsType[*workqueue.SettingError](err); !ok {
			t.Errorf("rate %v: got %v; want a SettingError", rate, err)
		}
	}
	all, err := pacestore.New(b.Store).EndpointSettings(t.Context())
	if err != nil || len(all) != 2 || all[0].Endpoint != "a" || all[0].Concurrency != pacestore.MaxEndpointConcurrency ||
		all[1].Concurrency != 0 || all[1].ChangedBy != "ann" {
		t.Errorf("settings %+v, %v", all, err)
	}
	if n := b.Number(`SELECT count(*) FROM audit_log WHERE action = 'endpoint_set'`); n != 3 {
		t.Errorf("%d audit rows; want 3", n)
	}
}

// A misspelt endpoint, of which nothing was ever heard, is told of while a run uses it, and not afterwards; one that is
// there is, whether or not it is up.
func TestAnEndpointThatNeverWas(t *testing.T) {
	t.Parallel()
	b := setup(t)
	told := func() (breakers, measured int) {
		facts, err := health.New(b.Store).Health(t.Context(), health.Limits{Listed: 10})
		if err != nil {
			t.Fatal(err)
		}
		reading, err := health.New(b.Store).Metrics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range facts.Conditions {
			if facts.Conditions[i].Kind == health.BreakerOpen {
				breakers++
			}
		}
		return breakers, len(reading.Endpoints)
	}
	run := b.Load(storetest.Chunked(1), 2)
	b.Exec(`UPDATE endpoint_pace SET breaker = 'open', breaker_since = tranche_now(), probe_at = tranche_now()`)
	probe := b.One(run)
	if breakers, measured := told(); breakers != 1 || measured != 1 {
		t.Errorf("while a run uses it: %d breakers, %d endpoints are measured", breakers, measured)
	}
	if _, err := control.New(b.Store).Cancel(t.Context(), control.Control{Run: run, Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	if breakers, measured := told(); breakers != 0 || measured != 0 {
		t.Errorf("of one that never was: %d breakers, %d endpoints are measured", breakers, measured)
	}
	b.Exec(`UPDATE work_slice SET handed_at = tranche_now() WHERE id = $1`, probe.ID)
	if breakers, measured := told(); breakers != 1 || measured != 1 {
		t.Errorf("of one that has taken a request: %d breakers, %d endpoints are measured", breakers, measured)
	}
}
