package order_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/workqueue/order"
)

func TestValue(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ by, payload, value, problem string }{
		{"customer", `{"a":{"customer":1},"customer":"c7"}`, "c7", ""},
		{"customer", `{"customer":42}`, "42", ""},
		{"customer", `{"customer":1.50}`, "1.50", ""},
		{"customer", `{"customer":true}`, "true", ""},
		{"customer", `{"customer":"a\u00e9\n"}`, "aé\n", ""},
		{"customer.id", `{"customer":{"id":"x","n":[{}]}}`, "x", ""},
		{"customer", `{"customer":"first","customer":"last"}`, "last", ""},
		{"customer", `{"customer":null,"customer":"last"}`, "last", ""},
		{"key", `{"key":"of the payload"}`, "the-key", ""},
		{"customer", `{"Customer":"c7"}`, "", `there is no field "customer"`},
		{"customer", `{"customer":null}`, "", `field "customer" is null`},
		{"customer", `{"customer":"last","customer":null}`, "", `field "customer" is null`},
		{"customer", `{"customer":""}`, "", `field "customer" is empty`},
		{"customer", `{"customer":["c"]}`, "", `field "customer" is a list`},
		{"customer.id", `{"customer":{}}`, "", `there is no field "id"`},
		{"customer.id", `{"customer":7}`, "", `there is a number where an object with field "id" should be`},
		{"customer", `7`, "", `there is a number where an object`},
		{"customer", ``, "", `the payload is empty`},
		{"customer", `{"customer":`, "", `the payload is not JSON`},
	} {
		value, err := (&order.Rule{By: tc.by}).Value("the-key", []byte(tc.payload))
		bad, refused := errors.AsType[*order.ValueError](err)
		switch {
		case tc.problem == "" && (err != nil || value != tc.value):
			t.Errorf("%s of %s: %q, %v; want %q", tc.by, tc.payload, value, err, tc.value)
		case tc.problem != "" && (!refused || !strings.Contains(bad.Problem, tc.problem) || bad.Field != tc.by):
			t.Errorf("%s of %s: %q, %v; want an error with %q", tc.by, tc.payload, value, err, tc.problem)
		}
	}
	listed := &order.Rule{By: "region", Values: []string{"eu", "us"}}
	if _, err := listed.Value("", []byte(`{"region":"eu"}`)); err != nil {
		t.Error(err)
	}
	if _, err := listed.Value("", []byte(`{"region":"asia"}`)); err == nil || !strings.Contains(err.Error(), "eu, us") {
		t.Errorf("a value that is not listed: %v", err)
	}
}

// What items were put in line by must not change with a version: these numbers are FNV-1a's.
func TestPartitionsAreStable(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]int{"": 37, "a": 96, "customer-7": 97, "Zürich": 20} {
		if got := order.Partition(value, 100); got != want {
			t.Errorf("partition of %q is %d, want %d", value, got, want)
		}
		if lane := (&order.Rule{By: "f", Partitions: 100}).Lane(value); lane != int64(want) {
			t.Errorf("lane of %q is %d, want %d", value, lane, want)
		}
	}
	whole := order.Rule{By: "f"}
	if got, want := whole.Lane("a"), int64(-5808556873153909620); got != want {
		t.Errorf("lane of a is %d, want %d", got, want)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		rule  order.Rule
		field string
	}{
		{order.Rule{By: "customer"}, ""},
		{order.Rule{By: "a.b.c", Partitions: order.MaxPartitions}, ""},
		{order.Rule{By: "a", Values: []string{"x", "y"}}, ""},
		{order.Rule{Partitions: 2}, "order_by"},
		{order.Rule{By: "a..b"}, "order_by"},
		{order.Rule{By: ".a"}, "order_by"},
		{order.Rule{By: "a\x00"}, "order_by"},
		{order.Rule{By: strings.Repeat("x", 201)}, "order_by"},
		{order.Rule{By: "a.a.a.a.a.a.a.a.a"}, "order_by"},
		{order.Rule{By: "a", Partitions: -1}, "partitions"},
		{order.Rule{By: "a", Partitions: order.MaxPartitions + 1}, "partitions"},
		{order.Rule{By: "a", Partitions: 2, Values: []string{"x"}}, "partitions"},
		{order.Rule{By: "a", Values: []string{"x", "x"}}, "values[1]"},
		{order.Rule{By: "a", Values: []string{""}}, "values[0]"},
		{order.Rule{By: "a", Values: make([]string, 1001)}, "values"},
	} {
		err := tc.rule.Validate()
		bad, refused := errors.AsType[*order.SettingError](err)
		if refused != (tc.field != "") || refused && bad.Field != tc.field {
			t.Errorf("%+v: %v, want an error of %q", tc.rule, err, tc.field)
		}
	}
}
