package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/kernel"
)

// says posts a body and wants an answer that holds all the parts.
func (b *bench) says(status int, path, body string, parts ...string) {
	b.Helper()
	code, text := b.ask(http.MethodPost, api.Prefix+path, strings.NewReader(body), "Content-Type", "application/json",
		kernel.ActorHeader, "ann")
	if code != status {
		b.Errorf("POST %s: %d %s; want %d", path, code, text, status)
	}
	for _, part := range parts {
		if !strings.Contains(string(text), part) {
			b.Errorf("POST %s does not say %s: %s", path, part, text)
		}
	}
}

func TestControl(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.start("name=it").Run.String()
	b.says(200, "/runs/it/pause", `{"reason":"the service is sick"}`, `"action":"pause"`, `"run":"`+run, `"slices":0`)
	b.says(409, "/runs/it/pause", ``, "paused already by ann: the service is sick")
	b.says(200, "/runs/it/settings", `{"chunk":"auto","priority":3,"max_failed":"1%","rate":10}`,
		`"chunk":"auto, at most 8192"`, `"priority":3`, "by an operator: the service is sick")
	b.says(200, "/runs/it/settings", `{"chunk":7,"chunk_bytes":65536,"timeout":"1h"}`, `"chunk":"7"`, `"timeout":"1h0m0s"`)
	b.says(200, "/runs/resume", `{"all":true}`, `"runs":["`+run, `"left":[]`)
	b.says(409, "/runs/it/approve", `{}`, "not waiting for approval")
	b.says(200, "/runs/pause", `{"all":true,"reason":"stop the world"}`, `"runs":["`+run)
	b.says(200, "/runs/it/resume", `{"max_failed":"none"}`, `"action":"resume"`)
	b.says(200, "/runs/approve", `{"all":true}`, `"runs":[]`)
	for path, body := range map[string]string{
		"/runs/pause": `{}`, "/runs/resume": `{"all":false}`, "/runs/approve": `{"all":"yes"}`,
		"/runs/it/pause": `{"reason":"` + strings.Repeat("x", 501) + `"}`, "/runs/it/resume": `{"max_failed":"lots"}`,
		"/runs/it/settings": `{}`,
	} {
		b.says(422, path, body)
	}
	for _, body := range []string{
		`{"chunk":0}`, `{"chunk":"some"}`, `{"in_flight":10001}`, `{"rate":-1}`, `{"timeout":"soon"}`, `{"max_failed":"x"}`,
		`{"canary":1}`, `{"max_attempts":0}`,
	} {
		b.says(422, "/runs/it/settings", body)
	}
	b.says(422, "/runs/it/settings", `{"max_attempts":0}`, `"max_attempts: 0 is not within 1 to 100"`)
	b.says(422, "/runs/it/settings", `{"max_failed":""}`, "max_failed is empty; none takes")
	b.says(422, "/runs/it/settings", `{"max_failed":"101%"}`, "up to 100%")
	b.says(422, "/endpoints/echo/settings", `{"rate":1e308}`, "0.001 to 10000000")
	for _, path := range []string{"/runs//pause", "/runs/./pause", "/runs/it/../pause"} {
		b.says(404, path, `{"all":true}`, "is no path")
	}
	b.says(400, "/runs/cancel", ``, "body is required")
	b.says(404, "/runs/it/settings", `{"step":"other","chunk":1}`, "no step")
	b.says(404, "/runs/nope/pause", `{}`, "nope")
	b.says(200, "/runs/cancel", `{"all":true,"reason":"enough"}`, `"runs":["`+run, `"items":3`)
}

// A re-run says what it would do, and what keeps it from going on.
func TestRerunOfAPausedRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.start("name=it").Run
	b.finish(run)
	b.says(200, "/runs/it/rerun", `{"keys":["=1"],"dry_run":true,"chunk":"auto","endpoint":"other"}`, `"dry_run":true`,
		`"items":1`, `"slices":1`, `"generation":2`)
	b.says(200, "/runs/it/rerun", `{"keys":["=1","2"],"canary":1}`, `"held":1`, `"generation":2`)
	b.says(200, "/runs/it/pause", ``)
	b.says(200, "/runs/it/rerun", `{"keys":["3"]}`, `"generation":3`, `"paused":"by an operator"`,
		"tranche run resume "+run.String())
	b.says(409, "/runs/it/rerun", `{"groups":["00000000"]}`, "tranche run errors")
	b.says(422, "/runs/it/rerun", `{"failed":true,"groups":["00000000"]}`,
		"choose one of failed, keys, codes, groups and ranges")
	b.says(422, "/runs/it/rerun", `{"failed":true,"endpoint":"no such name"}`, "endpoint")
	b.says(422, "/runs/it/rerun", `{"failed":true,"chunk":"some"}`, "chunk must be a number or auto")
	b.says(404, "/runs/it/rerun", `{"failed":true,"step":"x"}`, "no step")
}
