package template_test

import (
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/gather/template"
)

// one are the variables of a request for one item.
var one = template.Variables{Item: true, Parts: []string{"accounts"}}

// Each error says what is wrong and what would be right.
func TestBadURLs(t *testing.T) {
	t.Parallel()
	for _, test := range [][2]string{
		{"", "begins with http:// or https://"},
		{"ftp://h/", "begins with http:// or https://"},
		{"HTTP://h/", "begins with http:// or https://"},
		{"//h/{key}", "begins with http:// or https://"},
		{"http://{item.host}/x", "must be fixed text"},
		{"http://h.example{key}/", "must be fixed text"},
		{"http://h.example{/key}", "must be fixed text"},
		{"http://h.example?x={key}", "must be fixed text"},
		{"http://h.example\\{key}/", "must be fixed text"},
		{"http://h.example:{key}/", "must be fixed text"},
		{"{item.url}", "begins with http:// or https://"},
		{"http://u:p@h/{key}", "a user or password does not belong in a URL"},
		{"http://h:0/", "the port is not within"},
		{"http://h:0443/", "the port is not within"},
		{"http://h:/", "the port is not within"},
		{"http://h:99999/", "the port is not within"},
		{"http://-h/", "the host is not a name"},
		{"http://h%41/", "must be fixed text"},
		{"http:///x", "the host is not a name"},
		{"http://bücher.example/", "the host is not a name"},
		{"http://h/{+key}", "write {key}"},
		{"http://h/{#key}", "write {key}"},
		{"http://h/{key}#x", "a fragment"},
		{"http://h/../{key}", "a path with . or .."},
		{"http://h/%2e%2E/{key}", "a path with . or .."},
		{"http://h/a b", "spaces"},
		{"http://h/\r\nX: 1", "spaces, control characters"},
		{"http://h/{", "not an RFC 6570 template"},
		{"http://h/}", "not an RFC 6570 template"},
		{"http://h/{}", "{} names no variable"},
		{
			"http://h/{kye}",
			"there is no {kye} here; there are key, ordinal, item.FIELD, parts.accounts.FIELD, params.NAME, run",
		},
		{"http://h/{secret.x}", "a secret does not belong in a URL"},
		{"http://h/{?secret.x}", "a secret does not belong in a URL"},
		{"http://h/{item}", "there is no {item} here"},
		{"http://h/{keys}", "there is no {keys} here"},
		{"http://h/{parts.other.x}", "there is no {parts.other.x} here"},
		{"http://h/{parts.accounts}", "there is no {parts.accounts} here"},
		{"http://h/{key.x}", "has no fields"},
		{"http://h/{run.x}", "has no fields"},
		{"http://h/{params.}", "there is no {params.} here"},
		{"http://h/{params.a b}", "spaces"},
		{"http://h/{params.a=b}", "invalid variable name"},
		{"http://h/{key}/%zz", "not an RFC 6570 template"},
		{"http://h/{key:3}", "a part of a value"},
		{"http://h/?a=1{?key}", "writes a second ?; write {&key}"},
		{"http://h/{?key}{?key}", "writes a second ?"},
		{"http://h/{&key}", "has no ? before it; write {?key}"},
		{"http://h/" + strings.Repeat("x", 9000), "at most 8192 are allowed"},
	} {
		text, want := test[0], test[1]
		u, err := template.ParseURL(text, one)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: got %+v, %v, want %s", text, u, err, want)
		}
	}
	if _, err := template.ParseURL("http://h/{item.x}", template.Variables{}); err == nil {
		t.Error("an item that is not an input can be used")
	}
	if _, err := template.ParseURL("http://h/{key}", template.Variables{Many: true}); err == nil {
		t.Error("one key can be used in a request for many")
	}
}

func TestBadTexts(t *testing.T) {
	t.Parallel()
	for _, test := range [][2]string{
		{"{", "a brace without its other one"},
		{"}", "a brace without its other one"},
		{"a {key", "a brace without its other one"},
		{"{a{key}}", "a brace without its other one"},
		{"{secret}", "there is no {secret} here"},
		{"{secret.}", "there is no {secret.} here"},
		{
			"{nope}",
			"there is no {nope} here; there are key, ordinal, item.FIELD, parts.accounts.FIELD, params.NAME, secret.NAME",
		},
	} {
		text, want := test[0], test[1]
		if _, err := template.ParseText(text, one); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
		body, _ := json.Marshal(map[string]any{"deep": []any{text}})
		if _, err := template.ParseBody(body, one); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", body, err, want)
		}
	}
	if _, err := template.ParseBody([]byte("{"), one); err == nil {
		t.Error("a body that is not JSON is taken")
	}
}

