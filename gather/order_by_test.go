package gather_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/workqueue/order"
)

func TestPlansWithAnOrder(t *testing.T) {
	t.Parallel()
	plan, err := gather.Parse("p",
		[]byte("order_by: account.id\nvalues: [a, b]\non_failure: stop\nsteps: [{endpoint: e}]"))
	want := order.Rule{By: "account.id", Values: []string{"a", "b"}}
	if err != nil || !reflect.DeepEqual(plan.Order, want) || !plan.Stops() {
		t.Fatalf("got %+v, %v", plan, err)
	}
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
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
		"order_by: a\nvalues:\n- x\n- x\n":          `4:3: values[1]: "x" stands there twice`,
		"order_by: a\non_failure: halt\n":           "2:13: on_failure: want continue or stop",
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
		if _, err := gather.Parse("p", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\ngot  %v\nwant %s", text, err, want)
		}
	}
}
