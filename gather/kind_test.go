package gather_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

const fetches = `name: p
steps:
- name: branches
  rate: 100
  http:
    url: "http://127.0.0.1:8081/branches/{item.branch}{?year}"
    method: PUT
    headers: {Authorization: "Bearer {secret.branch-token}", X-Key: "{key}"}
    body: {id: "{key}", nested: [1, 2.50, null, true, {b: x, a: "{params.year}"}]}
    accept: application/json
    concurrency: 16
    timeout: 3s
    max_bytes: 64KiB
    redirects: 0
    response: {value: /data}
- name: many
  http: {url: "https://api.example/all{?keys}", whole_chunk: true, response: {items: /data, key: /id}}
- name: history
  needs: [branches]
  inputs: [branches]
  sql:
    source: ledger
    query: |
      SELECT account, amount   -- all of them
      FROM movement WHERE account = ANY($1)
    rows: many
    timeout: 10s
`

func TestParseKindsThatFetch(t *testing.T) {
	t.Parallel()
	plan := testenv.Must(gather.Parse("p", []byte(fetches)))(t)
	want := &gather.HTTP{
		URL: "http://127.0.0.1:8081/branches/{item.branch}{?year}", Method: "PUT",
		Headers: map[string]string{"Authorization": "Bearer {secret.branch-token}", "X-Key": "{key}"},
		Body:    gather.JSON(`{"id":"{key}","nested":[1,2.50,null,true,{"a":"{params.year}","b":"x"}]}`),
		Accept:  "application/json", Concurrency: 16, Timeout: workqueue.Duration(3 * time.Second), MaxBytes: 64 << 10,
		Response: gather.HTTPResponse{Value: "/data"},
	}
	if got := plan.Steps[0].HTTP; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	want = &gather.HTTP{URL: "https://api.example/all{?keys}", Method: "GET", WholeChunk: true, Concurrency: 8,
		Timeout: workqueue.Duration(30 * time.Second), MaxBytes: 4 << 20, Redirects: 3,
		Response: gather.HTTPResponse{Items: "/data", Key: "/id"}}
	if got := plan.Steps[1].HTTP; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	query := &gather.SQL{Source: "ledger", Rows: "many", Timeout: workqueue.Duration(10 * time.Second), MaxRows: 100_000,
		MaxBytes: 4 << 20, Query: "SELECT account, amount   -- all of them\nFROM movement WHERE account = ANY($1)\n"}
	if got := plan.Steps[2].SQL; !reflect.DeepEqual(got, query) {
		t.Errorf("got  %+v\nwant %+v", got, query)
	}
	for i, want := range []string{"http:127.0.0.1:8081", "http:api.example", "sql:ledger"} {
		testenv.Same(t, plan.Steps[i].TargetKey(), want, "step %d is paced by", i)
	}
	for u, want := range map[string]string{
		"https://H.:443/x": "h", "http://h:80/": "h", "https://h.:8443/{key}": "h:8443", "http://[::1]:80/": "[::1]",
		"http://[0::1]:81/": "[::1]:81", "http://[::ffff:10.0.0.1]/": "10.0.0.1",
	} {
		testenv.Same(t, (&gather.Step{HTTP: &gather.HTTP{URL: u}}).TargetKey(), "http:"+want, "%s is paced by", u)
	}
	spec := testenv.Must(json.Marshal(plan))(t)
	var again gather.Plan
	if err := json.Unmarshal(spec, &again); err != nil || !reflect.DeepEqual(&again, plan) {
		t.Errorf("%s is read as %+v, %v", spec, again, err)
	}
	if strings.Contains(string(spec), `"response":{}`) {
		t.Errorf("%s has what is not set", spec)
	}
}

