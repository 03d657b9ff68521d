package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

func TestBodiesAreShown(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	packer := testenv.Must(zstd.NewWriter(nil))(t)
	large := []byte(`"` + strings.Repeat("é", 50_000) + `"`)
	show := func(letter deadletter.DeadLetter, query string) apicore.Content {
		t.Helper()
		return apitest.Read[api.DeadLetterDocument](b, "/dead-letters/"+b.AddLetter("echo", letter).String()+query).Body
	}
	packed := map[string][]string{"Content-Encoding": {"zstd"}}
	for name, c := range map[string]struct {
		letter deadletter.DeadLetter
		query  string
		ok     func(apicore.Content) bool
	}{
		"json": {deadletter.DeadLetter{Body: []byte(`{"a":1}`)}, "", func(c apicore.Content) bool {
			return string(c.JSON) == `{"a":1}` && c.Size == 7 && c.Text == "" && c.Base64 == nil
		}},
		"text": {deadletter.DeadLetter{Body: []byte("né")}, "", func(c apicore.Content) bool { return c.Text == "né" }},
		"binary": {deadletter.DeadLetter{Body: []byte("a\xff")}, "", func(c apicore.Content) bool {
			return string(c.Base64) == "a\xff"
		}},
		"NUL": {deadletter.DeadLetter{Body: []byte("a\x00")}, "",
			func(c apicore.Content) bool { return len(c.Base64) == 2 }},
		"empty": {deadletter.DeadLetter{}, "", func(c apicore.Content) bool { return c.Size == 0 && c.JSON == nil }},
		"packed": {
			deadletter.DeadLetter{Body: packer.EncodeAll([]byte(`{"a":1}`), nil), Headers: packed}, "",
			func(c apicore.Content) bool {
				return string(c.JSON) == `{"a":1}` && c.Unpacked == "zstd" && c.Size == 7
			},
		},
		"packed badly": {
			deadletter.DeadLetter{Body: []byte("\x28\xb5\x2f\xfd"), Headers: packed}, "",
			func(c apicore.Content) bool { return len(c.Base64) == 4 && c.Unpacked == "" },
		},
		"a bomb": {
			deadletter.DeadLetter{Body: packer.EncodeAll(make([]byte, 64<<20), nil), Headers: packed}, "",
			func(c apicore.Content) bool { return c.Size < 64<<10 && c.Unpacked == "" },
		},
		"large": {deadletter.DeadLetter{Body: large}, "", func(c apicore.Content) bool {
			return c.Truncated && c.Size == len(large) && len(c.Text) == 64<<10-1
		}},
		"large and whole": {deadletter.DeadLetter{Body: large}, "?full", func(c apicore.Content) bool {
			return !c.Truncated && string(c.JSON) == string(large)
		}},
		"large and whole, spelled out": {deadletter.DeadLetter{Body: large}, "?full=true", func(c apicore.Content) bool {
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
	page := apitest.Read[deadletter.QuarantinePage](b, fmt.Sprintf("/quarantine?after=%d", id))
	if len(page.Messages) != 1 || page.Messages[0].Reason != "other" {
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
		"1 requests of it were abandoned", "tranche dlq list",
	} {
		testenv.Has(t, text, want, "what the run warns of")
	}
}
