package runs_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

const gatedPlan = `name: g
steps:
  - {name: compose, endpoint: echo}
  - {name: send, endpoint: echo, needs: [compose], barrier: approve, approvers: other}
`

// Who started a run, or changed since what comes of it, does not approve it, whatever name they give; someone else sees
// what waits, who did what, and what is other than in the run before, and lets it continue.
func TestFourEyesAtAGate(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Locked()
	ann := "Bearer " + b.Token("ann", access.Operator, 0).Secret
	bob := "Bearer " + b.Token("bob", access.Operator, 0).Secret
	carl := "Bearer " + b.Token("carl", access.Operator, 0).Secret
	ask := func(want int, who, method, path, body string, parts ...string) []byte {
		t.Helper()
		code, text := b.Ask(method, api.Prefix+path, strings.NewReader(body), "Content-Type", "application/json",
			"Authorization", who, apicore.ActorHeader, "bob")
		testenv.Same(t, code, want, "%s %s: %s", method, path, text)
		for _, part := range parts {
			testenv.Has(t, string(text), part, "%s %s", method, path)
		}
		return text
	}
	begin := func(name string) workqueue.RunID {
		t.Helper()
		code, text := b.Ask(http.MethodPost, api.Prefix+"/plans?name=g", strings.NewReader(gatedPlan), "Content-Type",
			"application/yaml", "Authorization", ann)
		if code > 201 {
			t.Fatalf("put the plan: %d %s", code, text)
		}
		code, text = b.Ask(http.MethodPost, api.Prefix+"/runs?plan_ref=g&name="+name, strings.NewReader(apitest.Three),
			"Authorization", ann)
		var run runs.Started
		if err := json.Unmarshal(text, &run); err != nil || code > 201 {
			t.Fatalf("start: %d %s", code, text)
		}
		b.Answer(run.Run, "", func(o workqueue.Ordinal) []byte {
			if o == 1 && name == "second" {
				return []byte(`"other"`)
			}
			return []byte("1")
		})
		testenv.Must(dispatch.New(b.Store).CheckBarriers(t.Context(), run.Run))(t)
		return run.Run
	}
	for _, name := range []string{"first", "second"} {
		run := begin(name)
		ask(403, ann, http.MethodPost, "/runs/"+name+"/approve", `{"step":"send"}`, "ann started run", "approvers: other")
		ask(200, ann, http.MethodGet, "/runs/"+name+"/gate", "", `"state":"waiting"`, `"refused":"ann started`)
		ask(200, bob, http.MethodGet, "/runs/"+name+"/gate?step=send&sample=2", "", `"items":3`, `"left_out":0`,
			`"results":[{"step":"compose","bytes":`)
		ask(200, bob, http.MethodGet, "/runs/"+name, "", `"approval":["send"]`,
			"step send waits for approval by a user who took no part in the run")
		ask(404, bob, http.MethodGet, "/runs/"+name+"/gate?step=compose", "", "these do: send")
		ask(409, bob, http.MethodPost, "/runs/"+name+"/approve", `{}`, "--step send")
		var gate struct{ Since string }
		looked := ask(200, bob, http.MethodGet, "/runs/"+name+"/gate", "")
		if err := json.Unmarshal(looked, &gate); err != nil || gate.Since == "" {
			t.Fatalf("the gate: %s, %v", looked, err)
		}
		if name == "second" { // the same is recomputed, and waits again
			ask(200, bob, http.MethodPost, "/runs/second/reset", `{"step":"compose","keys":["2"]}`)
			b.Answer(run, "", func(workqueue.Ordinal) []byte { return []byte(`"other"`) })
			testenv.Must(dispatch.New(b.Store).CheckBarriers(t.Context(), run))(t)
			ask(409, carl, http.MethodPost, "/runs/second/approve", `{"step":"send","if_waiting_since":"`+gate.Since+`"}`,
				"looked at", "--dry-run")
			ask(403, bob, http.MethodPost, "/runs/second/approve", `{"step":"send"}`, "bob reset items of run")
			ask(200, carl, http.MethodPost, "/runs/second/settings", `{"step":"send","chunk":7}`) // pace is no part in it
			ask(200, carl, http.MethodGet, "/runs/second/gate", "", `"acts":[{"actor":"bob","action":"reset",`,
				`{"actor":"ann","action":"plan",`, `{"actor":"ann","action":"start",`)
			ask(200, carl, http.MethodPost, "/runs/second/approve", `{"step":"send"}`, `"items":3`)
		} else {
			ask(200, bob, http.MethodPost, "/runs/first/approve",
				`{"step":"send","if_waiting_since":"`+gate.Since+`","reason":"fine"}`, `"items":3`)
		}
		ask(409, bob, http.MethodPost, "/runs/"+name+"/approve", `{"step":"send"}`, "has approved")
		b.AnswerStep(run, 1, "", func(workqueue.Ordinal) []byte { return []byte("2") })
	}
	text := ask(200, bob, http.MethodGet, "/runs/second/gate", "", `"name":"first"`)
	testenv.Has(t, string(text), `"approved_by":"carl"`, "the gate")
	ask(200, bob, http.MethodGet, "/runs/second/report?against=first&before=send&digests=false", "",
		`{"change":"changed","items":1`, `{"change":"unchanged","items":2`)
	ask(422, bob, http.MethodGet, "/runs/second/report?against=first&before=compose&digests=false", "", "before: ")
	b.Exec(`INSERT INTO namespace (name) VALUES ('elsewhere')`)
	b.Exec(`UPDATE batchrun SET namespace = 'elsewhere' WHERE name = 'first'`)
	if text := ask(200, bob, http.MethodGet, "/runs/second/gate", ""); strings.Contains(string(text), `"earlier"`) {
		t.Errorf("the gate reports a run of another namespace: %s", text)
	}
	begin("third")
	b.Exec(`UPDATE batchrun r SET from_run = f.id FROM batchrun f
		WHERE (r.name, f.name) IN (('first', 'third'), ('third', 'second'))`)
	b.Exec(`UPDATE batchrun SET created_by = 'dan', plan_version = NULL WHERE name = 'first'`)
	ask(200, carl, http.MethodGet, "/runs/first/gate", "", `{"actor":"bob","action":"reset",`,
		`{"actor":"ann","action":"plan",`, `{"actor":"ann","action":"start",`)
}
