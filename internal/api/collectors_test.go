package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
)

const collectorNotify = "name: notify # customers\nendpoint: echo\nmin_size: 3\nmax_age: 1h\n"

func TestTheWayOfACollector(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	got := b.Collect(collectorNotify)
	if got.Previous != 0 || got.Name != "notify" || got.Version != 1 || got.ChangedBy != "ann" {
		t.Errorf("made: %+v", got)
	}
	if got := b.Collect(collectorNotify); !got.Unchanged {
		t.Errorf("the same: %+v", got)
	}
	got = b.Collect(strings.Replace(collectorNotify, "3", "4", 1))
	if got.Version != 2 || got.Renumbered || got.Previous != 1 {
		t.Errorf("another size: %+v", got)
	}
	var added api.AddedOperations
	b.Post("/collectors/notify/ops",
		`{"ops":[{"id":"1","key":"ann","payload":{"n": 1}},{"key":"bob","payload":"x"}]}`, &added)
	if added.Added != 2 || added.Duplicates != 0 || added.Collector != "notify" {
		t.Errorf("added %+v", added)
	}
	b.Post("/collectors/notify/ops",
		`{"id":"1","key":"ann","payload":1}`+"\n"+`{"id":"2","key":"ann","payload":2}`, &added)
	if added.Added != 1 || added.Duplicates != 1 || len(added.Known) != 1 {
		t.Errorf("added again: %+v", added)
	}
	b.Post("/collectors/notify/ops?dry_run=true", `{"key":"eve","payload":3}`, &added)
	if !added.DryRun || added.Added != 1 || len(added.Sample) != 1 || added.Sample[0].Key != "eve" {
		t.Errorf("a dry run: %+v", added)
	}
	var view collector.CollectorView
	b.Read("/collectors/notify", &view)
	if view.Waiting != 3 || view.Keys != 2 || view.Spec.MinSize != 4 || !strings.Contains(view.Source, "# customers") ||
		len(view.Why) != 2 || view.Why[0].Code != "no_listeners" || view.Why[1].Code != "waiting" ||
		view.Why[1].Until == nil {
		t.Errorf("the collector is %+v", view)
	}
	var list api.CollectorList
	b.Read("/collectors", &list)
	if len(list.Collectors) != 1 || list.Collectors[0].Waiting != 3 || list.Collectors[0].Source != "" {
		t.Errorf("the list: %+v", list)
	}
	var page collector.OperationPage
	b.Read("/collectors/notify/ops?limit=2", &page)
	if len(page.Ops) != 2 || page.Next != page.Ops[1].Number || string(page.Ops[0].Payload) != `{"n":1}` {
		t.Errorf("the first page: %+v", page)
	}
	var rest collector.OperationPage
	b.Read(fmt.Sprintf("/collectors/notify/ops?limit=2&after=%d", page.Next), &rest)
	if len(rest.Ops) != 1 || rest.Next != 0 || rest.Ops[0].ID != "2" {
		t.Errorf("the last page: %+v", rest)
	}
}