func TestBadKindsThatFetch(t *testing.T) {
	t.Parallel()
	for _, test := range [][2]string{
		{`http: {}`, "steps[0].http.url: a URL is needed"},
		{`http: http://x/`, "steps[0].http: want fields: url, method"},
		{
			`http: {url: "http://h/{kye}"}`,
			"f:3:16: steps[0].http.url: there is no {kye} here; there are key, ordinal, item.FIELD",
		},
		{`http: {url: "http://h/{secret.t}"}`, "steps[0].http.url: {secret.t}: a secret does not belong in a URL"},
		{`http: {url: "http://h/", method: HEAD}`, `steps[0].http.method: want one of GET, POST`},
		{`http: {url: "http://h/", method: GET, body: {}}`, "steps[0].http.method: a GET has no body"},
		{`http: {url: "http://h/", body: "{nope}"}`, "steps[0].http.body: there is no {nope} here"},
		{`http: {url: "http://h/", body: 0x10}`, "steps[0].http.body: want what JSON can say"},
		{`http: {url: "http://h/", body: {1: 2}}`, "steps[0].http.body: the name \"1\" must be in quotes"},
		{`http: {url: "http://h/", headers: {"a b": x}}`, `steps[0].http.headers: invalid header name "a b"`},
		{
			`http: {url: "http://h/", headers: {Host: x}}`,
			"steps[0].http.headers.Host: this header says how a request is sent",
		},
		{`http: {url: "http://h/", headers: {Accept: x}}`, "steps[0].http.headers.Accept: use accept: TYPE"},
		{`http: {url: "http://h/", headers: {A: x, a: x}}`, "steps[0].http.headers.a: it appears twice"},
		{`http: {url: "http://h/", headers: {A: "x\r\ny"}}`, "steps[0].http.headers.A: line breaks"},
		{`http: {url: "http://h/", headers: {A: "{kye}"}}`, "steps[0].http.headers.A: there is no {kye} here"},
		{`http: {url: "http://h/", headers: {A: [1]}}`, "steps[0].http.headers.A: want a value"},
		{`http: {url: "http://h/", accept: "*/*"}`, `steps[0].http.accept: "*/*": want one content type`},
		{`http: {url: "http://h/", concurrency: 0}`, "steps[0].http.concurrency: 0 is not within 1 to 256"},
		{`http: {url: "http://h/", redirects: 11}`, "steps[0].http.redirects: 11 is not within 0 to 10"},
		{`http: {url: "http://h/", timeout: 2h}`, "steps[0].http.timeout: 2h0m0s is not within 1ms to 1h0m0s"},
		{`http: {url: "http://h/", max_bytes: 1GiB}`, "steps[0].http.max_bytes: "},
		{`http: {url: "http://h/", response: {value: data}}`, `steps[0].http.response.value: "data" is not a JSON pointer`},
		{`http: {url: "http://h/", response: {key: /id}}`, "items and key are about whole_chunk: true"},
		{`http: {url: "http://h/{key}", whole_chunk: true}`, "there is no {key} here; there are keys"},
		{`http: {url: "http://h/", retries: 3}`, `unknown field "retries"; there are url`},
		{`sql: {}`, `steps[0].sql.source: "": want the name of a source`},
		{`sql: {source: a}`, "steps[0].sql.query: a query is needed"},
		{`sql: {source: a, query: "DELETE FROM x WHERE i = ANY($1)"}`, "steps[0].sql.query: it only reads"},
		{`sql: {source: a, query: "/* SELECT */ DROP TABLE x -- $1"}`, "steps[0].sql.query: it only reads"},
		{`sql: {source: a, query: "SELECT 1 -- $1"}`, "steps[0].sql.query: $1 is missing"},
		{`sql: {source: a, query: "SELECT $1, $4"}`, "steps[0].sql.query: there is no $4"},
		{`sql: {source: a, query: "SELECT $1", rows: all}`, `steps[0].sql.rows: want one of one, many`},
		{`sql: {source: a, query: "SELECT $1", timeout: 0s}`, "steps[0].sql.timeout: "},
		{`sql: {source: a, query: "SELECT $1", max_rows: 0}`, "steps[0].sql.max_rows: 0 is not within"},
		{
			`sql: {source: a, query: "SELECT $1", content_type: "text/x"}`,
			"steps[0].sql.content_type: it is about the bytes of a column",
		},
		{`sql: {source: a, query: "SELECT $1, $2"}, inputs: []`, "steps[0].sql.query: $2 has the items"},
	} {
		text, want := test[0], test[1]
		plan := "steps:\n- {name: s, \n   " + text + "}\n"
		_, err := gather.Parse("f", []byte(plan))
		testenv.Says(t, err, want, "%s", text)
	}
}
