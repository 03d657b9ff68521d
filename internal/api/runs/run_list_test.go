package runs_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/testing/apitest"
)

// PROOF: who may do what, 19.
// The list of runs is searched and filtered, and whatever is looked for means itself.
func TestRunsAreFound(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	first := b.Start("name=Year+End&source=bank.csv")
	b.Start("name=" + url.QueryEscape(`100%_done\'"<b>`))
	if code, text := b.Ask(http.MethodPost, api.Prefix+"/runs?endpoint=other&name=Ünder", strings.NewReader(apitest.Three),
		kernel.ActorHeader, "ann"); code != 201 {
		t.Fatalf("%s", text)
	}
	found := func(query string) (names []string, next string) {
		t.Helper()
		code, text := b.Ask(http.MethodGet, api.Prefix+"/runs?"+query, nil)
		var list runs.RunList
		if err := json.Unmarshal(text, &list); err != nil || code != 200 {
			t.Fatalf("%s: %d %s", query, code, text)
		}
		for i := range list.Runs {
			names = append(names, list.Runs[i].Name)
		}
		return names, list.Next
	}
	odd, year, under := `100%_done\'"<b>`, "Year End", "Ünder"
	for query, want := range map[string][]string{
		"":                             {under, odd, year},
		"q=year":                       {year},
		"q=END+bank+echo":              {year},
		"q=year+nothing":               {},
		"q=%25":                        {odd},
		"q=_":                          {odd},
		"q=" + url.QueryEscape(`\'"<`): {odd},
		"q=%C3%9Cnder+ann":             {under},
		"q=ann":                        {under},
		"q=" + first.Run.String()[:30]: {year},
		"q=" + strings.ToUpper(first.Run.String()): {year},
		"plan=echo":                  {odd, year},
		"plan=ech":                   {},
		"plan=echo@1":                {},
		"endpoint=other":             {under},
		"endpoint=other&q=year":      {},
		"since=2020-01-01T00:00:00Z": {under, odd, year},
		"until=2020-01-01T00:00:00Z": {},
		"since=" + url.QueryEscape(time.Now().Add(time.Hour).Format(time.RFC3339)): {},
		"state=running&q=o": {under, odd, year},
	} {
		if got, next := found(query); strings.Join(got, "|") != strings.Join(want, "|") || next != "" {
			t.Errorf("%s: %q, next %q; want %q", query, got, next, want)
		}
	}
	var pages []string
	for query, next := "q=o&limit=1", "-"; next != ""; query = "q=o&limit=1&before=" + next {
		var page []string
		page, next = found(query)
		pages = append(pages, page...)
	}
	if strings.Join(pages, "|") != strings.Join([]string{under, odd, year}, "|") {
		t.Errorf("page by page: %q", pages)
	}
	at := api.Prefix + "/runs?"
	b.Refused(422, "NUL", http.MethodGet, at+"q=%00", nil)
	b.Refused(422, "UTF-8", http.MethodGet, at+"q=%ff", nil)
	b.Refused(422, "at most", http.MethodGet, at+"q="+strings.Repeat("a+", 11), nil)
	b.Refused(422, "at most", http.MethodGet, at+"q="+strings.Repeat("a", 201), nil)
	b.Refused(422, "no version", http.MethodGet, at+"plan=echo@x", nil)
	b.Refused(422, "earlier time first", http.MethodGet, at+"since=2020-01-02T00:00:00Z&until=2020-01-01T00:00:00Z", nil)
	b.Refused(422, "", http.MethodGet, at+"since=yesterday", nil)
}
