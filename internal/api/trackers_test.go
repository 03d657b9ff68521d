package api_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/trackers"
)

// The whole way of a batch over HTTP.
func TestTrackers(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	var opened trackerclient.BatchOpened
	const set = `{"owner":"billing","key":"nov","sealed_idle":"48h"}`
	b.Tracked(http.MethodPost, "", set, http.StatusCreated, &opened)
	again := trackerclient.BatchOpened{}
	if b.Tracked(http.MethodPost, "", set, http.StatusOK, &again); again.ID != opened.ID || !again.Existing {
		t.Errorf("opened again: %+v, not %s", again, opened.ID)
	}
	at := "/" + opened.ID
	var added trackerclient.GroupsAdded
	b.Tracked(http.MethodPost, at+"/groups", `{"items":8200,"key":"k"}`, http.StatusOK, &added)
	if added.Groups != 2 || added.LastID != opened.ID+":1:7" {
		t.Errorf("added: %+v", added)
	}
	b.Tracked(http.MethodPost, at+"/groups", `{"items":8200,"key":"k"}`, http.StatusOK, &added)
	if !added.Existing {
		t.Errorf("added again: %+v", added)
	}
	var acked trackerclient.BatchesAcked
	b.Tracked(http.MethodPost, at+"/ack", `{"ranges":["0"]}`, http.StatusOK, &acked)
	if acked.Newly != 8192 || len(acked.CompletedBatches) != 0 {
		t.Errorf("acknowledged: %+v", acked)
	}
	b.Tracked(http.MethodPost, "/ack", `{"ids":["`+opened.ID+`:1:0"],"code":"LOST"}`, http.StatusOK, nil)
	var missing trackerclient.MissingPage
	b.Tracked(http.MethodGet, at+"/missing", "", http.StatusOK, &missing)
	testenv.SameList(t, missing.Ranges, []string{"1:1-7"}, "missing: %+v", missing)
	var groups trackerclient.GroupPage
	b.Tracked(http.MethodGet, at+"/groups?limit=1&after=0", "", http.StatusOK, &groups)
	if len(groups.Groups) != 1 || groups.Groups[0] != (trackerclient.GroupView{Group: 1, Size: 8, Pending: 7, Failed: 1}) {
		t.Errorf("groups: %+v", groups)
	}
	var sealed trackerclient.BatchSealed
	if b.Tracked(http.MethodPost, at+"/seal", "", http.StatusOK, &sealed); sealed.Completed {
		t.Errorf("sealed: %+v", sealed)
	}
	b.AckTwice(opened.ID)
	var view trackerclient.BatchView
	b.Tracked(http.MethodGet, at+"?missing=5", "", http.StatusOK, &view)
	if view.State != "completed" || view.Done != 8199 || view.Failed != 1 || view.Codes["LOST"] != 1 ||
		view.CreatedBy != "ann" || view.SealedIdle != "48h0m0s" || view.Missing != nil {
		t.Errorf("at the end: %+v", view)
	}
	var page trackerclient.BatchPage
	b.Tracked(http.MethodGet, "?owner=billing&state=completed", "", http.StatusOK, &page)
	if len(page.Batches) != 1 || page.Batches[0].ID != opened.ID || page.Next != "" {
		t.Errorf("list: %+v", page)
	}
	b.Tracked(http.MethodDelete, at, "", http.StatusOK, nil)
	b.Tracked(http.MethodGet, at, "", http.StatusNotFound, nil)
}

