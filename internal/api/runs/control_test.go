package runs_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestControl(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Start("name=it").Run.String()
	b.Says(200, "/runs/it/pause", `{"reason":"the service is sick"}`, `"action":"pause"`, `"run":"`+run, `"slices":0`)
	b.Says(409, "/runs/it/pause", ``, "paused already by ann: the service is sick")
	b.Says(200, "/runs/it/settings", `{"chunk":"auto","priority":3,"max_failed":"1%","rate":10}`,
		`"chunk":"auto, at most 8192"`, `"priority":3`, "by an operator: the service is sick")
	b.Says(200, "/runs/it/settings", `{"chunk":7,"chunk_bytes":65536,"timeout":"1h"}`, `"chunk":"7"`, `"timeout":"1h0m0s"`)
	b.Says(200, "/runs/resume", `{"all":true}`, `"runs":["`+run, `"skipped":[]`)
	b.Says(409, "/runs/it/approve", `{}`, "not waiting for approval")
	b.Says(200, "/runs/pause", `{"all":true,"reason":"stop the world"}`, `"runs":["`+run)
	b.Says(200, "/runs/it/resume", `{"max_failed":"none"}`, `"action":"resume"`)
	b.Says(200, "/runs/approve", `{"all":true}`, `"runs":[]`)
	for path, body := range map[string]string{
		"/runs/pause": `{}`, "/runs/resume": `{"all":false}`, "/runs/approve": `{"all":"yes"}`,
		"/runs/it/pause": `{"reason":"` + strings.Repeat("x", 501) + `"}`, "/runs/it/resume": `{"max_failed":"lots"}`,
		"/runs/it/settings": `{}`,
	} {
		b.Says(422, path, body)
	}
	b.Says(422, "/runs/it/settings", `{"max_attempts":0}`, `"max_attempts: 0 is not within 1 to 100"`)
	b.Says(422, "/runs/it/settings", `{"max_failed":""}`, "max_failed is empty; none removes")
	b.Says(422, "/runs/it/settings", `{"max_failed":"101%"}`, "up to 100%")
	b.Says(422, "/endpoints/echo/settings", `{"rate":1e308}`, "0.001 to 10000000")
	for _, c := range []struct {
		status             int
		change, was, wants string
	}{ // what someone else changed meanwhile is not changed again
		{409, `"priority":4`, `"priority":"0"`, "priority of run " + run + " is now 3, want 0"},
		{409, `"rate":1,"chunk":9`, `"rate":"10","chunk":"auto"`, "chunk of run " + run + " is now 7"},
		{409, `"max_failed":"2%"`, `"max_failed":"1%"`, `"body.if_was.max_failed"`},
		{200, `"rate":1,"chunk":"auto","max_failed":"3"`, `"rate":"1e1","chunk":"7","max_failed":"none"`, `"rate":1`},
		{200, `"priority":3,"chunk":8`, `"priority":"9","chunk":"auto"`, `"chunk":"8"`}, // its priority is 3 already
		{422, `"priority":4`, `"chunk":"7"`, "does not set"},
	} {
		b.Says(c.status, "/runs/it/settings", "{"+c.change+`,"if_was":{`+c.was+"}}", c.wants)
	}
	b.Says(200, "/endpoints/echo/settings", `{"rate":2000000,"if_was":{"rate":"none"}}`, `"rate":2000000`)
	b.Says(409, "/endpoints/echo/settings", `{"rate":5,"if_was":{"rate":"0"}}`, "rate of endpoint echo is now 2000000")
	b.Says(422, "/endpoints/echo/settings", `{"if_was":{"rate":"0"}}`, "does not set")
	for _, path := range []string{"/runs//pause", "/runs/./pause", "/runs/it/../pause"} {
		b.Says(404, path, `{"all":true}`, "is not a path")
	}
	b.Says(400, "/runs/cancel", ``, "body is required")
	b.Says(404, "/runs/it/settings", `{"step":"other","chunk":1}`, "no step")
	b.Says(404, "/runs/nope/pause", `{}`, "nope")
	b.Says(200, "/runs/cancel", `{"all":true,"reason":"enough"}`, `"runs":["`+run, `"items":3`)
}

