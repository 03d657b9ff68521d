package runs_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// Data is corrected from a file and item by item, and whoever looks sees it.
func TestCorrectTheDataOfItems(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Start("name=c").Run
	all := func(workqueue.Ordinal) []byte { return []byte("1") }
	b.Answer(run, "", all)
	csv := "id,name\n2,BOB\n3,cy\n"
	b.Says(200, "/runs/c/correct?dry_run=true", csv, `"dry_run":true`, `"items":1`, `"same":1`, `"examples":["2"]`)
	b.Says(200, "/runs/c/correct?reason=case", csv, `"generation":2`, `"begun":1`, `"key":"id"`)
	b.Says(409, "/runs/c/correct", csv, "2 items are in the run just as given")
	b.Says(404, "/runs/c/correct", "id\n7\n", `has no item with key`, `7`, `nothing was changed`)
	b.Says(422, "/runs/c/correct", "id,name\n2,x\n2,y\n", "line 3", "given before")
	b.Says(404, "/runs/none/correct", csv)
	b.Answer(run, "", all)
	b.Says(200, "/runs/c/items/2/correct", `{"payload":{"id": "2",
		"name": "Bob"}}`, `"items":1`, `"generation":3`)
	b.Says(409, "/runs/c/items/2/correct", `{"payload":{"id":"2"},"if_generation":2}`, "corrected since it was read")
	b.Says(200, "/runs/c/items/2/correct", `{"payload":{"id":"2"},"if_generation":3,"dry_run":true}`, `"items":1`)
	b.Says(422, "/runs/c/items/2/correct", `{"payload":[1]}`, "payload: ", "JSON object")
	b.Says(422, "/runs/c/items/2/correct", `{"payload":{"a":"\u0000"}}`, "NUL")
	b.Says(404, "/runs/c/items/7/correct", `{"payload":{}}`)
	b.Answer(run, "", all)
	for path, want := range map[string]string{
		"/runs/c/items/2": `"earlier_payloads":[{"generation":3,"payload":{"id":"2","name":"BOB"},`,
		"/runs/c/report":  `"corrected":{"items":1,"made":1,`,
		"/runs/c/history": `correct`,
	} {
		_, text := b.Get(path)
		testenv.Has(t, text, want, "%s", path)
	}
}

