package gather_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

func fixed(s gather.Step, chunk int) gather.Step {
	s.Chunk, s.ChunkAuto, s.ChunkTime = chunk, false, 0
	return s
}

func TestOverridesAreLaidOverThePlan(t *testing.T) {
	t.Parallel()
	plan := everything()
	plan.Steps[0].Needs = nil
	before := everything()
	before.Steps[0].Needs = nil
	if got, err := new(gather.Overrides).Over(plan); err != nil || !reflect.DeepEqual(got, plan) {
		t.Errorf("nothing to lay over: %+v, %v", got, err)
	}
	for text, change := range map[string]func(p *gather.Plan, s *gather.Step){
		`{"chunk":200}`: func(_ *gather.Plan, s *gather.Step) { s.Chunk, s.ChunkAuto, s.ChunkTime = 200, false, 0 },
		`{"chunk":"auto"}`: func(_ *gather.Plan, s *gather.Step) {
			s.Chunk, s.ChunkTime = workqueue.AutoChunk, time.Second
		},
		`{"chunk":"auto","chunk_time":"2s"}`: func(_ *gather.Plan, s *gather.Step) {
			s.Chunk, s.ChunkTime = workqueue.AutoChunk, 2*time.Second
		},
		`{"in_flight":7}`:      func(_ *gather.Plan, s *gather.Step) { s.InFlight, s.InFlightAuto = 7, false },
		`{"in_flight":"auto"}`: func(_ *gather.Plan, s *gather.Step) { s.InFlight = workqueue.AutoInFlight },
		`{"rate":0}`:           func(_ *gather.Plan, s *gather.Step) { s.Rate = 0 },
		`{"max_attempts":1}`:   func(_ *gather.Plan, s *gather.Step) { s.MaxAttempts = 1 },
		`{"retry_backoff":"2m"}`: func(_ *gather.Plan, s *gather.Step) {
			s.RetryBackoff, s.MaxBackoff = 2*time.Minute, 2*time.Minute
		},
		`{"max_backoff":"2m"}`:     func(_ *gather.Plan, s *gather.Step) { s.MaxBackoff = 2 * time.Minute },
		`{"retry_codes":["A"]}`:    func(_ *gather.Plan, s *gather.Step) { s.RetryCodes = []string{"A"} },
		`{"no_retry_codes":["A"]}`: func(_ *gather.Plan, s *gather.Step) { s.NoRetryCodes = []string{"A"} },
		`{"timeout":"1h"}`:         func(_ *gather.Plan, s *gather.Step) { s.Timeout = time.Hour },
		`{"chunk_bytes":"1MiB"}`:   func(_ *gather.Plan, s *gather.Step) { s.ChunkBytes = 1 << 20 },
		`{"chunk_bytes":0}`:        func(_ *gather.Plan, s *gather.Step) { s.ChunkBytes = 0 },
		`{"priority":0}`:           func(p *gather.Plan, _ *gather.Step) { p.Priority = 0 },
		`{"max_failed":"none"}`:    func(p *gather.Plan, _ *gather.Step) { p.MaxFailed = "" },
		`{"done_by":"2026-01-31T06:00:00+01:00"}`: func(p *gather.Plan, _ *gather.Step) {
			p.DoneBy = "2026-01-31T05:00:00Z"
		},
		`{"max_failed":"2.0%"}`:         func(p *gather.Plan, _ *gather.Step) { p.MaxFailed = "2%" },
		`{"fail_fast":"off"}`:           func(p *gather.Plan, _ *gather.Step) { p.FailFast = "off" },
		`{"fail_fast":"50/100"}`:        func(p *gather.Plan, _ *gather.Step) { p.FailFast = "50/100" },
		`{"canary":0}`:                  func(p *gather.Plan, _ *gather.Step) { p.Canary, p.CanaryAutoApprove = 0, false },
		`{"canary":5}`:                  func(p *gather.Plan, _ *gather.Step) { p.Canary = 5 },
		`{"canary_auto_approve":false}`: func(p *gather.Plan, _ *gather.Step) { p.CanaryAutoApprove = false },
		`{"max_failed":"10000"}`:        func(p *gather.Plan, _ *gather.Step) { p.MaxFailed = "10000" },
		`{"header":false,"sort":"b","desc":true,"contract":"warn","delimiter":";"}`: func(p *gather.Plan, _ *gather.Step) {
			p.Items = gather.Items{Header: new(bool), Sort: "b", Desc: true, Contract: "warn", Delimiter: "semicolon"}
		},
		`{"chunk":1,"rate":1e3}`:  func(_ *gather.Plan, s *gather.Step) { *s = fixed(*s, 1); s.Rate = 1000 },
		`{"chunk":"1","rate":10}`: func(_ *gather.Plan, s *gather.Step) { *s = fixed(*s, 1); s.Rate = 10 },
	} {
		var over gather.Overrides
		testenv.NoError(t, json.Unmarshal([]byte(text), &over))
		want := everything()
		want.Steps[0].Needs = nil
		change(want, &want.Steps[0])
		if got, err := over.Over(plan); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
		if !reflect.DeepEqual(plan, before) {
			t.Fatalf("%s: the plan has changed: %+v", text, plan)
		}
	}
}