// A rerun says what it would do, and what keeps it from going on.
func TestRerunOfAPausedRun(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Start("name=it").Run
	b.Finish(run)
	b.Says(200, "/runs/it/rerun", `{"keys":["=1"],"dry_run":true,"chunk":"auto","endpoint":"other"}`, `"dry_run":true`,
		`"items":1`, `"slices":1`, `"generation":2`)
	b.Says(200, "/runs/it/rerun", `{"keys":["=1","2"],"canary":1}`, `"held":1`, `"generation":2`)
	b.Says(200, "/runs/it/pause", ``)
	b.Says(200, "/runs/it/rerun", `{"keys":["3"]}`, `"generation":3`, `"paused":"by an operator"`,
		"tranche run resume "+run.String())
	b.Says(409, "/runs/it/rerun", `{"groups":["00000000"]}`, "tranche run errors", `"urn:tranche:nothing_to_do"`)
	b.Says(422, "/runs/it/rerun", `{"failed":true,"groups":["00000000"]}`,
		"choose one of failed, keys, codes, groups and ranges")
	b.Says(422, "/runs/it/rerun", `{"failed":true,"endpoint":"no such name"}`, "endpoint")
	b.Says(422, "/runs/it/rerun", `{"failed":true,"chunk":"some"}`, "chunk: want a whole number like 500, or auto")
	b.Says(404, "/runs/it/rerun", `{"failed":true,"step":"x"}`, "no step")
}

// Which codes are retried can be changed while a run continues.
func TestCodesOfARunAreSet(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=c&retry_codes=A")
	set := func(status int, want, body string) {
		t.Helper()
		b.Sent(status, false, want, fmt.Sprintf("%x", sha256.Sum256([]byte(body))), "/runs/c/settings", body,
			"Content-Type", "application/json")
	}
	set(200, `"after":{"retry_codes":"B, C.D"}`, `{"retry_codes":["B","C.D"]}`)
	set(200, `"before":{"retry_codes":"B, C.D"}`, `{"retry_codes":["none"]}`)
	set(200, `"after":{"no_retry_codes":"B"}`, `{"no_retry_codes":["B"],"retry_codes":[]}`)
	set(422, `code \"B\" would be in retry_codes and in no_retry_codes`, `{"retry_codes":["B"]}`)
	set(422, "appears twice", `{"retry_codes":["A","A"]}`)
	set(422, "a b", `{"no_retry_codes":["a b"]}`)
	codes := `SELECT count(*) FROM run_step WHERE retry_codes = '{}' AND no_retry_codes = '{B}'`
	testenv.Same(t, b.Number(codes), 1, "the step has these codes")
}

func TestOpeningIsRefused(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	for body, want := range map[string]string{
		``:                                      "the body is empty",
		`[]`:                                    "a JSON object",
		`{"endpoint":"e"} {}`:                   "after top-level value",
		`{"endpoint":"e","x":1}`:                `unknown member \"x\"`,
		`{"name":"e"}`:                          "either an endpoint or a plan",
		`{"endpoint":"e","seal_within":"soon"}`: "seal_within",
		`{"endpoint":"e","seal_within":"-1h"}`:  "seal_within",
		`{"endpoint":"e","on_overdue":"shrug"}`: "on overdue",
		`{"endpoint":"e","canary":5}`:           "canary",
		`{"endpoint":"e","key":"id"}`:           "key",
		`{"endpoint":"e","sql":"SELECT 1","sql_source":"x"}`: "sql",
	} {
		b.Want("/runs/open", body, 422, want)
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun`), 0, "runs were opened")
}

// The commands in docs/api.md do what the page says.
func TestTheCommandsOfThePage(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=pause-me")
	page := testenv.Must(os.ReadFile(filepath.Join("..", "..", "..", "docs", "api.md")))(t)
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 5 {
		t.Fatalf("the page has only %d blocks of commands", len(blocks))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for _, block := range blocks {
		run := exec.CommandContext(ctx, "sh", "-e", "-c", block[1])
		run.Env = append(os.Environ(), "TRANCHE="+b.URL, "NO_PROXY=*")
		out, err := run.CombinedOutput()
		testenv.Same(t, err, nil, "of\n%s%s\ninstall curl if it is missing", block[1], out)
	}
}
