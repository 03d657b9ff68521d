package runs_test

import (
	"net/url"
	"slices"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/apitest"
)

// How items are read is said in the query, in settings, in a plan, and for an add.
func TestItemsAreReadAsIsSaid(t *testing.T) {
	t.Parallel()
	latin := "kontonr;saldo;x\n7;12.50;J\xfcrgen\n8;900;\n"
	want := []string{`8 {"id":"8","saldo":900}`, `7 {"id":"7","saldo":12.50}`}
	query := url.Values{"encoding": {"latin1"}, "columns": {"kontonr", "saldo"}, "rename": {"kontonr=id"},
		"types": {"saldo=number"}, "sort": {"saldo"}, "desc": {"true"}}
	const settings = `"encoding":"latin1","columns":["kontonr","saldo"],"rename":["kontonr=id"],` +
		`"types":["saldo=number"],"sort":"saldo","desc":true`
	const plan = "items: {encoding: latin1, columns: [kontonr, saldo], rename: {kontonr: id}, types: {saldo: number}, " +
		"sort: saldo, desc: true}\nsteps: [{endpoint: echo}]\n"
	for name, start := range map[string]func(b *apitest.Bench){
		"query":    func(b *apitest.Bench) { b.Want("/runs?endpoint=echo&"+query.Encode(), latin, 201, `"key":"id"`) },
		"settings": func(b *apitest.Bench) { b.Multi(201, `{"endpoint":"echo",`+settings+`}`, latin) },
		"plan": func(b *apitest.Bench) {
			b.Want("/plans?name=p", plan, 200)
			b.Want("/runs?plan_ref=p", latin, 201, `"key":"id"`)
		},
		"plan and query": func(b *apitest.Bench) {
			b.Want("/plans?name=p", plan, 200)
			b.Want("/runs?plan_ref=p&desc=false&sort=x&columns=kontonr&columns=saldo&columns=x&rename=kontonr%3Did&rename=x%3Dy",
				latin, 422, `no item has a field \"x\"`)
			b.Want("/runs?plan_ref=p", latin, 201)
		},
		"open": func(b *apitest.Bench) {
			b.Want("/runs/open", `{"endpoint":"echo","name":"o",`+settings+`}`, 200)
			b.Want("/runs/o/items", latin, 200, `"items":2`, `"key":"id"`)
		},
		"add": func(b *apitest.Bench) {
			b.Want("/runs/open", `{"endpoint":"echo","name":"o","sort":"saldo","desc":true}`, 200)
			query := url.Values{"encoding": {"latin1"}, "columns": {"kontonr", "saldo"}, "rename": {"kontonr=id"},
				"types": {"saldo=number"}}
			b.Want("/runs/o/items?"+query.Encode(), latin, 200, `"items":2`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := apitest.Setup(t)
			start(b)
			if got := b.Payloads(); !slices.Equal(got, want) {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestReadingThatIsRefusedSaysHow(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Want("/runs?endpoint=echo", "id,a\n1,J\xfcrgen\n", 422, "it may be windows-1252", "encoding=windows-1252")
	b.Want("/runs?endpoint=echo&encoding=ebcdic", "id\n1\n", 422, "encoding: want one of utf-8")
	b.Want("/runs?endpoint=echo&delimiter=colon", "id\n1\n", 422, "delimiter: want comma, semicolon, tab or bar")
	b.Want("/runs?endpoint=echo&delimiter=%3B&name=said", "id;a,b\n1;2,3\n", 201, `"key":"id","warnings":["no service`)
	b.Want("/runs?endpoint=echo&dry_run=true", "id;a\n1;2\n", 200, "were read as separated by ';'")
	b.Want("/items/preview?delimiter=bar", "id,a|b\n1|2\n", 200, `"columns":["id,a","b"]`)
	b.Want("/runs?endpoint=echo&types=a", "id\n1\n", 422, "types: want NAME=VALUE")
	b.Want("/runs?endpoint=echo&columns=nme", "id\n1\n", 422, `no column or field \"nme\"`)
	b.Want("/runs?endpoint=echo&desc=true", "id\n1\n", 422, "desc: it is about the order of items")
	b.Want("/runs?endpoint=echo&name=marked", "\xff\xfei\x00d\x00\n\x00\x31\x00", 201,
		"was read as UTF-16, as its byte order mark")
	b.Want("/items/preview?header=false&columns=nr&columns=name", "7,Ann\n", 200, `"columns":["nr","name"]`,
		`the keys are taken from the first column, \"nr\"`)
}
