package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/retention"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Limits are set and shown; what they would delete is told; and a run that they have deleted is told as one.
func TestRetention(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	old := b.Start("name=old").Run
	b.Finish(old)
	b.LongAgo(old)
	b.Finish(b.Start("name=new").Run)

	var list api.RetentionList
	b.JSON(http.MethodGet, "/retention", "", 200, &list)
	if len(list.Kinds) != len(retention.Kinds()) || list.Kinds[0].Age != "" || list.Kinds[1].Age != "90d" ||
		!list.Kinds[0].KeepAll || list.Kinds[1].KeepAll {
		t.Errorf("%+v", list.Kinds)
	}
	var set api.RetentionKind
	b.JSON(http.MethodPut, "/retention/runs", `{"age":"1h","max_bytes":1073741824}`, 200, &set)
	if set.Age != "1h0m0s" || set.MaxBytes != 1<<30 || set.MaxCount != 0 || set.KeepAll || set.ChangedBy == "" {
		t.Errorf("%+v", set)
	}
	for body, says := range map[string]string{
		`{"age":"9x"}`: "90d", `{"age":"-3h"}`: "90d", `{"age":"99999d"}`: "90d", `{"age":"5m"}`: "the least is 1h",
		`{"max_count":-1}`: "the least is 1", `{"max_bytes":7}`: "1048576", `{"agee":"9d"}`: "agee",
		// Limits do not go by what someone left out.
		`{}`: "keep_all", `{"keep_all":false}`: "keep_all", `{"age":"","max_count":0,"max_bytes":0}`: "keep_all",
		`{"age":null}`: "age", `{"keep_all":true,"max_count":5}`: "max_count 5",
	} {
		testenv.Has(t, b.JSON(http.MethodPut, "/retention/runs", body, 422, nil), says, "%s", body)
	}
	b.JSON(http.MethodGet, "/retention", "", 200, &list)
	if k := list.Kinds[0]; k.Age != "1h0m0s" || k.MaxBytes != 1<<30 {
		t.Errorf("what was refused has changed the limits: %+v", k)
	}
	b.JSON(http.MethodPut, "/retention/sessions", `{"keep_all":true}`, 200, nil)
	list = api.RetentionList{}
	b.JSON(http.MethodGet, "/retention", "", 200, &list)
	if k := list.Kinds[5]; k.Kind != retention.RetainSessions || k.Age != "" || !k.KeepAll {
		t.Errorf("%+v", k)
	}
	text := b.JSON(http.MethodPut, "/retention/cats", `{"keep_all":true}`, 404, nil)
	testenv.Has(t, text, "quarantine", "a kind that there is none")
	var due api.RetentionDue
	b.JSON(http.MethodPost, "/retention/run", `{"dry_run":true}`, 200, &due)
	if due.Kinds[0].Count != 1 || !due.DryRun || due.Kinds[2].Count != 0 {
		t.Errorf("%+v", due)
	}

	lease := testenv.Must(session.New(b.Store).Lead(t.Context(), b.Engine.ID, time.Minute))(t)
	if deleted, err := retention.New(b.Store).DeleteRun(t.Context(), lease, old, time.Now(), "age 1h", ""); err != nil ||
		!deleted {
		t.Fatal(deleted, err)
	}
	for method, path := range map[string]string{
		http.MethodGet: "/runs/" + old.String(), http.MethodPost: "/runs/" + old.String() + "/rerun",
	} {
		text := b.JSON(method, path, `{"failed":true}`, 410, nil)
		if !strings.Contains(text, "was deleted at") || !strings.Contains(text, "age 1h") {
			t.Errorf("%s %s: %s", method, path, text)
		}
	}
	b.JSON(http.MethodGet, "/retention", "", 200, &list)
	if len(list.Going) != 1 || list.Going[0].Run != old {
		t.Errorf("%+v", list.Going)
	}
	text = b.JSON(http.MethodGet, "/runs", "", 200, nil)
	if strings.Contains(text, old.String()) {
		t.Errorf("it is in the list: %s", text)
	}
}
