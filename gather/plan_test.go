package gather_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/order"
)

func TestSingle(t *testing.T) {
	t.Parallel()
	plan := gather.Single("statement")
	want := &gather.Plan{Name: "statement", Steps: []gather.Step{{
		Name: "statement", Endpoint: "statement", StepSettings: workqueue.StepSettings{Chunk: 500, InFlight: 1024,
			InFlightAuto: true, MaxAttempts: 3, Timeout: 12 * time.Minute, RetryBackoff: time.Second,
			MaxBackoff: 5 * time.Minute},
	}}}
	if !reflect.DeepEqual(plan, want) {
		t.Errorf("got %+v", plan)
	}
	testenv.NoError(t, plan.Validate())
	testenv.Fails(t, gather.Single("a b").Validate(), "a bad endpoint name is valid")
}

func TestWithDefaults(t *testing.T) {
	t.Parallel()
	bare := &gather.Plan{Name: "statement", Steps: []gather.Step{{Endpoint: "statement", Needs: []string{"x"}}}}
	full := bare.WithDefaults()
	want := gather.Single("statement")
	want.Steps[0].Needs = []string{"x"}
	if !reflect.DeepEqual(full, want) {
		t.Errorf("got %+v", full)
	}
	full.Steps[0].Needs[0] = "y"
	if bare.Steps[0].Needs[0] != "x" || bare.Steps[0].Chunk != 0 {
		t.Error("the original changed")
	}
	set := gather.Step{Name: "n", Endpoint: "e", StepSettings: workqueue.StepSettings{Chunk: 1, InFlight: 2,
		MaxAttempts: 4, Timeout: 5, RetryBackoff: 6, ChunkAuto: true, ChunkTime: 3, InFlightAuto: true, MaxBackoff: 7,
		Rate: 8, ChunkBytes: 9}}
	kept := (&gather.Plan{Steps: []gather.Step{set}}).WithDefaults()
	if !reflect.DeepEqual(kept.Steps[0], set) {
		t.Errorf("a setting was overwritten: %+v", kept.Steps[0])
	}
}

// step is a valid step with the given name and needs.
func step(name string, needs ...string) gather.Step {
	s := gather.Single("e").Steps[0]
	s.Name, s.Needs = name, needs
	return s
}

func seeing(s gather.Step, inputs ...string) gather.Step {
	s.Inputs = append([]string{}, inputs...)
	return s
}

