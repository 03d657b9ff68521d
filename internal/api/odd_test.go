package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

// What PostgreSQL cannot store is refused by the name of its field, and nothing is written.
func TestOddParametersAreRefused(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	const runs = api.Prefix + "/runs"
	for query, detail := range map[string]string{
		"priority=2147483648":                "priority: 2147483648",
		"priority=-2147483649":               "priority: -2147483649",
		"name=%ff":                           "name is not valid UTF-8",
		"name=a%00b":                         "name holds a NUL",
		"name=" + strings.Repeat("n", 201):   "name has 201 bytes",
		"source=%ff":                         "source is not valid UTF-8",
		"source=%00":                         "source holds a NUL",
		"source=" + strings.Repeat("s", 501): "source has 501 bytes",
		"idempotency_key=%ff":                "idempotency_key is not valid UTF-8",
		"idempotency_key=%00":                "idempotency_key holds a NUL",
		"idempotency_key=" + strings.Repeat("k", 4000): "idempotency_key has 4000 bytes",
		"param=a%3D%ff":           `parameter "a"`,
		"param=a%00%3Db":          `parameter "a\x00"`,
		"param=a%3D1&param=a%3D2": `param: "a" is given twice`,
		"key=%ff":                 "key is not valid UTF-8",
		"param=" + url.QueryEscape(strings.Repeat("é", 9000)): "is not name=value",
	} {
		b.Refused(422, detail, http.MethodPost, runs+"?endpoint=echo&"+query, strings.NewReader(apitest.Three))
	}
	b.Refused(422, "priority: want a whole number", http.MethodPost,
		runs+"?endpoint=echo&priority=99999999999999999999", strings.NewReader(apitest.Three))
	b.Refused(422, "plan_name holds a NUL", http.MethodPost, runs, strings.NewReader(
		"--x\r\nContent-Disposition: form-data; name=\"run\"\r\n\r\n{\"endpoint\":\"echo\",\"plan_name\":\"\\u0000\"}\r\n"+
			"--x\r\nContent-Disposition: form-data; name=\"items\"\r\n\r\n"+apitest.Three+"\r\n--x--\r\n"),
		"Content-Type", "multipart/form-data; boundary=x")
	b.Refused(422, "header Tranche-Actor is not valid UTF-8", http.MethodPost, runs+"?endpoint=echo",
		strings.NewReader(apitest.Three), apicore.ActorHeader, "\xff")
	deep := `{"id":1,"d":` + strings.Repeat("[", 128) + strings.Repeat("]", 128) + "}\n"
	b.Refused(422, "line 1", http.MethodPost, runs+"?endpoint=echo", strings.NewReader(deep))

	started := b.Start("name=it")
	b.Finish(started.Run)
	for _, c := range []struct {
		status       int
		detail, body string
	}{
		{422, "keys[1] holds a NUL", `{"keys":["1","a\u0000"]}`},
		{422, "not valid JSON at byte", "{\"keys\":[\"\xff\"]}"},
		{422, "codes[0] holds a NUL", `{"codes":["\u0000"]}`},
		{422, "keys[0] has 513 bytes", `{"keys":["` + strings.Repeat("k", 513) + `"]}`},
		{422, "more than 100000 keys", `{"keys":[` + strings.Repeat(`"k",`, 100_000) + `"k"]}`},
		{422, "keys[0] must be a string", `{"keys":[1]}`},
		{422, "keys must be an array", `{"keys":"1"}`},
		{422, "failed must be true or false", `{"failed":"yes"}`},
		{422, "chunk is 9000", `{"failed":true,"chunk":9000}`},
		{422, "chunk is -1", `{"failed":true,"chunk":-1}`},
		{422, "in_flight: want a whole number", `{"failed":true,"in_flight":1.5}`},
		{422, `unknown member "fialed"`, `{"fialed":true}`},
		{422, "must be a JSON object", `[]`},
		{422, "the body is empty", ``},
		{422, "not valid JSON", `{"keys":["1"`},
		{422, "not valid JSON", `{"keys":["1",}`},
		{422, "after top-level value", `{"failed":true} x`},
		{422, "not valid JSON", `{"failed":true,"failed":true}`},
		{413, "larger than 16 MiB", `{"keys":["` + strings.Repeat("k", 17<<20) + `"]}`},
	} {
		b.Refused(c.status, c.detail, http.MethodPost, runs+"/last/rerun", strings.NewReader(c.body))
	}
	for path, body := range map[string]string{
		"/last/rerun": `{"failed":true}`, "/last/cancel": `{"reason":"r"}`, "/last/pause": "", "/resume": `{"all":true}`,
		"/last/settings": `{"priority":1}`,
	} {
		b.Refused(422, apicore.ActorHeader, http.MethodPost, runs+path, strings.NewReader(body), apicore.ActorHeader, "a\xff")
	}
	var n, generation int
	err := b.Pool.QueryRow(t.Context(), `SELECT count(*), max(generation) FROM batchrun`).Scan(&n, &generation)
	if err != nil || n != 1 || generation != 1 {
		t.Errorf("there are %d runs of generation %d, %v; want the first as it was", n, generation, err)
	}
}

