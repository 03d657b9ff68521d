package ingest_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/tranchehq/tranche/internal/ingest"
)

func TestReadTakesLinesAndLists(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"id":"1","key":"a","priority":3,"payload":{"x": [1, 2.50]}}` + "\n" + `{"payload":null}` + "\r\n\n",
		"\ufeff" + `{"id":"1","key":"a","priority":3,"payload":{"x":[1,2.50]}} {"payload":null}`,
		`{"ops":[{"id":"1","key":"a","priority":3,"payload":{"x":[1,2.50]}},{"payload":null}]}`,
		` { "ops" : [ {"payload":{"x":[1,2.50]},"priority":3,"key":"a","id":"1"} ] } {"payload" : null }`,
	} {
		ops, err := ingest.Read(iotest.OneByteReader(strings.NewReader(text)))
		if err != nil || len(ops) != 2 {
			t.Errorf("%s is read as %v, %v", text, ops, err)
			continue
		}
		if op := ops[0]; op.ID != "1" || op.Key != "a" || op.Priority != 3 || string(op.Payload) != `{"x":[1,2.50]}` {
			t.Errorf("%s: the first is %+v", text, op)
		}
		if op := ops[1]; op.ID != "" || op.Key != "" || string(op.Payload) != "null" {
			t.Errorf("%s: the second is %+v", text, op)
		}
	}
	if ops, err := ingest.Read(strings.NewReader(`{"ops":[]}`)); err != nil || len(ops) != 0 {
		t.Errorf("an empty list is read as %v, %v", ops, err)
	}
}

func TestReadSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	const good = `{"payload":1}` + "\n"
	for text, want := range map[string]string{
		"":                                   "there is no operation; want objects like",
		"\n":                                 "there is no operation",
		good + good + `{"key":"a"}`:          "operation 3 (line 3): payload: it is missing",
		good + `{"key":5,"payload":1}`:       "operation 2 (line 2): key: want text in quotes; this is a number",
		`{"id":null,"payload":1}`:            "id: want text in quotes; this is null",
		`{"priority":"5","payload":1}`:       "priority: want a whole number within 0 to 9",
		`{"priority":10,"payload":1}`:        "this is \"10\"",
		`{"priority":1.0,"payload":1}`:       "priority: want a whole number",
		`{"pay":1}`:                          `operation 1 (line 1): unknown member "pay"; there are id, key`,
		`{"payload":1,"ops":[]}`:             `unknown member "ops"`,
		`{"ops":{}}`:                         "ops: want a list of operations; this is an object",
		`{"ops":[1]}`:                        "want an object like",
		`{"ops":[],"x":1}`:                   `want nothing beside "ops"`,
		`{"ops":[{"payload":1}`:              "the JSON breaks off",
		"{\"ops\":[\n{\"payload\":1},\n{}]}": "operation 2 (line 3): payload: it is missing",
		`[{"payload":1}]`:                    "want an object like {\"id\":\"order-17\"",
		`hello`:                              "this is not JSON",
		good + `{"payload":}`:                "operation 2 (line 2): this is not JSON",
		`{"payload":{"a":1,"a":2}}`:          "duplicate",
		`{"payload":1,"payload":2}`:          "duplicate",
		"{\"key\":\"\xff\",\"payload\":1}":   "UTF-8",
		`{"payload":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`: "payload: it is nested deeper than 128",
		`{"payload":"` + strings.Repeat("x", 600<<10) + `"}`:                      "payload: it has 614402 bytes",
		strings.Repeat(good, ingest.MaxOps+1):                                     "there are more than 100000 operations",
	} {
		ops, err := ingest.Read(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q is read as %d operations, %v; want …%s…", text, len(ops), err, want)
		}
	}
	broken := errors.New("the line is cut")
	_, err := ingest.Read(io.MultiReader(strings.NewReader(good+`{"payl`), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) {
		t.Errorf("a reader that fails gives %v", err)
	}
}

// Lines are counted also where values have lines of their own.
func TestReadCountsLines(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for i := range 50 {
		fmt.Fprintf(&text, "{\"payload\":{\n\"n\":%d\n}}\n", i)
	}
	_, err := ingest.Read(strings.NewReader(text.String() + `{"payload":`))
	bad, ok := errors.AsType[*ingest.OpError](err)
	if !ok || bad.Number != 51 || bad.Line != 151 {
		t.Errorf("got %v; want operation 51 in line 151", err)
	}
}
