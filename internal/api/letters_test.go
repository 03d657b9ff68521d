package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

func TestTheWayOfADeadLetter(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	var ids []workqueue.LetterID
	for i := range 5 {
		ids = append(ids, b.AddLetter([]string{"echo", "mail"}[i%2], deadletter.DeadLetter{
			Body: fmt.Appendf(nil, `{"items":[{"i":%d}]}`, i), Headers: map[string][]string{"Tranche-Mode": {"single"}},
			Mode: "single", Stack: "statement:1", Service: "echo@1.0.0 abc", Deliveries: 5,
		}))
	}
	var listed []workqueue.LetterID
	for after := ""; ; {
		page := apitest.Read[deadletter.DeadLetterPage](b, "/dead-letters?limit=2&after="+after)
		for _, l := range page.Letters {
			listed = append(listed, l.ID)
		}
		if page.Next == nil {
			break
		}
		after = page.Next.String()
	}
	if len(listed) != 5 || listed[0] != ids[4] || listed[4] != ids[0] {
		t.Errorf("listed %v; want %v, newest first", listed, ids)
	}
	if page := apitest.Read[deadletter.DeadLetterPage](b,
		"/dead-letters?endpoint=mail&state=waiting"); len(page.Letters) != 2 {
		t.Errorf("of mail there are %d", len(page.Letters))
	}
	one := apitest.Read[api.DeadLetterDocument](b, "/dead-letters/"+ids[3].String())
	if string(one.Body.JSON) != `{"items":[{"i":3}]}` || one.Headers["Tranche-Mode"][0] != "single" ||
		one.Stack != "statement:1" || one.State != deadletter.LetterWaiting || one.Body.Truncated {
		t.Errorf("the letter is %+v", one)
	}

	out := apitest.Change[deadletter.Requeue](b, "/dead-letters/requeue", `{"ids":["`+ids[0].String()+`"]}`)
	if out.Requeued != 1 || out.RefusedTotal != 0 || b.Engine.Asked.Load() != 1 {
		t.Errorf("requeued %+v, the engine was asked %d times", out, b.Engine.Asked.Load())
	}
	out = apitest.Change[deadletter.Requeue](b, "/dead-letters/requeue", `{"ids":["`+ids[0].String()+`"]}`)
	if out.Requeued != 0 || len(out.Refused) != 1 {
		t.Errorf("requeued again: %+v", out)
	}
	b.Refused(409, "it is requeued", http.MethodPost, api.Prefix+"/dead-letters/drop",
		strings.NewReader(`{"ids":["`+ids[0].String()+`"]}`), "Content-Type", "application/json")
	testenv.Same(t, apitest.Change[api.Dropped](b, "/dead-letters/drop", `{"endpoint":"mail"}`).Dropped, 2,
		"dropped of mail")
	testenv.Same(t, apitest.Change[api.Dropped](b, "/dead-letters/drop", `{"endpoint":"mail"}`).Dropped, 0,
		"dropped of mail again")
	looping := b.AddLetter("echo", deadletter.DeadLetter{Body: []byte("x"), Requeued: deadletter.MaxRequeues})
	out = apitest.Change[deadletter.Requeue](b, "/dead-letters/requeue", `{"all":true}`)
	if out.Requeued != 2 || out.RefusedTotal != 1 || out.Refused[0].ID != looping {
		t.Errorf("requeued all: %+v", out)
	}
	out = apitest.Change[deadletter.Requeue](b, "/dead-letters/requeue", `{"ids":["`+looping.String()+`"],"force":true}`)
	testenv.Same(t, out.Requeued, 1, "forced: %+v", out)
	var actors string
	err := b.Pool.QueryRow(t.Context(), `SELECT string_agg(did, ', ' ORDER BY did) FROM (
		SELECT DISTINCT actor || ' ' || action AS did FROM audit_log WHERE action LIKE 'dead_letter%') d`).Scan(&actors)
	if err != nil || actors != "ann dead_letter_drop, ann dead_letter_requeue" {
		t.Errorf("the audit log says %q, %v", actors, err)
	}
}

