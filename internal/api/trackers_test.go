package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tranchehq/tranche/endpoints/fanout"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/kernel"
)

// tracked asks the tracker service and reads what it answers.
func (b *bench) tracked(method, path, body string, status int, into any) {
	b.Helper()
	code, text := b.ask(method, api.Prefix+"/trackers"+path, strings.NewReader(body), "Content-Type", "application/json",
		kernel.ActorHeader, "ann")
	if code != status {
		b.Fatalf("%s %s: %d %s; want %d", method, path, code, text, status)
	}
	if into != nil {
		if err := json.Unmarshal(text, into); err != nil {
			b.Fatalf("%s %s: %v in %s", method, path, err, text)
		}
	}
}

// The whole way of a batch over HTTP.
func TestTrackers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var opened fanout.BatchOpened
	const set = `{"owner":"billing","key":"nov","sealed_idle":"48h"}`
	b.tracked(http.MethodPost, "", set, http.StatusCreated, &opened)
	again := fanout.BatchOpened{}
	if b.tracked(http.MethodPost, "", set, http.StatusOK, &again); again.ID != opened.ID || !again.Existing {
		t.Errorf("opened again: %+v, not %s", again, opened.ID)
	}
	at := "/" + opened.ID
	var added fanout.GroupsAdded
	b.tracked(http.MethodPost, at+"/groups", `{"items":8200,"key":"k"}`, http.StatusOK, &added)
	if added.Groups != 2 || added.LastID != opened.ID+":1:7" {
		t.Errorf("added: %+v", added)
	}
	b.tracked(http.MethodPost, at+"/groups", `{"items":8200,"key":"k"}`, http.StatusOK, &added)
	if !added.Existing {
		t.Errorf("added again: %+v", added)
	}
	var acked fanout.BatchesAcked
	b.tracked(http.MethodPost, at+"/ack", `{"ranges":["0"]}`, http.StatusOK, &acked)
	if acked.Newly != 8192 || len(acked.CompletedBatches) != 0 {
		t.Errorf("acknowledged: %+v", acked)
	}
	b.tracked(http.MethodPost, "/ack", `{"ids":["`+opened.ID+`:1:0"],"code":"LOST"}`, http.StatusOK, nil)
	var missing fanout.MissingPage
	b.tracked(http.MethodGet, at+"/missing", "", http.StatusOK, &missing)
	if !slices.Equal(missing.Ranges, []string{"1:1-7"}) {
		t.Errorf("missing: %+v", missing)
	}
	var groups fanout.GroupPage
	b.tracked(http.MethodGet, at+"/groups?limit=1&after=0", "", http.StatusOK, &groups)
	if len(groups.Groups) != 1 || groups.Groups[0] != (fanout.GroupView{Group: 1, Size: 8, Pending: 7, Failed: 1}) {
		t.Errorf("groups: %+v", groups)
	}
	var sealed fanout.BatchSealed
	if b.tracked(http.MethodPost, at+"/seal", "", http.StatusOK, &sealed); sealed.Completed {
		t.Errorf("sealed: %+v", sealed)
	}
	b.ackTwice(opened.ID)
	var view fanout.BatchView
	b.tracked(http.MethodGet, at+"?missing=5", "", http.StatusOK, &view)
	if view.State != "completed" || view.Done != 8199 || view.Failed != 1 || view.Codes["LOST"] != 1 ||
		view.CreatedBy != "ann" || view.SealedIdle != "48h0m0s" || view.Missing != nil {
		t.Errorf("at the end: %+v", view)
	}
	var page fanout.BatchPage
	b.tracked(http.MethodGet, "?owner=billing&state=completed", "", http.StatusOK, &page)
	if len(page.Batches) != 1 || page.Batches[0].ID != opened.ID || page.Next != "" {
		t.Errorf("list: %+v", page)
	}
	b.tracked(http.MethodDelete, at, "", http.StatusOK, nil)
	b.tracked(http.MethodGet, at, "", http.StatusNotFound, nil)
}