// What corrects items has to fit the schema of the run, and fixes what did not.
func TestCorrectionsFitTheSchema(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	plan := "items:\n  on_invalid: fail\n  schema:\n    type: object\n    required: [name]\n    properties:\n" +
		"      name: {type: string, minLength: 2}\nsteps:\n  - {name: echo, endpoint: echo}\n"
	b.Says(200, "/plans?name=s", plan)
	b.Says(201, "/runs?plan_ref=s&name=s&idempotency_key=k", "id,name\n1,ann\n2,b\n", `"invalid":1`)
	b.Says(200, "/runs?plan_ref=s&name=t&idempotency_key=k", "id,name\n1,ann\n2,b\n", `"name":"s"`, `"invalid":1`)
	var run workqueue.RunID
	testenv.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT id FROM batchrun WHERE name = 's'`).Scan(&run))
	b.Answer(run, "", func(workqueue.Ordinal) []byte { return []byte("1") })
	b.Says(422, "/runs/s/correct", "id,name\n2,c\n", "Nothing was corrected")
	b.Says(422, "/runs/s/items/2/correct", `{"payload":{"id":"2","name":"c"}}`, "payload: ", "name")
	b.Says(200, "/runs/s/items/2/correct", `{"payload":{"id":"2","name":"bob"}}`, `"begun":1`)
	b.Answer(run, "", func(workqueue.Ordinal) []byte { return []byte("1") })
	_, text := b.Get("/runs/s")
	testenv.Has(t, text, `"done":2,"failed":0`, "the run")
}

// A run continues what an earlier one failed, some of it with other data; both are linked, counted and
// compared as one.
func TestCarryOnAnEarlierRun(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	first := b.Start("name=first&param=year%3D2026").Run
	b.Says(409, "/runs?from_run=first", "", "continue", "wait until it ends")
	firstOnly := func(o workqueue.Ordinal) []byte {
		if o == 0 {
			return []byte("1")
		}
		return nil
	}
	b.Answer(first, "", firstOnly)
	b.Says(422, "/runs?from_run=first", "id,name\n2,x\n9,y\n", "not among those taken", `\"9\"`)
	b.Says(201, "/runs?endpoint=echo&name=twins&on_duplicate=allow", "id,name\n1,ann\n1,bob\n")
	var twins workqueue.RunID
	testenv.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT id FROM batchrun WHERE name = 'twins'`).Scan(&twins))
	b.Answer(twins, "", func(workqueue.Ordinal) []byte { return nil })
	b.Says(422, "/runs?from_run=twins&on_duplicate=allow", "id,name\n1,x\n", "several items", "it is ambiguous")
	b.Says(422, "/runs?from_run=first&from_state=late", "", "failed, missing or cancelled")
	b.Says(422, "/runs?from_run=first&from_state=missing", "", "no items in these states")
	b.Says(422, "/runs?from_run=first&schema="+url.QueryEscape(`{"required":["x"]}`), "", "2 items do not fit the schema",
		`item 1, key \"2\"`, `item 2, key \"3\"`)
	const carry = "/runs?from_run=first&from_state=failed&name=second&idempotency_key=k"
	b.Says(201, carry, "id,name\n2,BOB\n", `"items":2`, `"plan":"echo"`)
	var second workqueue.RunID
	testenv.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT id FROM batchrun WHERE name = 'second'
		AND from_outcome = 'failed'`).Scan(&second))
	b.Answer(second, "", firstOnly)
	for path, want := range map[string]string{
		"/runs/second":         `"from_run":"` + first.String(),
		"/runs/first":          `"continued_by":["` + second.String(),
		"/runs?limit=2":        `"from_run":"` + first.String(),
		"/runs/second/items/2": `"name":"BOB"`,
		"/runs/second/items/3": `"name":"cy"`,
		"/runs/second/report":  `"together":{"runs":["` + first.String() + `"],"items":3,"done":2,"failed":1,"missing":0}`,
		"/runs/second/report?against=first": `"against":{"against":"` + first.String() + `","changes":[` +
			`{"change":"newly_failing","items":0,"examples":[]},{"change":"newly_fixed","items":1,`,
	} {
		_, text := b.Get(path)
		testenv.Has(t, text, want, "%s", path)
	}
	if _, text := b.Get("/runs/second/comparison?against=first"); strings.Count(text, "\n") != 3 ||
		!strings.Contains(text, `"change":"unchanged"`) || !strings.Contains(text, `"change":"still_failing"`) {
		t.Errorf("the comparison: %s", text)
	}
	_, text := b.Get("/runs/second")
	testenv.Has(t, text, `"year":"2026"`, "the parameters")
	testenv.Must(b.Pool.Exec(t.Context(), `UPDATE batchrun SET created_at = '2020-01-01',
		spec = spec || '{"done_by":"2020-01-02T00:00:00Z"}' WHERE name IN ('first', 'second')`))(t)
	b.Says(200, "/runs/first/rerun", `{"failed":true}`)
	b.Says(200, carry, "id,name\n2,BOB\n", `"existing":true`) // though its time has passed, and the first continues
}

// Plan and items are those of one run, though another is the last one before the items are read.
func TestCarryOnTheLastRun(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	nc := testenv.Conn(t, testenv.NATS(t))
	b.ServeWith(nc, api.Config{})
	end := func(failed workqueue.Ordinal) {
		b.Answer(b.Start("contract=off").Run, "", func(o workqueue.Ordinal) []byte {
			if o == failed {
				return nil
			}
			return []byte("1")
		})
	}
	const path = api.Prefix + "/runs?from_run=last&name=next&contract=reject&idempotency_key=k"
	answered := make(chan error)
	end(0)
	asked := testenv.Must(nc.SubscribeSync(wire.StatusSubject("echo")))(t)
	go func() {
		_, _, err := b.TryAsk(http.MethodPost, path, nil)
		answered <- err
	}()
	question := testenv.Must(asked.NextMsg(time.Minute))(t)
	end(2)
	testenv.NoError(t, question.Respond([]byte("{}")))
	testenv.NoError(t, <-answered)
	b.Want(strings.TrimPrefix(path, api.Prefix), "", 200, `"existing":true`) // though the last run is this one by now
	_, text := b.Get("/runs/next/items/%3D1")
	testenv.Has(t, text, `"name":"ann"`, "the item that failed in the run that was the last")
}