func TestBodiesAreShown(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	packer := testenv.Must(zstd.NewWriter(nil))(t)
	large := []byte(`"` + strings.Repeat("é", 50_000) + `"`)
	show := func(letter deadletter.DeadLetter, query string) kernel.Content {
		t.Helper()
		return apitest.Read[api.DeadLetterDocument](b, "/dead-letters/"+b.AddLetter("echo", letter).String()+query).Body
	}
	packed := map[string][]string{"Content-Encoding": {"zstd"}}
	for name, c := range map[string]struct {
		letter deadletter.DeadLetter
		query  string
		ok     func(kernel.Content) bool
	}{
		"json": {deadletter.DeadLetter{Body: []byte(`{"a":1}`)}, "", func(c kernel.Content) bool {
			return string(c.JSON) == `{"a":1}` && c.Size == 7 && c.Text == "" && c.Base64 == nil
		}},
		"text": {deadletter.DeadLetter{Body: []byte("né")}, "", func(c kernel.Content) bool { return c.Text == "né" }},
		"binary": {deadletter.DeadLetter{Body: []byte("a\xff")}, "", func(c kernel.Content) bool {
			return string(c.Base64) == "a\xff"
		}},
		"NUL": {deadletter.DeadLetter{Body: []byte("a\x00")}, "",
			func(c kernel.Content) bool { return len(c.Base64) == 2 }},
		"empty": {deadletter.DeadLetter{}, "", func(c kernel.Content) bool { return c.Size == 0 && c.JSON == nil }},
		"packed": {
			deadletter.DeadLetter{Body: packer.EncodeAll([]byte(`{"a":1}`), nil), Headers: packed}, "",
			func(c kernel.Content) bool { return string(c.JSON) == `{"a":1}` && c.Unpacked == "zstd" && c.Size == 7 },
		},
		"packed badly": {
			deadletter.DeadLetter{Body: []byte("\x28\xb5\x2f\xfd"), Headers: packed}, "",
			func(c kernel.Content) bool { return len(c.Base64) == 4 && c.Unpacked == "" },
		},
		"a bomb": {
			deadletter.DeadLetter{Body: packer.EncodeAll(make([]byte, 64<<20), nil), Headers: packed}, "",
			func(c kernel.Content) bool { return c.Size < 64<<10 && c.Unpacked == "" },
		},
		"large": {deadletter.DeadLetter{Body: large}, "", func(c kernel.Content) bool {
			return c.Truncated && c.Size == len(large) && len(c.Text) == 64<<10-1
		}},
		"large and whole": {deadletter.DeadLetter{Body: large}, "?full", func(c kernel.Content) bool {
			return !c.Truncated && string(c.JSON) == string(large)
		}},
		"large and whole, spelled out": {deadletter.DeadLetter{Body: large}, "?full=true", func(c kernel.Content) bool {
			return !c.Truncated && string(c.JSON) == string(large)
		}},
	} {
		if got := show(c.letter, c.query); !c.ok(got) {
			t.Errorf("%s: %.200v", name, got)
		}
	}
}

func TestQuarantineIsShown(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Start("name=it").Run
	b.Stray(deadletter.Quarantined{Reason: "other", Body: []byte("x")})
	id := b.Stray(deadletter.Quarantined{
		Reason: "json", Detail: "byte 3", Subject: "tranche.reply.echo", Run: uuid.UUID(run), Body: []byte("{{"),
		Headers: map[string][]string{"A": {"b"}},
	})
	if page := apitest.Read[deadletter.QuarantinePage](b, "/quarantine?limit=1"); len(page.Messages) != 1 ||
		page.Next != id {
		t.Errorf("the first page is %+v", page)
	}
	if page := apitest.Read[deadletter.QuarantinePage](b, fmt.Sprintf("/quarantine?after=%d",
		id)); len(page.Messages) != 1 ||
		page.Messages[0].Reason != "other" {
		t.Errorf("the second page is %+v", page)
	}
	if page := apitest.Read[deadletter.QuarantinePage](b, "/quarantine?run=it"); len(page.Messages) != 1 ||
		page.Messages[0].ID != id {
		t.Errorf("of the run there is %+v", page)
	}
	one := apitest.Read[api.QuarantinedDocument](b, fmt.Sprintf("/quarantine/%d", id))
	if one.Body.Text != "{{" || one.Headers["A"][0] != "b" || one.Detail != "byte 3" {
		t.Errorf("the message is %+v", one)
	}
	waiting, reissued := deadletter.DeadLetter{Run: &run}, deadletter.DeadLetter{Run: &run,
		State: deadletter.LetterReissued}
	b.AddLetter("echo", waiting)
	b.AddLetter("echo", reissued)
	doc := apitest.Read[runs.RunDocument](b, "/runs/it")
	text := strings.Join(doc.Warnings, "\n")
	for _, want := range []string{
		"1 messages about it", "tranche quarantine list --run " + run.String(), "1 of its dead letters wait",
		"1 requests of it were given up", "tranche dlq list",
	} {
		testenv.Has(t, text, want, "what the run warns of")
	}
}

