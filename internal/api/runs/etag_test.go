package runs_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// Who has a document already is told so, until it changes.
func TestDocumentsAreKnownByTheirTags(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Apply(apitest.YearEnd, "")
	run := b.Start("name=r").Run
	for _, path := range []string{"/runs/r", "/runs/r/items/2", "/plans/year-end"} {
		answer, _ := b.Get(path)
		tag := answer.Header.Get("ETag")
		if answer.StatusCode != http.StatusOK || tag == "" {
			t.Fatalf("%s: %d, ETag %q", path, answer.StatusCode, tag)
		}
		answer, text := b.Get(path, "If-None-Match", `"x", `+tag)
		if answer.StatusCode != http.StatusNotModified || text != "" {
			t.Errorf("%s: %d %q; want 304", path, answer.StatusCode, text)
		}
		if answer, text := b.Get(path, "If-None-Match", `"x"`); answer.StatusCode != http.StatusOK || text == "" {
			t.Errorf("%s: %d; want 200", path, answer.StatusCode)
		}
		if path != "/plans/year-end" {
			b.Answer(run, "", func(workqueue.Ordinal) []byte { return []byte("1") })
			b.Post("/runs/r/reset", `{"keys":["2"]}`, nil)
		}
		if answer, _ := b.Get(path, "If-None-Match", tag); answer.StatusCode != http.StatusOK && path != "/plans/year-end" {
			t.Errorf("%s: %d after a change; want 200", path, answer.StatusCode)
		}
	}
	answer, _ := b.Get("/plans/year-end")
	first := answer.Header.Get("ETag")
	put := func(path string, status int, want, tag, text string) {
		t.Helper()
		header := map[bool]string{true: "If-None-Match", false: "If-Match"}[tag == "*"]
		code, got := b.Ask(http.MethodPost, api.Prefix+path, strings.NewReader(text), header, tag)
		if code != status || !strings.Contains(string(got), want) {
			t.Errorf("%d %s; want %d %s", code, got, status, want)
		}
	}
	put("/plans", 200, `"version":2`, first, apitest.YearEnd+"# more\n")
	put("/plans", 412, "newest version of plan year-end is 2", first, apitest.YearEnd+"# other\n")
	put("/plans", 412, "exists already, in version 2", "*", apitest.YearEnd+"# x\n")
	put("/plans", 422, "If-Match is not the current ETag", `W/"abc"`, apitest.YearEnd)
	put("/plans", 412, "there is no plan new", first, "name: new\nsteps:\n  - {name: a, endpoint: echo}\n")
	for kind, text := range map[string]string{
		"schedule":  "name: it\nevery: 720h\nendpoint: echo\nitems: {file: a.csv}\n",
		"collector": "name: it\nendpoint: echo\n", "alert": "name: it\nwhen: {runs: [paused]}\nto: {command: page}\n",
	} {
		put("/"+kind+"s", 200, `"version":1`, "*", text)
		put("/"+kind+"s", 412, kind+" it exists already, in version 1", "*", text+"# other\n")
		answer, _ := b.Get("/" + kind + "s/it")
		first := answer.Header.Get("ETag")
		put("/"+kind+"s", 200, `"version":2`, first, text+"# more\n")
		put("/"+kind+"s", 412, "newest version of "+kind+" it is 2", first, text+"# other\n")
	}
}

// Cached groups of errors are never stale.
func TestErrorsAreCountedAnew(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Start("name=e").Run
	b.Answer(run, "", func(o workqueue.Ordinal) []byte {
		if o == 1 {
			return []byte("1")
		}
		return nil
	})
	errorsAre := func(want ...string) {
		t.Helper()
		_, text := b.Get("/runs/e/errors")
		for _, w := range want {
			testenv.Has(t, text, w, "the answer")
		}
	}
	for range 2 {
		errorsAre(`"items":2,`, `"by_step":[{"step":"echo","count":2}]`, `"by_service":[{"service":"test","count":2}]`)
	}
	b.Sent(200, false, "", "again", "/runs/e/rerun", `{"ranges":[[0,0]]}`)
	errorsAre(`"items":1,`, `"by_step":[{"step":"echo","count":1}]`)
	b.Answer(run, "", func(workqueue.Ordinal) []byte { return []byte("2") })
	errorsAre(`"items":1,`)
	b.Sent(200, false, "", "more", "/runs/e/rerun", `{"ranges":[[0,2]]}`)
	errorsAre(`"items":0,`, `"groups":[]`, `"by_step":[]`)
	b.Answer(run, "", func(workqueue.Ordinal) []byte { return nil })
	errorsAre(`"items":3,`, `"by_service":[{"service":"test","count":3}]`)
}