// ackTwice acknowledges the last seven items, each by two callers at the same time: one call is told of the end.
func (b *bench) ackTwice(batch string) {
	b.Helper()
	var told, newly atomic.Int64
	var all sync.WaitGroup
	for i := range 14 {
		all.Go(func() {
			var acked fanout.BatchesAcked
			code, text, err := b.tryAsk(http.MethodPost, api.Prefix+"/trackers/ack",
				strings.NewReader(fmt.Sprintf(`{"ids":["%s:1:%d"]}`, batch, 1+i/2)), "Content-Type", "application/json")
			if err != nil || code != http.StatusOK || json.Unmarshal(text, &acked) != nil {
				b.Errorf("%d %s, %v", code, text, err)
			}
			newly.Add(acked.Newly)
			told.Add(int64(len(acked.CompletedBatches)))
		})
	}
	all.Wait()
	if told.Load() != 1 || newly.Load() != 7 {
		b.Errorf("%d calls were told of the end, and %d items were new", told.Load(), newly.Load())
	}
}

// A problem of the tracker service has a code in its type, and points at the text that is wrong.
func TestTrackerProblems(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var opened fanout.BatchOpened
	b.tracked(http.MethodPost, "", `{"owner":"o"}`, http.StatusCreated, &opened)
	at, id := "/"+opened.ID, opened.ID
	b.tracked(http.MethodPost, at+"/groups", `{"items":3}`, http.StatusOK, nil)
	const unknown = "0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58"
	for _, c := range []struct {
		path, body      string
		status          int
		code, at, value string
	}{
		{at + "/ack", `{}`, 422, "nothing_given", "", ""},
		{at + "/ack", `{"ids":[1,2,{}]}`, 422, "bad_request", "body.ids", ""},
		{"/ack", `{"ranges":["0"],"cod":"LOST"}`, 422, "bad_request", "", ""},
		{at + "/ack", `{"ids":["` + id + `:0:1","` + id + `:0:01"]}`, 422, "bad_id", "body.ids[1]", id + ":0:01"},
		{at + "/ack", `{"ids":["` + unknown + `:0:1"]}`, 422, "wrong_batch", "body.ids[0]", unknown + ":0:1"},
		{at + "/ack", `{"ids":["` + id + `:4:1"]}`, 422, "no_such_group", "body.ids[0]", id + ":4:1"},
		{at + "/ack", `{"ids":["` + id + `:0:3"]}`, 422, "index_past_size", "body.ids[0]", id + ":0:3"},
		{"/ack", `{"ranges":["` + unknown + `:all"]}`, 404, "no_such_batch", "body.ranges[0]", unknown + ":all"},
		{at + "/groups", `{"items":0}`, 422, "zero_items", "body.items", ""},
		{at + "/groups", `{"items":1e30}`, 422, "bad_request", "body.items", ""},
		{"/" + unknown + "/groups", `{"items":1}`, 404, "no_such_batch", "", ""},
		{"", `{"owner":"o","webhook":{"url":"https://evil.example/","secret":"s"}}`, 422, "webhook_refused", "body.webhook",
			"https://evil.example/"},
		{"", `{"owner":"o","id":"` + id + `","keep":"2s"}`, 409, "key_conflict", "body.keep", ""},
	} {
		code, text := b.ask(http.MethodPost, api.Prefix+"/trackers"+c.path, strings.NewReader(c.body),
			"Content-Type", "application/json")
		var p struct {
			Type   string
			Errors []struct{ Location, Value string }
		}
		_ = json.Unmarshal(text, &p) // ask has checked it
		pointed := len(p.Errors) == 1 && p.Errors[0].Location == c.at && p.Errors[0].Value == c.value ||
			len(p.Errors) == 0 && c.at == ""
		if code != c.status || p.Type != "urn:tranche:tracker:"+c.code || !pointed {
			t.Errorf("%s %s: %d %s; want %d %s at %s", c.path, c.body, code, text, c.status, c.code, c.at)
		}
	}
	b.tracked(http.MethodPost, at+"/seal", "", http.StatusOK, nil)
	b.tracked(http.MethodPost, at+"/groups", `{"items":1}`, http.StatusConflict, nil)
	_, text := b.ask(http.MethodGet, api.Prefix+"/trackers"+at+"/missing?after=x", nil)
	if !strings.Contains(string(text), `"location":"query.after"`) {
		t.Errorf("a place that is none is told as %s", text)
	}
	for _, path := range []string{"/x", at + "/missing?after=x", "?after=x", "?state=tired", at + "/groups?limit=0"} {
		b.tracked(http.MethodGet, path, "", http.StatusUnprocessableEntity, nil)
	}
}