func TestOverridesNameTheField(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"chunk":0}`:                     "chunk: 0 is not within 1 to 8192",
		`{"chunk_time":"1s"}`:             "chunk_time: it goes with chunk: auto only",
		`{"chunk":"auto","timeout":"1s"}`: "", // the time is cut
		`{"on_invalid":"fail"}`: "on_invalid: there is no schema that items could not fit; set " +
			"items.schema (--schema",
		`{"encoding":"ebcdic"}`:                            "encoding: want one of utf-8",
		`{"rename":["a"]}`:                                 "rename: want NAME=VALUE",
		`{"rename":["a=c","b=c"]}`:                         `rename: two columns are renamed to "c"`,
		`{"types":["a=date"]}`:                             "types: a: want one of number, text, bool, json",
		`{"columns":["a","b"],"rename":["a=b"]}`:           `columns: "b" exists, and another column is renamed to it`,
		`{"columns":["a","b"],"rename":["a=b","b=a"]}`:     "", // they change places
		`{"columns":["a","a"]}`:                            `columns: "a" appears twice`,
		`{"desc":true}`:                                    "desc: it is about the order of items",
		`{"on_invalid":"x"}`:                               "on_invalid: want reject or fail",
		`{"contract":"x"}`:                                 "contract: want reject, warn or off",
		`{"schema":{"type":"x"}}`:                          "schema: it is not a JSON Schema",
		`{"schema":{},"on_invalid":"fail"}`:                "",
		`{"schema":{},"on_invalid":"fail","order_by":"a"}`: "on_invalid: it does not go with order_by",
		`{"canary_auto_approve":true}`:                     "canary_auto_approve: there is no canary",
		`{"done_by":"6:00"}`:                               `done_by: want a time of day and the zone`,
		`{"done_by":"06:00 Nowhere/City"}`:                 `done_by: no time zone "Nowhere/City"; use an IANA name`,
		`{"gentle":true}`:                                  `gentle: it goes with done_by`,
	} {
		var over gather.Overrides
		testenv.NoError(t, json.Unmarshal([]byte(text), &over))
		_, err := over.Over(gather.Single("e"))
		var field *gather.FieldError
		if want == "" && err == nil {
			continue
		}
		if !errors.As(err, &field) || !strings.HasPrefix(field.Field+": "+field.Problem, want) {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

// Every setting is read from a text by the same name, and as from JSON.
func TestSetOverrides(t *testing.T) {
	t.Parallel()
	var got gather.Overrides
	texts := map[string]string{
		"priority": "-2", "done_by": "06:00 Europe/Berlin", "gentle": "true", "max_failed": "1.0%",
		"fail_fast": "5/9", "canary": "100", "canary_auto_approve": "true",
		"chunk": "auto", "order_by": "customer.id", "partitions": "8", "on_failure": "stop",
		"schema": `{"type":"object"}`, "on_invalid": "fail", "contract": "warn", "encoding": "latin1",
		"header": "false", "delimiter": ";", "columns": "a",
		"rename": "a=b", "types": "b=number", "sort": "b", "desc": "true",
		"chunk_bytes": "512KiB", "chunk_time": "5s", "in_flight": "64", "rate": "0.5", "max_attempts": "4",
		"timeout": "1m", "retry_backoff": "0s", "max_backoff": "2m", "retry_codes": "BUSY", "no_retry_codes": "GONE",
		"max_result": "1MiB",
	}
	for _, field := range gather.OverrideFields() {
		testenv.Same(t, got.Set(field, texts[field]), nil, "%s", field)
	}
	var want gather.Overrides
	err := json.Unmarshal([]byte(`{"priority":-2,"done_by":"06:00 Europe/Berlin","gentle":true,"max_failed":"1%",
		"fail_fast":"5/9","canary":100,
		"canary_auto_approve":true,
		"chunk":"auto",
		"order_by":"customer.id","partitions":8,"on_failure":"stop",
		"schema":{"type":"object"},"on_invalid":"fail","contract":"warn","encoding":"latin-1","header":false,"columns":["a"],
		"delimiter":"semicolon",
		"rename":["a=b"],"types":["b=number"],"sort":"b","desc":true,
		"chunk_bytes":524288,"chunk_time":"5s","in_flight":64,"rate":0.5,"max_attempts":4,"timeout":"1m",
		"retry_backoff":"0s","max_backoff":"2m","retry_codes":["BUSY"],"no_retry_codes":["GONE"],
		"max_result":1048576}`), &want)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v, %v", got, want, err)
	}
	for _, field := range gather.OverrideFields() {
		testenv.Says(t, got.Set(field, texts[field]), "twice", "%s a second time", field)
	}
	for field, text := range map[string]string{
		"chunk": "many", "rate": "1_000", "canary_auto_approve": "yes", "timeout": "5", "chunk_bytes": "1KB",
		"max_failed": "few", "fail_fast": "5",
		"retry_codes": "", "priority": "1.5", "color": "red", "order_by": "a..b", "partitions": "x", "on_failure": "halt",
	} {
		wrong := testenv.As[*gather.FieldError](t, new(gather.Overrides).Set(field, text), "%s %q", field, text)
		testenv.Same(t, wrong.Field, field, "%q", text)
	}
}

// Settings of every step come first, those of single steps over them.
func TestOverridesOfSingleSteps(t *testing.T) {
	t.Parallel()
	plan, err := gather.Parse("p", []byte("steps:\n- endpoint: a\n- {endpoint: b, chunk: auto}\n- local: c\n"))
	testenv.NoError(t, err)
	var over gather.Overrides
	for _, text := range []string{"b.chunk=7", "c.rate=0.5", "c.retry_codes=X", "c.retry_codes=Y"} {
		testenv.NoError(t, over.SetStep(text))
	}
	testenv.NoError(t, errors.Join(over.Set("chunk", "9"), over.Set("max_attempts", "4")))
	testenv.Same(t, string(testenv.Must(json.Marshal(over))(t)),
		`{"chunk":9,"max_attempts":4,"steps":{"b":{"chunk":7},"c":{"rate":0.5,"retry_codes":["X","Y"]}}}`, "JSON")
	out := testenv.Must(over.Over(plan))(t)
	var got []string
	for _, s := range out.Steps {
		got = append(got, fmt.Sprint(s.Chunk, s.ChunkAuto, s.Rate, s.MaxAttempts, s.RetryCodes))
	}
	if want := []string{"9 false 0 4 []", "7 false 0 4 []", "9 false 0.5 4 [X Y]"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for text, want := range map[string]string{
		"chunk=5":         `set: "chunk=5": want STEP.SETTING=VALUE`,
		"a.chunk":         "want STEP.SETTING=VALUE",
		"a b.chunk=5":     `set: "a b": use`,
		"a.color=5":       "steps.a.color: there is no such setting; there are chunk, chunk_bytes",
		"a.priority=5":    "steps.a.priority: there is no such setting",
		"a.chunk=many":    "steps.a.chunk: want a whole number like 500, or auto; this is",
		"a.chunk=0":       "steps.a.chunk: 0 is not within 1 to 8192",
		"d.chunk=1":       "steps.d: the plan has no such step; it has a, b, c",
		"a.chunk_time=1s": "steps.a.chunk_time: it goes with chunk: auto only",
	} {
		over := gather.Overrides{}
		err := over.SetStep(text)
		if err == nil {
			_, err = over.Over(plan)
		}
		testenv.Says(t, err, want, "%s", text)
	}
	// A time for all is one for those whose size is found.
	over = gather.Overrides{}
	_ = over.Set("chunk_time", "2s")
	if out, err := over.Over(plan); err != nil || out.Steps[0].ChunkTime != 0 || out.Steps[1].ChunkTime != 2e9 {
		t.Errorf("%+v, %v", out, err)
	}
	_ = over.Set("chunk", "9")
	_, err = over.Over(plan)
	testenv.Says(t, err, "no step of the plan has that", "the error")
}