// An answer that says no does not grow with what was asked.
func TestErrorsRepeatLittle(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=it")
	long := strings.Repeat("x", 30_000)
	const runs = api.Prefix + "/runs"
	for _, c := range []struct{ method, path, body, kind string }{
		{http.MethodGet, runs + "?limit=" + long, "", ""},
		{http.MethodGet, runs + "?state=" + long, "", ""},
		{http.MethodGet, runs + "?" + long + "=1", "", ""},
		{http.MethodGet, runs + "/" + long, "", ""},
		{http.MethodGet, runs + "/last/items/" + long, "", ""},
		{http.MethodGet, runs + "/last/export?state=" + long, "", ""},
		{http.MethodGet, "/" + long, "", ""},
		{http.MethodPost, runs + "?endpoint=" + long, apitest.Three, ""},
		{http.MethodPost, runs + "?endpoint=echo&format=" + long, apitest.Three, ""},
		{http.MethodPost, runs + "?endpoint=echo&param=" + long, apitest.Three, ""},
		{http.MethodPost, runs + "/last/rerun", `{"` + long + `":1}`, ""},
		{http.MethodPost, runs + "/last/rerun", `{"keys":["` + long[:500] + `","` + long[:511] + `"]}`, ""},
		{http.MethodPost, runs + "/last/rerun", `{"chunk":` + strings.Repeat("9", 30_000) + `}`, ""},
		{
			http.MethodPost, runs,
			"--x\r\nContent-Disposition: form-data; name=\"run\"\r\n\r\n{\"" + long + "\":1}\r\n--x--\r\n",
			"multipart/form-data; boundary=x",
		},
	} {
		code, text := b.Ask(c.method, c.path, strings.NewReader(c.body), "Content-Type", c.kind)
		if code < 400 || code >= 500 || len(text) > 3000 {
			t.Errorf("%s %.60s: %d with %d bytes: %.300s", c.method, c.path, code, len(text), text)
		}
	}
}

// A large selection costs its keys and little more. It is not parallel, for other tests' garbage would be counted.
//
//nolint:paralleltest // see above
func TestALargeSelectionIsCheap(t *testing.T) {
	b := apitest.Setup(t)
	b.Start("name=it")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	filler := bytes.Repeat([]byte(`"",`), 1<<20)
	body := io.MultiReader(strings.NewReader(`{"keys":[`), bytes.NewReader(filler), bytes.NewReader(filler),
		strings.NewReader(`""]}`))
	b.Refused(422, "more than 100000 keys", http.MethodPost, api.Prefix+"/runs/last/rerun", body)
	runtime.ReadMemStats(&after)
	if spent := after.TotalAlloc - before.TotalAlloc; spent > 32<<20 {
		t.Errorf("it took %d MB", spent>>20)
	}
}

// However odd what stands in a path, a query or a body is, no operation fails for it.
func TestOddRequests(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=last-but-one")
	b.AddLetter("accounts", deadletter.DeadLetter{Body: []byte("x"),
		Headers: map[string][]string{"\xff\x00": {"\x1b[31m"}}})
	b.Stray(deadletter.Quarantined{Reason: "json", Run: [16]byte{1}})
	for _, name := range []string{"key", "code", "group", "service", "where", "where_result"} {
		code, text := b.Ask(http.MethodGet, api.Prefix+"/runs/last-but-one/export?"+name+"=%00", nil)
		if code != http.StatusUnprocessableEntity || !strings.Contains(string(text), "holds a NUL") {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	text := func() string {
		return one("", " ", "0", "-1", "last", "..", "a/b", "%", `"`, "\x00", "\xff", "\u202e", "*", ">", "a.b", "null", "{}",
			"9223372036854775808", "01a1f960-6f14-7d3c-b556-174c979b9ff1", "'; DROP TABLE dead_letter; --", "accounts",
			strings.Repeat("f", 32), strings.Repeat("x", 65), strings.Repeat("a", 5000))
	}
	inPath, all := regexp.MustCompile(`{\w+}`), operations(b)
	for _, op := range slices.Sorted(maps.Keys(all)) { // so that a seed says the same each time
		method, path, _ := strings.Cut(op, " ")
		if strings.HasSuffix(path, "/events") {
			continue // it may have no end
		}
		ask := func(query, body string) {
			at := api.Prefix + inPath.ReplaceAllStringFunc(path, func(string) string {
				odd := text()
				return url.PathEscape(odd)
			}) + query
			code, answer := b.Ask(method, at, strings.NewReader(body), "Content-Type",
				one("application/json", "application/yaml", "text/csv"))
			if code >= http.StatusInternalServerError {
				t.Errorf("%s: %s with %.200q: %d %.300s", op, at, body, code, answer)
			}
		}
		for _, name := range append(all[op], "other") {
			for _, value := range []string{"\x00", text()} {
				ask("?"+name+"="+url.QueryEscape(value), one("", apitest.Three))
			}
		}
		for range 2 {
			value, _ := json.Marshal(text()) // a text always can be
			body := one("[]", "null", "\xff", `{"%s":%s}`, `{"%s":[%s]}`, `{"%s":[[%s]]}`, `{"%s":%s,"all":true}`)
			if strings.Contains(body, "%") {
				body = fmt.Sprintf(body, one("endpoint", "run", "name", "ids", "keys", "kind", "subject", "concurrency", "items",
					"owner", "reason", "other"), value)
			}
			ask("", body)
		}
	}
}
