package api_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// A new version gets a share of the requests, and its figures are separate.
func TestVersionsAreCompared(t *testing.T) {
	t.Parallel()
	e := apitest.SetupEngine(t)
	serve := func(name string, handle func(context.Context, *apitest.Numbers) error) {
		e.Serve(func(svc *endpoints.Service) error { return endpoints.HandleList(svc, name, handle) })
	}
	serve("count", apitest.Reply)
	serve("third", apitest.Reply)
	serve("count-v2", func(_ context.Context, chunk *apitest.Numbers) error {
		for _, item := range chunk.Items() {
			if item.In.N%10 == 3 {
				item.Fail("three", "%d ends in 3", item.In.N)
			} else {
				item.Reply(item.In)
			}
		}
		return nil
	})
	e.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, "other", func(context.Context,
			*endpoints.Chunk[struct{ Name string }, string]) error {
			return nil
		})
	})
	at := "/endpoints/count/settings"
	for body, says := range map[string]string{
		`{"canary":{"share":5}}`:                           "endpoint count has no canary",
		`{"canary":{"endpoint":"count","share":5}}`:        "under another name, for example count-v2",
		`{"canary":{"endpoint":"count-v3","share":5}}`:     "start the new version under that name first",
		`{"canary":{"endpoint":"other","share":5}}`:        "it reads other fields than count",
		`{"canary":{"endpoint":"count-v2","share":101}}`:   "validation failed",
		`{"canary":{"endpoint":"http:example","share":0}}`: "both must be endpoints",
	} {
		e.Says(422, at, body, says)
	}
	testenv.Until(t, time.Minute, "all services have answered in time for a similar name", func() bool {
		_, detail, _ := e.Asked(at, `{"canary":{"endpoint":"count-v3","share":5}}`, "Content-Type", "application/json",
			apicore.ActorHeader, "ann")
		return strings.Contains(detail, "did you mean count")
	})
	e.Says(200, at, `{"max_in_flight":90,"namespaces":["default"]}`, `90`)
	e.Says(200, at, `{"canary":{"endpoint":"count-v2","share":50}}`, `"canary_share":50`)
	testenv.Same(t, e.Number(`SELECT count(*) FROM audit_log WHERE subject = 'count-v2'
		AND after = '{"max_in_flight": 90, "namespaces": "default"}'`), 1, "limits that the new version got")
	v2 := "/endpoints/count-v2/settings"
	e.Says(422, at, `{"namespaces":[]}`, "is for all, and its canary count-v2 for default")
	e.Says(422, v2, `{"namespaces":[]}`, "is for default, and its canary count-v2 for all")
	e.Says(422, at, `{"canary":{"endpoint":"third","share":5}}`, "50% of the requests go to count-v2")
	e.Says(422, v2, `{"canary":{"endpoint":"count","share":5}}`, "is already the canary of")
	e.Says(422, "/endpoints/third/settings", `{"canary":{"endpoint":"count-v2","share":5}}`,
		"count-v2 is already the canary of count")
	e.Says(409, at, `{"canary":{"share":40},"if_was":{"canary":"30"}}`, "30")
	run := e.Load("count", 400, nil)
	apitest.Eventually(t, "the run completes", func() bool {
		return e.Number(`SELECT count(*) FROM batchrun WHERE id = $1 AND state = 'completed'`, run) == 1
	})
	c := apitest.Read[api.Endpoint](e.Bench, "/endpoints/count").Canary
	to, old := c.Compared[0], c.Compared[1]
	if to.Items+old.Items != 400 || to.Items != to.Failed*10 || to.Codes[0].Code != "three" ||
		to.P95Millis < to.P50Millis ||
		old.Items == 0 || old.Failed+old.Timeouts+old.Retried != 0 || old.P50Millis <= 0 {
		t.Errorf("%+v, %+v", to, old)
	}
	testenv.Same(t, c.State, "50% of the requests go to count-v2", "what is said")
	e.Says(200, at, `{"canary":{"share":0},"if_was":{"canary":"50"}}`, `"canary":"count-v2"`)
	testenv.Same(t, apitest.Read[api.Endpoint](e.Bench, "/endpoints/count").Canary.State, "no requests go to count-v2",
		"what is said")
	e.Says(200, at, `{"namespaces":[]}`, `"canary":"count-v2"`)
	e.Says(422, at, `{"canary":{"share":5}}`, "is for all, and its canary count-v2 for default")
	e.Says(200, v2, `{"namespaces":[]}`, `90`)
	e.Says(200, at, `{"canary":{"share":5}}`, `"canary_share":5`)
}
