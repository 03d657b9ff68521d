package runs_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/workqueue"
)

// Failures are accepted, all who look at them see it, and a request that is sent again does nothing more.
func TestAcceptFailures(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Start("name=e").Run
	b.Answer(run, "", func(o workqueue.Ordinal) []byte {
		if o == 1 {
			return []byte("1")
		}
		return nil
	})
	b.Says(200, "/runs/e/accept", `{"failed":true,"reason":"r","dry_run":true}`, `"dry_run":true`, `"items":2`,
		`"accepted":2`)
	for _, repeated := range []bool{false, true} {
		b.Sent(200, repeated, "", "one", "/runs/e/accept", `{"ranges":[[0,1]],"reason":"closed"}`)
	}
	for path, want := range map[string]string{
		"/runs/e": `"failed":2,"accepted":1,`, "/runs?limit=1": `"accepted":1`, "/runs/e/report": `"accepted":1`,
		"/runs/e/errors": `"accepted":1`, "/runs/e/items?state=failed": `"accepted":true`,
		"/runs/e/export?state=failed": `"accepted":true`,
	} {
		if _, text := b.Get(path); !strings.Contains(text, want) {
			t.Errorf("%s does not say %s: %s", path, want, text)
		}
	}
	if text := string(apitest.Looked(b)); !strings.Contains(text, "1 item failed") {
		t.Errorf("/health tells %s", text)
	}
	b.Says(200, "/runs/e/accept", `{"failed":true,"reason":"both"}`, `"items":1`, `"steps":[{"step":"echo","items":1}]`,
		`"failed":2`, `"accepted":2`)
	b.Says(409, "/runs/e/accept", `{"failed":true,"reason":"both"}`, "accepted already")
	b.Says(200, "/runs/e/accept", `{"failed":true,"withdraw":true}`, `"withdraw":true`, `"items":2`, `"accepted":0`)
	b.Says(422, "/runs/e/accept", `{"failed":true}`, "say why")
	b.Says(422, "/runs/e/accept", `{"reason":"r"}`, "choose one of failed, keys, codes, groups and ranges")
	b.Says(422, "/runs/e/accept", `{"failed":true,"reason":"r","canary":1}`, `unknown member \"canary\"`)
	b.Says(422, "/runs/e/accept", `{"failed":true,"reason":"r","until":"0001-01-01T00:00:00Z"}`, "too long ago")
	for _, path := range []string{"/runs?until=0001-01-01T00:00:00Z", "/runs/e/export?until=0001-01-01T00:00:00Z"} {
		got, body := b.Get(path)
		if got.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(body, "too long ago") { // not taken for none
			t.Errorf("%s: %+v %s", path, got, body)
		}
	}
	b.Says(404, "/runs/e/accept", `{"keys":["nobody"],"reason":"r"}`, "nobody")
	b.Says(404, "/runs/none/accept", `{"failed":true,"reason":"r"}`)
}
