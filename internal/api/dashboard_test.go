package api_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// What no route takes is the dashboard's, except what is below the API's prefix.
func TestTheDashboardTakesWhatNoRouteTakes(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	pages := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache")
		_, _ = io.WriteString(w, "page "+r.URL.Path) // into memory
	})
	b.Over(apitest.NodeOf(b.Engine), testenv.Conn(t, testenv.NATS(t)), api.Config{Dashboard: pages})
	for _, at := range []string{"/", "/runs", "/api", "/static/x.js", "/healthz/more"} {
		if code, text := b.Ask(http.MethodGet, at, nil); code != http.StatusOK || string(text) != "page "+at {
			t.Errorf("%s: %d %s", at, code, text)
		}
	}
	b.Refused(404, "openapi", http.MethodGet, api.Prefix+"/nowhere", nil)
	b.Refused(404, "use one of alert.json, collector.json", http.MethodGet, "/schemas/plans.json", nil)
	schema := b.Send(http.MethodGet, "/schemas/plan.json", "")
	testenv.Same(t, schema.Header.Get("Cache-Control"), "public, max-age=3600", "a schema is cached")
	b.Refused(405, "takes GET", http.MethodPost, "/healthz", strings.NewReader("x"))
	b.Refused(405, "takes GET and DELETE, not PUT", http.MethodPut, api.Prefix+"/trackers/x", strings.NewReader("{}"))
	if code, text := b.Ask(http.MethodGet, "/healthz", nil); code != http.StatusOK || string(text) != "ok\n" {
		t.Errorf("/healthz: %d %s", code, text)
	}
}

func TestBelowABasePath(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.ServeWith(testenv.Conn(t, testenv.NATS(t)), api.Config{BasePath: "/tranche"})
	made := b.Send(http.MethodPost, api.Prefix+"/runs?endpoint=echo", apitest.Three, "Content-Type", "text/csv")
	testenv.Has(t, made.Header.Get("Location"), "/tranche"+api.Prefix+"/runs/", "a new run is at")
	_, document := b.Get("/openapi.json")
	testenv.Has(t, document, `"servers":[{"url":"/tranche`+api.Prefix+`"}]`, "the API is at")
}