// Items are chosen by evidence, in bodies and in the query of an export.
func TestEvidenceInBodiesAndQueries(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Start("name=v").Run
	b.Answer(run, "", func(workqueue.Ordinal) []byte { return []byte(`{"n":1}`) })
	b.Says(200, "/runs/v/rerun", `{"service":"test","where":"$.name == \"bob\"","dry_run":true}`, `"items":1`,
		`"examples":["2"]`)
	b.Says(200, "/runs/v/reset", `{"where_result":"$.n > 0","since":"2020-01-01T00:00:00Z","dry_run":true}`, `"items":3`)
	b.Says(200, "/runs/v/reset", `{"keys":["2","3"],"where":"$.name == \"bob\"","dry_run":true}`, `"items":1`)
	b.Says(409, "/runs/v/rerun", `{"service":"other"}`, "the evidence matches nothing",
		`(service \"other\"); who made an item's parts: tranche run item `)
	answer, text := b.Get("/runs/v/export?key=9")
	if answer.StatusCode != http.StatusNotFound || strings.Contains(text, "changed") {
		t.Errorf("an export of a key that does not exist: %d %s", answer.StatusCode, text)
	}
	b.Says(409, "/runs/v/accept", `{"states":["failed"],"reason":"r"}`, "nothing to accept")
	b.Says(422, "/runs/v/rerun", `{"where":"$.a = 1"}`, "not a path of SQL/JSON")
	b.Says(422, "/runs/v/rerun", `{"since":"yesterday"}`, "RFC 3339")
	b.Says(422, "/runs/v/rerun", `{"states":["late"]}`, "done or failed")
	b.Says(422, "/runs/v/rerun", `{}`, "choose one of", "or evidence: states, service")
	_, text = b.Get("/runs/v/export?service=test&where=" + "%24.name%20%3D%3D%20%22cy%22")
	if strings.Count(text, "\n") != 1 || !strings.Contains(text, `"key":"3"`) {
		t.Errorf("the export: %s", text)
	}
	b.JSON(http.MethodGet, "/runs/v/export?where=%24.a%20%3D%201", "", http.StatusUnprocessableEntity, nil)
}

// Failures are accepted, all who look at them see it, and a request that is sent again does nothing more.
func TestAcceptFailures(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Start("name=e").Run
	b.Answer(run, "", func(o workqueue.Ordinal) []byte {
		if o == 1 {
			return []byte("1")
		}
		return nil
	})
	b.Says(200, "/runs/e/accept", `{"failed":true,"reason":"r","dry_run":true}`, `"dry_run":true`, `"items":2`,
		`"accepted":2`)
	for _, repeated := range []bool{false, true} {
		b.Sent(200, repeated, "", "one", "/runs/e/accept", `{"ranges":[[0,1]],"reason":"closed"}`)
	}
	for path, want := range map[string]string{
		"/runs/e": `"failed":2,"accepted":1,`, "/runs?limit=1": `"accepted":1`, "/runs/e/report": `"accepted":1`,
		"/runs/e/errors": `"accepted":1`, "/runs/e/items?state=failed": `"accepted":true`,
		"/runs/e/export?state=failed": `"accepted":true`,
	} {
		_, text := b.Get(path)
		testenv.Has(t, text, want, "%s", path)
	}
	testenv.Has(t, string(apitest.Looked(b)), "1 item failed", "/health tells")
	b.Says(200, "/runs/e/accept", `{"failed":true,"reason":"both"}`, `"items":1`, `"steps":[{"step":"echo","items":1}]`,
		`"failed":2`, `"accepted":2`)
	b.Says(409, "/runs/e/accept", `{"failed":true,"reason":"both"}`, "accepted already")
	b.Says(200, "/runs/e/accept", `{"failed":true,"withdraw":true}`, `"withdraw":true`, `"items":2`, `"accepted":0`)
	b.Says(422, "/runs/e/accept", `{"failed":true}`, "say why")
	b.Says(422, "/runs/e/accept", `{"reason":"r"}`, "choose one of failed, keys, codes, groups and ranges")
	b.Says(422, "/runs/e/accept", `{"failed":true,"reason":"r","canary":1}`, `unknown member \"canary\"`)
	b.Says(422, "/runs/e/accept", `{"failed":true,"reason":"r","until":"0001-01-01T00:00:00Z"}`, "too long ago")
	for _, path := range []string{"/runs?until=0001-01-01T00:00:00Z", "/runs/e/export?until=0001-01-01T00:00:00Z"} {
		got, body := b.Get(path)
		if got.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(body, "too long ago") { // not taken for none
			t.Errorf("%s: %+v %s", path, got, body)
		}
	}
	b.Says(404, "/runs/e/accept", `{"keys":["nobody"],"reason":"r"}`, "nobody")
	b.Says(404, "/runs/none/accept", `{"failed":true,"reason":"r"}`)
}