func TestParkedOperationsAreLookedAfter(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Collect(collectorNotify)
	var added api.AddedOperations
	for _, key := range []string{"a", "b", "c"} {
		b.Post("/collectors/notify/ops", `{"id":"`+key+`1","key":"`+key+`","payload":1}`, &added)
	}
	b.Park("notify", "a", "GONE")
	b.Park("notify", "b", "BUSY")
	var page collector.OperationPage
	b.Read("/collectors/notify/ops?state=parked&code=BUSY", &page)
	if len(page.Ops) != 1 || page.Ops[0].Key != "b" || page.Ops[0].Attempts != 5 {
		t.Errorf("parked: %+v", page)
	}
	var requeued api.RequeuedOperations
	b.Post("/collectors/notify/requeue", `{"code":"BUSY"}`, &requeued)
	var dropped api.DroppedOperations
	b.Post("/collectors/notify/drop", `{"ids":["c1","nothing"]}`, &dropped)
	if requeued.Requeued != 1 || dropped.Dropped != 0 { // c1 waits
		t.Errorf("%+v, %+v", requeued, dropped)
	}
	b.Post("/collectors/notify/drop", `{"ids":["c1"],"waiting":true}`, &dropped)
	testenv.Same(t, dropped.Dropped, 1, "dropped %+v", dropped)
	var view collector.CollectorView
	b.Read("/collectors/notify", &view)
	if view.Parked != 1 || view.Waiting+view.Backoff != 1 {
		t.Errorf("left: %+v", view)
	}
	var switched workqueue.ControlledDocument
	b.Post("/collectors/notify/pause", "", &switched)
	b.Post("/collectors/notify/pause", "", &switched)
	var drained collector.Drained
	b.Post("/collectors/notify/drain", "", &drained)
	if !switched.Unchanged || switched.State != "paused" || !drained.Paused || drained.Ops != 1 {
		t.Errorf("%+v, %+v", switched, drained)
	}
	b.Post("/collectors/notify/resume", "", &switched)
	if switched.Unchanged || switched.State != "active" {
		t.Errorf("%+v", switched)
	}
	b.Refused(409, "has operations: 1 wait, 1 parked", http.MethodDelete, api.Prefix+"/collectors/notify", nil)
	b.JSON(http.MethodDelete, "/collectors/notify?force=true", "", http.StatusOK, nil)
	b.Refused(404, "see tranche collector list", http.MethodGet, api.Prefix+"/collectors/notify", nil)
}

func TestCollectorsRefuseWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Collect(collectorNotify)
	for _, tc := range []struct {
		status             int
		detail             string
		method, path, body string
	}{
		{422, "collector named:2:11: min_size: want a whole number", "POST", "?name=named", "endpoint: e\nmin_size: 0\n"},
		{422, "collector: endpoint: it is missing", "POST", "", "name: x\n"},
		{422, "collector: name: it is missing", "POST", "", "endpoint: notify\n"},
		{413, "too large", "POST", "", strings.Repeat("# x\n", 1<<19)},
		{422, "operation 2 (line 2): payload: it is missing", "POST", "/notify/ops", "{\"key\":\"a\",\"payload\":1}\n{}"},
		{422, "operation 1: key: it is missing", "POST", "/notify/ops", `{"payload":1}`},
		{422, "there is no operation", "POST", "/notify/ops", ""},
		{422, "this is not JSON", "POST", "/notify/ops", "id,key\n1,2\n"},
		{404, "see tranche collector list", "POST", "/nothing/ops", `{"key":"a","payload":1}`},
		{404, "see tranche collector list", "POST", "/nothing/ops", `{"ops":[]}`},
		{404, "see tranche collector list", "GET", "/nothing/ops", ""},
		{404, "see tranche collector list", "POST", "/nothing/pause", ""},
		{404, "see tranche collector list", "POST", "/nothing/requeue", `{"all":true}`},
		{422, "validation failed", "GET", "/notify/ops?state=lost", ""},
		{422, "say which operations", "POST", "/notify/requeue", `{}`},
		{422, "all is given with", "POST", "/notify/drop", `{"all":true,"ids":["1"]}`},
		{422, "holds a NUL", "POST", "/notify/drop", `{"ids":["a\u0000"]}`},
		{422, "holds a NUL", "GET", "/notify/ops?key=a%00", ""},
		{422, "validation failed", "POST", "/notify/drop", `{"everything":true}`},
	} {
		b.Refused(tc.status, tc.detail, tc.method, api.Prefix+"/collectors"+tc.path, strings.NewReader(tc.body),
			"Content-Type", apitest.ContentTypeOf(tc.body))
	}
	for path, text := range map[string]string{
		"/plans": "steps: [{endpoint: e}]", "/schedules": "{every: 5m, endpoint: e, items: {file: a.csv}}",
	} { // without a name, the next one would take its place
		b.Refused(422, "name: a name is needed", http.MethodPost, api.Prefix+path, strings.NewReader(text))
	}
	var view collector.CollectorView
	b.Read("/collectors/notify", &view)
	testenv.Same(t, view.Waiting, 0, "something was added: %+v", view)
}