func TestMistakesAboutLettersAndEndpoints(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.AddLetter("echo", deadletter.DeadLetter{})
	post := func(status int, detail, path, body string, header ...string) {
		t.Helper()
		b.Refused(status, detail, http.MethodPost, api.Prefix+path, strings.NewReader(body),
			append([]string{"Content-Type", "application/json"}, header...)...)
	}
	many := `{"ids":["aaaa"` + strings.Repeat(`,"aaaa"`, 1000) + `]}`
	for _, path := range []string{"/dead-letters/requeue", "/dead-letters/drop"} {
		post(422, "choose one of ids, endpoint and all", path, `{}`)
		post(422, "choose one of ids, endpoint and all", path, `{"all":true,"endpoint":"echo"}`)
		post(422, "endpoint name", path, `{"endpoint":"a b"}`)
		post(422, "endpoint name", path, `{"endpoint":"a\u0000"}`)
		post(422, "validation failed", path, many)
		post(422, "validation failed", path, `{"al":true}`)
		post(404, "did you mean echo?", path, `{"endpoint":"ecoh"}`)
		post(404, seeLetters, path, `{"endpoint":"mail"}`)
		post(404, seeLetters, path, `{"ids":["ffff"]}`)
		post(404, seeLetters, path, `{"ids":["\u0000"]}`)
		post(422, kernel.ActorHeader, path, `{"all":true}`, kernel.ActorHeader, "\xff")
	}
	b.Refused(404, seeLetters, http.MethodGet, api.Prefix+"/dead-letters/nope", nil)
	b.Refused(404, seeLetters, http.MethodGet, api.Prefix+"/dead-letters/%00", nil)
	b.Refused(422, "after is not", http.MethodGet, api.Prefix+"/dead-letters?after=x", nil)
	b.Refused(422, "validation failed", http.MethodGet, api.Prefix+"/dead-letters?state=lost", nil)
	b.Refused(422, "validation failed", http.MethodGet, api.Prefix+"/dead-letters?limit=501", nil)
	b.Refused(404, "tranche quarantine list", http.MethodGet, api.Prefix+"/quarantine/9", nil)
	b.Refused(422, "validation failed", http.MethodGet, api.Prefix+"/quarantine/x", nil)
	b.Refused(404, "tranche run list", http.MethodGet, api.Prefix+"/quarantine?run=nope", nil)
	post(422, "endpoint name", "/endpoints/a%00b/settings", `{"concurrency":1}`)
	post(422, "validation failed", "/endpoints/echo/settings", `{"concurrency":1025}`)
	post(422, "validation failed", "/endpoints/echo/settings", `{"concurrency":-1}`)
	post(422, "give concurrency", "/endpoints/echo/settings", `{}`)
	post(422, "validation failed", "/endpoints/echo/settings", `{"chunk_cap":5}`)
	post(422, kernel.ActorHeader, "/endpoints/echo/settings", `{"concurrency":1}`, kernel.ActorHeader, "\xff")
	var n int
	err := b.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM audit_log) + (SELECT count(*) FROM endpoint_setting)
		+ (SELECT count(*) FROM dead_letter WHERE state <> 'waiting')`).Scan(&n)
	if err != nil || n != 0 {
		t.Errorf("a mistake was written: %d rows, %v", n, err)
	}
}

const seeLetters = "tranche dlq list"