// A plan stands in any order, and runs in one in which each step comes after its needs.
func TestOrdered(t *testing.T) {
	t.Parallel()
	plan := &gather.Plan{Name: "p", Steps: []gather.Step{
		step("d", "c", "b"), step("x"), step("c", "a"), step("b", "a"), step("a"), step("y"),
	}}
	var got []string
	for _, s := range plan.Ordered().Steps {
		got = append(got, s.Name)
	}
	if want := []string{"x", "a", "c", "b", "d", "y"}; !reflect.DeepEqual(got, want) || plan.Steps[0].Name != "d" {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestValidateNamesTheField(t *testing.T) {
	t.Parallel()
	alone := func(change func(*gather.Step)) gather.Plan {
		p := gather.Single("e")
		change(&p.Steps[0])
		return *p
	}
	graph := func(steps ...gather.Step) gather.Plan { return gather.Plan{Name: "p", Steps: steps} }
	for name, tc := range map[string]struct {
		plan  gather.Plan
		field string
		says  string
	}{
		"no plan name": {gather.Plan{Steps: []gather.Step{step("a")}}, "name", "needed"},
		"bad plan name": {gather.Plan{Name: "a b", Steps: []gather.Step{step("a")}}, "name",
			`"a b": use A-Z a-z 0-9 _ - .`},
		"no steps":         {gather.Plan{Name: "p"}, "steps", "needs a step"},
		"too many steps":   {graph(make([]gather.Step, 65)...), "steps", "65 steps"},
		"no step name":     {alone(func(s *gather.Step) { s.Name = "" }), "steps[0].name", "needed"},
		"dot in step name": {alone(func(s *gather.Step) { s.Name = "a.b" }), "steps[0].name", "use A-Z a-z 0-9 _ -"},
		"bad endpoint":     {alone(func(s *gather.Step) { s.Endpoint = "a.>" }), "steps[0].endpoint", `"a.>"`},
		"chunk 0":          {alone(func(s *gather.Step) { s.Chunk = 0 }), "steps[0].chunk", "0 is not within 1 to 8192"},
		"chunk time": {alone(func(s *gather.Step) { s.ChunkAuto, s.ChunkTime = true, 1 }),
			"steps[0].chunk_time", "10ms"},
		"no chunk time":  {alone(func(s *gather.Step) { s.ChunkAuto = true }), "steps[0].chunk_time", "like 5s"},
		"fixed and time": {alone(func(s *gather.Step) { s.ChunkTime = time.Second }), "steps[0].chunk_time", "is 500"},
		"time over timeout": {alone(func(s *gather.Step) {
			s.ChunkAuto, s.ChunkTime, s.Timeout = true, time.Minute, time.Second
		}), "steps[0].chunk_time", "the timeout of a request, 1s"},
		"rate": {alone(func(s *gather.Step) { s.Rate = -1 }), "steps[0].rate", "-1 is not within 0.001 to"},
		"short max backoff": {alone(func(s *gather.Step) { s.MaxBackoff = 1e6 }),
			"steps[0].max_backoff", "retry_backoff: 1s"},
		"bad code": {alone(func(s *gather.Step) { s.RetryCodes = []string{"a b"} }),
			"steps[0].retry_codes", `"a b"`},
		"code twice": {alone(func(s *gather.Step) { s.NoRetryCodes = []string{"A", "A"} }),
			"steps[0].no_retry_codes", "twice"},
		"code in both": {alone(func(s *gather.Step) { s.RetryCodes, s.NoRetryCodes = []string{"A"}, []string{"A"} }),
			"steps[0].no_retry_codes", "retry_codes, too"},
		"many codes": {alone(func(s *gather.Step) { s.RetryCodes = make([]string, 101) }), "steps[0].retry_codes", "101"},
		"priority":   {gather.Plan{Name: "p", Priority: 1 << 31, Steps: []gather.Step{step("a")}}, "priority", "2147483648"},
		"max failed": {gather.Plan{Name: "p", MaxFailed: "1 %", Steps: []gather.Step{step("a")}}, "max_failed", `"1 %"`},
		"fail_fast":  {gather.Plan{Name: "p", FailFast: "05/9", Steps: []gather.Step{step("a")}}, "fail_fast", "200/400"},
		"not canonical": {gather.Plan{Name: "p", MaxFailed: "1.0%", Steps: []gather.Step{step("a")}}, "max_failed",
			`"1.0%"`},
		"canary": {gather.Plan{Name: "p", Canary: -1, Steps: []gather.Step{step("a")}}, "canary", "-1"},
		"canary auto alone": {gather.Plan{Name: "p", CanaryAutoApprove: true, Steps: []gather.Step{step("a")}},
			"canary_auto_approve", "set canary"},
		"same names":   {graph(step("a"), step("b"), step("a")), "steps[2].name", `"a" is also the name of steps[0]`},
		"unknown need": {graph(step("a"), step("b", "a", "c")), "steps[1].needs[1]", `no step "c"`},
		"need twice":   {graph(step("a"), step("b", "a", "a")), "steps[1].needs[1]", "twice"},
		"needs itself": {graph(step("a", "a")), "steps[0].needs", "a → a"},
		"cycle": {graph(step("z", "a"), step("a", "b"), step("b", "c"), step("c", "a")),
			"steps[1].needs", "a → b → c → a"},
		"two kinds": {alone(func(s *gather.Step) { s.Local = "f" }), "steps[0].local",
			"endpoint is set, too; a step has one of"},
		"bad direct":    {alone(func(s *gather.Step) { s.Endpoint, s.Direct = "", "a.b" }), "steps[0].direct", `"a.b"`},
		"bad local":     {alone(func(s *gather.Step) { s.Endpoint, s.Local = "", "a b" }), "steps[0].local", `"a b": use`},
		"only optional": {alone(func(s *gather.Step) { s.Optional = true }), "steps[0].optional", "every step is optional"},
		"idle barrier":  {alone(func(s *gather.Step) { s.Barrier = true }), "steps[0].barrier", "name steps in needs"},
		"input unknown": {graph(step("a"), seeing(step("b", "a"), "item", "c")), "steps[1].inputs[1]",
			`"c" is neither item nor one of the step's needs (a)`},
		"input without needs": {graph(seeing(step("a"), "b"), step("b")), "steps[0].inputs[0]", "(it has none)"},
		"input twice":         {graph(step("a"), seeing(step("b", "a"), "a", "a")), "steps[1].inputs[1]", "twice"},
		"step called item":    {graph(step("item"), step("b", "item")), "steps[0].name", "what inputs call the item itself"},
		"http": {alone(func(s *gather.Step) { s.Endpoint, s.HTTP = "", &gather.HTTP{} }),
			"steps[0].http.method", "is not one of"},
		"sql": {alone(func(s *gather.Step) { s.Endpoint, s.SQL = "", &gather.SQL{} }),
			"steps[0].sql.source", "name of a source"},
	} {
		err := tc.plan.Validate()
		var field *gather.FieldError
		if !errors.As(err, &field) || field.Field != tc.field || !strings.Contains(field.Problem, tc.says) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for name, plan := range map[string]gather.Plan{
		"a diamond":     graph(step("d", "b", "c"), step("b", "a"), step("c", "a"), step("a")),
		"nothing seen":  graph(step("a"), seeing(step("b", "a"))),
		"an item alone": *gather.Single("item"),
	} {
		testenv.Same(t, plan.Validate(), nil, "%s", name)
	}
}

func TestJSONIsStable(t *testing.T) {
	t.Parallel()
	plan := gather.Single("statement")
	plan.Steps[0].RetryBackoff = 1500 * time.Millisecond
	text := testenv.Must(json.Marshal(plan))(t)
	testenv.MustSame(t, string(text), `{"name":"statement","steps":[{"name":"statement","endpoint":"statement",`+
		`"chunk":500,"in_flight":1024,"in_flight_auto":true,"max_attempts":3,"timeout":"12m0s","retry_backoff":"1.5s",`+
		`"max_backoff":"5m0s"}]}`, "JSON")
	var back gather.Plan
	if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(&back, plan) {
		t.Errorf("got %+v, %v", back, err)
	}
	fromYAML, err := gather.Parse("statement", text)
	if err != nil || !reflect.DeepEqual(fromYAML, plan) {
		t.Errorf("the JSON form is not read as YAML: %+v, %v", fromYAML, err)
	}
	plan = everything()
	text, err = json.Marshal(plan)
	if err != nil || json.Unmarshal(text, &back) != nil || !reflect.DeepEqual(&back, plan) {
		t.Errorf("not everything comes back from %s: %v", text, err)
	}
}

// everything is a plan in which no field is zero.
func everything() *gather.Plan {
	return &gather.Plan{Name: "p", Priority: -3, MaxFailed: "0.5%", FailFast: "5/9", Canary: 100, CanaryAutoApprove: true,
		Steps: []gather.Step{{
			Name: "a", Endpoint: "b", Needs: []string{"c"}, StepSettings: workqueue.StepSettings{Chunk: 2000, ChunkAuto: true,
				ChunkBytes: 512 << 10, ChunkTime: time.Second, InFlight: 256, InFlightAuto: true, Rate: 0.5, MaxAttempts: 4,
				Timeout: time.Minute, RetryBackoff: time.Second, MaxBackoff: time.Minute, RetryCodes: []string{"BUSY"},
				NoRetryCodes: []string{"GONE"}},
		}}}
}

func TestJSONRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"name":"a","steps":[],"webhook":"x"}`,
		`{"name":"a","steps":[{"name":"a","kind":"http"}]}`,
		`{"name":"a","steps":[{"timeout":"soon"}]}`,
		`{"name":"a","steps":[{"chunk":"5"}]}`,
		`[]`,
	} {
		plan := gather.Plan{Name: "before"}
		if err := json.Unmarshal([]byte(text), &plan); err == nil || plan.Name != "before" {
			t.Errorf("%s: got %+v, %v", text, plan, err)
		}
	}
}

func TestPlansWithAnOrder(t *testing.T) {
	t.Parallel()
	plan, err := gather.Parse("p",
		[]byte("order_by: account.id\nvalues: [a, b]\non_failure: stop\nsteps: [{endpoint: e}]"))
	want := order.Rule{By: "account.id", Values: []string{"a", "b"}}
	if err != nil || !reflect.DeepEqual(plan.Order, want) || !plan.Stops() {
		t.Fatalf("got %+v, %v", plan, err)
	}
	text := testenv.Must(json.Marshal(plan))(t)
	var back gather.Plan
	if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(&back, plan) {
		t.Errorf("%s comes back as %+v, %v", text, back, err)
	}
	partitions, fails := 8, "continue"
	over, err := (&gather.Overrides{Partitions: &partitions, OnFailure: &fails}).Over(plan)
	if err != nil || !reflect.DeepEqual(over.Order, order.Rule{By: "account.id", Partitions: 8}) || over.Stops() {
		t.Errorf("laid over: %+v, %v", over, err)
	}
	other := gather.Overrides{}
	err = errors.Join(other.Set("order_by", "customer"), other.Set("on_failure", "continue"))
	if said, laid := other.Over(plan); err != nil || laid != nil || *other.OnFailure != "continue" ||
		!reflect.DeepEqual(said.Order, order.Rule{By: "customer"}) {
		t.Errorf("another order: %+v, %v, %v", said, laid, err)
	}
	for text, want := range map[string]string{
		"partitions: 4\n":                           "1:13: partitions: it goes with order_by, which is missing",
		"order_by: a..b\n":                          "1:11: order_by: ",
		"order_by: a\npartitions: 0\n":              "2:13: partitions: want a whole number within 1 to 65536; this is 0",
		"order_by: a\nvalues: []\n":                 "2:9: values: the list is empty",
		"order_by: a\npartitions: 2\nvalues: [x]\n": "2:13: partitions: it does not go with values",
		"order_by: a\nvalues:\n- x\n- x\n":          `4:3: values[1]: "x" appears twice`,
		"order_by: a\non_failure: halt\n":           "2:13: on_failure: want one of continue, stop",
		"on_failure: stop\n":                        "1:13: on_failure: nothing follows",
		"order_by: a\ncanary: 5\n":                  "2:9: canary: it does not go with order_by",
		"order_by: [a]\n":                           "1:11: order_by: want text",
		"order_by: a\nsteps: [{endpoint: e}, {endpoint: f, needs: [e], barrier: true}]": "steps[1].barrier: it does not go",
		"order_by: a\non_failure: stop\nsteps: [{endpoint: e}, {endpoint: f, optional: true}]": "steps[1].optional: it " +
			"does not go",
	} {
		if !strings.Contains(text, "steps") {
			text += "steps: [{endpoint: e}]\n"
		}
		_, err := gather.Parse("p", []byte(text))
		testenv.Says(t, err, want, "%s", text)
	}
}