func TestExpand(t *testing.T) {
	t.Parallel()
	in := func() *template.Values {
		return &template.Values{
			Run: "r", Step: "s", Generation: 2, Ordinal: 9, Key: "k/1", Item: []byte(`{"a":{"b":[true,"x y"]},
			"n":12345678901234567890,"list":["p","q&r"],"e":"","none":null}`), Params: map[string]string{"year": "2026"},
			Parts: map[string]template.Part{"accounts": {Data: []byte(`{"iban":"DE 1"}`)}},
		}
	}
	for _, test := range [][2]string{
		{
			"http://H.example/{key}{/item.a.b.1}{;item.n}{?year,item.none}",
			"http://H.example/k%2F1/x%20y;item.n=12345678901234567890?year=2026",
		},
		{"http://h/x{?item.list*}{&item.list}", "http://h/x?item.list=p&item.list=q%26r&item.list=p,q%26r"},
		{"http://h/x?e={item.e}&b={item.a.b.0}", "http://h/x?e=&b=true"},
		{"http://h/{run}/{step}/{generation}/{ordinal}/{params.year}", "http://h/r/s/2/9/2026"},
		{"http://h/{parts.accounts.iban}", "http://h/DE%201"},
		{"https://[::1]:8443/{key}", "https://[::1]:8443/k%2F1"},
		{"http://h/{item.e}", "error"},
		{"http://h/{item.a}", "error"},
		{"http://h/{item.list.7}", "error"},
		{"http://h/x{?nope}", "error"},
		{"http://h/x?a={item.none}", "error"},
	} {
		text, want := test[0], test[1]
		u, err := template.ParseURL(text, one)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got, err := u.Expand(in())
		if _, ok := errors.AsType[*template.Error](err); want == "error" && ok {
			continue
		}
		if err != nil || got.String() != want {
			t.Errorf("%s: got %v, %v, want %s", text, got, err, want)
		}
	}
	body, err := template.ParseBody([]byte(`{"p":"{parts.accounts}","missing":"{parts.gone.x}","<":"a{key}b"}`),
		template.Variables{Any: true})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"\u003c":"ak/1b","missing":null,"p":{"iban":"DE 1"}}`
	if got, err := body.Expand(in()); err != nil || string(got) != want {
		t.Errorf("got %s, %v", got, err)
	}
	binary := in()
	binary.Parts["accounts"] = template.Part{Data: []byte{1}, ContentType: "image/png"}
	if got, err := body.Expand(binary); err == nil {
		t.Errorf("a picture was filled in: %s", got)
	}
}

// Whatever a key is, it stays within its place.
func FuzzURL(f *testing.F) {
	for _, key := range []string{
		"a", "..", "../x", "%2e%2e", "a/b", "?x=1", "#", "@evil.example", "//evil",
		"\\", "\r\n", "é", "\xff", "\u2e2e", "\u2013\u0100", "\x00", "{key}", "a&b=c",
	} {
		f.Add(key)
	}
	u, err := template.ParseURL("http://h.example/a/{key}/b?q={key}&r=1", one)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, key string) {
		got, err := u.Expand(&template.Values{Key: key})
		if err != nil {
			return
		}
		again, err := url.Parse(got.String())
		if err != nil {
			t.Fatal(err)
		}
		path := strings.Split(again.EscapedPath(), "/")
		if again.Host != "h.example" || len(path) != 4 || path[1] != "a" || path[3] != "b" || again.Fragment != "" {
			t.Errorf("%q made %s", key, got)
		}
		if q := again.Query(); q.Get("q") != key || q.Get("r") != "1" || len(q) != 2 {
			t.Errorf("%q made %v", key, q)
		}
		if plain, _ := url.PathUnescape(path[2]); plain != key {
			t.Errorf("%q came as %q", key, plain)
		}
	})
}