// A problem of the tracker service has a code in its type, and points at the text that is wrong.
func TestTrackerProblems(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	var opened trackerclient.BatchOpened
	b.Tracked(http.MethodPost, "", `{"owner":"o"}`, http.StatusCreated, &opened)
	at, id := "/"+opened.ID, opened.ID
	b.Tracked(http.MethodPost, at+"/groups", `{"items":3}`, http.StatusOK, nil)
	const unknown = "0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58"
	for _, c := range []struct {
		path, body      string
		status          int
		code, at, value string
	}{
		{at + "/ack", `{}`, 422, "nothing_given", "", ""},
		{at + "/ack", `{"ids":[1,2,{}]}`, 422, "bad_request", "body.ids[0]", ""},
		{"/ack", `{"ranges":["0"],"cod":"LOST"}`, 422, "bad_request", "body.cod", ""},
		{at + "/ack", `{"ranges":["0"],"code":""}`, 422, "bad_request", "body.code", ""},
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
		code, text := b.Ask(http.MethodPost, api.Prefix+"/trackers"+c.path, strings.NewReader(c.body),
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
	b.Tracked(http.MethodPost, at+"/seal", "", http.StatusOK, nil)
	b.Tracked(http.MethodPost, at+"/groups", `{"items":1}`, http.StatusConflict, nil)
	_, text := b.Ask(http.MethodGet, api.Prefix+"/trackers"+at+"/missing?after=x", nil)
	testenv.Has(t, string(text), `"location":"query.after"`, "a place that is none is told as")
	for _, path := range []string{"/x", at + "/missing?after=x", "?after=x", "?state=tired", at + "/groups?limit=0"} {
		b.Tracked(http.MethodGet, path, "", http.StatusUnprocessableEntity, nil)
	}
}

// A webhook's URL may hold a secret, and a receiver may repeat it: viewers are told whose it is, operators all of it,
// and the audit log and the node's log nothing that is secret.
func TestViewersSeeWhoseAWebhookIs(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	const origin, secret = "https://api.bank.example", "T0PSECRET"
	dir := t.TempDir()
	key := []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	testenv.NoError(t, os.WriteFile(filepath.Join(dir, "hooks.key"), key, 0o600))
	conns := testenv.Must(connections.Parse(filepath.Join(dir, "connections.yaml"),
		[]byte("secrets: {hooks: {file: hooks.key, hosts: ["+origin+"]}}")))(t)
	service, ann := trackers.New(b.Store, trackers.Config{Connections: conns}), trackers.Caller{Actor: "ann"}
	open := trackerclient.BatchSettings{Owner: "o", Key: "k", Webhook: &trackerclient.WebhookSettings{
		URL: origin + "/hooks/" + secret + "?key=" + secret, Secret: "hooks"}}
	opened := testenv.Must(service.Open(t.Context(), open, ann))(t)
	testenv.Must(b.Pool.Exec(t.Context(), `UPDATE tracker_service SET webhook_error = E'it answers 404\nno /' || $1`,
		secret))(t)
	locked := b.Locked()
	as := func(role access.Role, path string) string {
		code, text := b.Ask(http.MethodGet, api.Prefix+path, nil, "Authorization",
			"Bearer "+b.Token(string(role)+path, role, time.Hour).Secret)
		if code != http.StatusOK || !strings.Contains(string(text), origin) {
			t.Errorf("%s: %s is answered %d %s", role, path, code, text)
		}
		return string(text)
	}
	for _, path := range []string{"/trackers", "/trackers/" + opened.ID} {
		if text := as(access.Viewer, path); strings.Contains(text, secret) || !strings.Contains(text, `"it answers 404"`) {
			t.Errorf("a viewer sees %s", text)
		}
		for _, role := range []access.Role{access.Operator, access.Admin} {
			if text := as(role, path); !strings.Contains(text, open.Webhook.URL) ||
				!strings.Contains(text, `"it answers 404: no /`+secret) {
				t.Errorf("%s sees %s", role, text)
			}
		}
	}
	if text := as(access.Admin, "/audit"); strings.Contains(text, secret) {
		t.Errorf("the audit log tells %s", text)
	}
	open.Webhook.URL += "2"
	if _, err := service.Open(t.Context(), open, ann); err == nil ||
		strings.Contains(err.Error(), secret) {
		t.Errorf("who opens it with another URL is told %v", err)
	}
	for _, entry := range locked.Log.All() {
		if strings.Contains(entry.Message, secret) {
			t.Errorf("the log has %s", entry.Message)
		}
	}
}