// Items are run again and reset by ordinal, by themselves or among what failed.
func TestRangesOfOrdinals(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	started := b.Start("name=ranged")
	b.Finish(started.Run) // ordinal 1 fails
	post := func(action string, status int, want, body string) {
		t.Helper()
		b.Says(status, "/runs/ranged/"+action, body, want)
	}
	post("rerun", 200, `"items":3`, `{"ranges":[[0,2]],"dry_run":true}`)
	post("rerun", 200, `"items":1`, `{"ranges":[[1,2]],"failed":true,"dry_run":true}`)
	post("rerun", 200, `"items":1`, `{"ranges":[[0,1]],"codes":["=BAD"],"dry_run":true}`)
	post("rerun", 409, "in these ranges", `{"ranges":[[2,2]],"codes":["=BAD"],"dry_run":true}`)
	post("rerun", 409, "in these ranges", `{"ranges":[[0,0],[2,2]],"failed":true}`)
	post("rerun", 422, "choose one of", `{"ranges":[[0,0]],"keys":["2"]}`)
	// An empty list must not choose as much as one that was left out.
	for field, body := range map[string]string{"keys": `"where":"$.x == 1"`, "codes": `"corrected":true`,
		"groups": `"failed":true`, "ranges": `"failed":true`, "states": `"failed":true`} {
		for _, none := range []string{"[]", "null"} {
			post("rerun", 422, field+" is empty: leave it out", `{"`+field+`":`+none+`,`+body+`}`)
		}
	}
	post("rerun", 422, "ordinals of the run go from 0 to 2", `{"ranges":[[0,3]]}`)
	post("rerun", 422, "smaller ordinal first", `{"ranges":[[2,1]]}`)
	post("rerun", 422, "ranges[0] must be an array of 2 values", `{"ranges":[[1,2,3]]}`)
	post("rerun", 422, "ranges[1] must be an array of 2 values", `{"ranges":[[1,2],[1]]}`)
	post("rerun", 422, "ranges[0] must be an array of 2 values", `{"ranges":[1,2]}`)
	post("rerun", 422, "ranges must be an array", `{"ranges":{"from":1}}`)
	post("rerun", 422, "ranges[0] is [-1,2]; ordinals", `{"ranges":[[-1,2]]}`)
	post("rerun", 422, "ranges[0][1] must be a whole number up to 2147483647, not 1.5", `{"ranges":[[0,1.5]]}`)
	post("rerun", 422, "up to 2147483647, not 99999999999", `{"ranges":[[0,99999999999]]}`)
	post("rerun", 422, "more than 1000 ranges", `{"ranges":[`+strings.Repeat("[0,0],", 1000)+`[0,0]]}`)
	post("rerun", 422, "not valid JSON", `{"ranges":[[0,`+"\x00"+`]]}`)
	post("rerun", 422, "codes[1] is empty", `{"codes":["a",""]}`)
	post("reset", 422, "codes[0] is empty", `{"codes":[""]}`)
	post("rerun", 200, `"items":1`, `{"ranges":[[0,0],[0,0]]}`)
	b.Finish(started.Run)
	post("reset", 422, "choose one of", `{"ranges":[[0,0]],"all":true}`)
	post("reset", 422, "choose one of", `{"ranges":[[0,0]],"keys":["2"]}`)
	post("reset", 200, `"items":1`, `{"ranges":[[0,2]],"codes":["=BAD"],"dry_run":true}`)
	post("reset", 200, `"items":2`, `{"ranges":[[1,2]],"reason":"drag"}`)

	var audit []string
	err := b.Pool.QueryRow(t.Context(), `SELECT array_agg(action || ' ' || (detail->'ranges')::text ORDER BY id)
		FROM audit_log WHERE detail ? 'ranges'`).Scan(&audit)
	if err != nil || strings.Join(audit, "; ") != "rerun [[0, 0], [0, 0]]; reset [[1, 2]]" {
		t.Errorf("the audit log has %q, %v", audit, err)
	}
}
