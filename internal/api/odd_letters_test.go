package api_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/workqueue/deadletter"
)

// oddText is what no one types, and what an attacker does.
var oddText = []string{
	"", " ", "0", "-1", "0000", "ffff", "last", "..", "a/b", "%", "'", `"`, "\x00", "\xff", "\u202e", "*", ">", "a.b",
	"9223372036854775808", "01a1f960-6f14-7d3c-b556-174c979b9ff1", "zzzz", "'; DROP TABLE dead_letter; --", "null", "{}",
	strings.Repeat("f", 32), strings.Repeat("0", 33), strings.Repeat("x", 65), strings.Repeat("a", 5000), "accounts",
}

// oddJSON is the same for bodies; %s takes an odd text.
var oddJSON = []string{
	``, `{}`, `[]`, `null`, `7`, `{"ids":%s}`, `{"ids":[%s]}`, `{"ids":[%s,%s]}`, `{"ids":null}`, `{"ids":[null]}`,
	`{"ids":[[%s]]}`, `{"endpoint":%s}`, `{"endpoint":%s,"all":true}`, `{"all":"yes"}`, `{"all":false}`, `{"all":true`,
	`{"all":true,"force":%s}`, `{"all":true,"force":true}`, `{"concurrency":%s}`, `{"concurrency":1e9}`,
	`{"concurrency":-1}`, `{"concurrency":1.5}`, `{"concurrency":null}`, `{"concurrency":3}`, `{"other":%s}`,
	`{"ids":[%s],"ids":[%s]}`, "\xff", `{"ids":["` + "\xff" + `"]}`,
}

// However odd a request about letters, quarantine and endpoints is, the answer is no failure of ours.
func TestOddRequestsAboutLetters(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	text := func() string { return oddText[random.IntN(len(oddText))] }
	for range 3 {
		b.Bury("accounts", deadletter.DeadLetter{Body: []byte("x"), Headers: map[string][]string{"\xff\x00": {"\x1b[31m"}}})
	}
	b.Stray(deadletter.Quarantined{Reason: "json", Run: [16]byte{1}})
	gets := []string{"/dead-letters", "/dead-letters/%s", "/quarantine", "/quarantine/%s", "/endpoints/%s"}
	posts := []string{"/dead-letters/requeue", "/dead-letters/drop", "/endpoints/%s/settings"}
	queries := []string{"endpoint", "state", "after", "limit", "run", "full", "other"}
	filled := func(form string, arg func() string) string {
		for strings.Contains(form, "%s") {
			form = strings.Replace(form, "%s", arg(), 1)
		}
		return form
	}
	escaped := func() string { return url.PathEscape(text()) }
	for range 400 {
		method, forms := http.MethodGet, gets
		var body io.Reader
		sent := ""
		if random.IntN(2) == 0 {
			method, forms = http.MethodPost, posts
			sent = filled(oddJSON[random.IntN(len(oddJSON))], func() string { return fmt.Sprintf("%q", text()) })
			body = strings.NewReader(sent)
		}
		path := filled(forms[random.IntN(len(forms))], escaped)
		if n := random.IntN(3); n > 0 && method == http.MethodGet {
			path += "?" + queries[random.IntN(len(queries))] + "=" + url.QueryEscape(text())
		}
		code, answer := b.Ask(method, api.Prefix+path, body, "Content-Type", "application/json", kernel.ActorHeader, "ann")
		if code >= 500 {
			t.Errorf("%s %s with %.200q: %d %.300s", method, path, sent, code, answer)
		}
	}
}
