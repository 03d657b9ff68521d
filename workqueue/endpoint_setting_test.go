package workqueue_test

import (
	"errors"
	"math"
	"testing"

	"github.com/tranchehq/tranche/workqueue"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
)

func TestEndpointSettings(t *testing.T) {
	t.Parallel()
	b := setup(t)
	set := func(endpoint string, concurrency int) error {
		setting := pacestore.EndpointSetting{Endpoint: endpoint, Concurrency: concurrency}
		return pacestore.New(b.Store).SetEndpoint(t.Context(), setting, "ann")
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
