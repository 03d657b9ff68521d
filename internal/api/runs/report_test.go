package runs_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Items by a field of their payloads: the fields that there are, the counts, and a byte for each item.
func TestGroups(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	var items strings.Builder
	items.WriteString("id,branch\n")
	for i := range 9000 {
		fmt.Fprintf(&items, "x%d,b%d\n", i, i%3*(i%2))
	}
	code, text := b.Ask(http.MethodPost, api.Prefix+"/runs?endpoint=echo", strings.NewReader(items.String()))
	testenv.MustSame(t, code, http.StatusCreated, "%s", text)
	at := api.Prefix + "/runs/last/groups"
	var found inspect.PayloadGroups
	_, text = b.Ask(http.MethodGet, at, nil)
	if err := json.Unmarshal(text, &found); err != nil || fmt.Sprint(found.Fields) != "[branch id]" ||
		len(found.Groups) != 0 {
		t.Errorf("the fields are %s, %v", text, err)
	}
	_, text = b.Ask(http.MethodGet, at+"?by=branch", nil)
	if err := json.Unmarshal(text, &found); err != nil || len(found.Groups) != 3 || found.Others != nil ||
		*found.Groups[0].Value != "b0" || found.Groups[0].Items != 6000 || found.Groups[2].Items != 1500 {
		t.Errorf("the groups are %s, %v", text, err)
	}
	header := b.Send(http.MethodGet, at+"/map?by=branch", "").Header
	if header.Get("Tranche-Items") != "9000" || header.Get("Tranche-Blocks") != "2" {
		t.Errorf("the head of the map is %v", header)
	}
	_, plane := b.Ask(http.MethodGet, at+"/map?by=branch&from=1", nil)
	if len(plane) != 9000-8192 || plane[0] != 0 {
		t.Errorf("the map has %d bytes, %v", len(plane), plane[:8])
	}
	b.Refused(422, "", http.MethodGet, at+"/map", nil)
	b.Refused(422, "NUL", http.MethodGet, at+"?by=%00", nil)
	b.Refused(422, "order_by", http.MethodGet, at+"?lanes=true", nil)
	b.Refused(422, "one of them", http.MethodGet, at+"?lanes=true&by=id", nil)
	code, text = b.Ask(http.MethodPost, api.Prefix+"/runs?endpoint=echo&order_by=branch&partitions=2",
		strings.NewReader(items.String()))
	testenv.MustSame(t, code, http.StatusCreated, "%s", text)
	_, text = b.Ask(http.MethodGet, at+"?lanes=true", nil)
	found = inspect.PayloadGroups{}
	if err := json.Unmarshal(text, &found); err != nil || found.By != "lane" || len(found.Groups) != 2 ||
		*found.Groups[0].Value+*found.Groups[1].Value != "10" || found.Groups[0].Items+found.Groups[1].Items != 9000 {
		t.Errorf("the lanes are %s, %v", text, err)
	}
	b.Refused(404, "", http.MethodGet, api.Prefix+"/runs/nope/groups?by=x", nil)
}

// PROOF: who may do what, 19.
// The list of runs is searched and filtered, and whatever is looked for means itself.
func TestRunsAreFound(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	first := b.Start("name=Year+End&source=bank.csv")
	b.Start("name=" + url.QueryEscape(`100%_done\'"<b>`))
	if code, text := b.Ask(http.MethodPost, api.Prefix+"/runs?endpoint=other&name=Ünder", strings.NewReader(apitest.Three),
		apicore.ActorHeader, "ann"); code != 201 {
		t.Fatalf("%s", text)
	}
	found := func(query string) (names []string, next string) {
		t.Helper()
		list := apitest.Read[runs.RunList](b, "/runs?"+query)
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
		"schedule=nightly":  {},
		"fold=true":         {under, odd, year},
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
	testenv.Same(t, strings.Join(pages, "|"), strings.Join([]string{under, odd, year}, "|"), "page by page")
	at := api.Prefix + "/runs?"
	b.Refused(422, "NUL", http.MethodGet, at+"q=%00", nil)
	b.Refused(422, "UTF-8", http.MethodGet, at+"q=%ff", nil)
	b.Refused(422, "at most", http.MethodGet, at+"q="+strings.Repeat("a+", 11), nil)
	b.Refused(422, "at most", http.MethodGet, at+"q="+strings.Repeat("a", 201), nil)
	b.Refused(422, "invalid version", http.MethodGet, at+"plan=echo@x", nil)
	b.Refused(422, "earlier time first", http.MethodGet, at+"since=2020-01-02T00:00:00Z&until=2020-01-01T00:00:00Z", nil)
	b.Refused(422, "", http.MethodGet, at+"since=yesterday", nil)
	b.Refused(422, "leave out fold", http.MethodGet, at+"fold=true&q=o", nil)
	b.Refused(422, "leave it out", http.MethodGet, at+"attention=true&sort=name", nil)
	b.Refused(422, "was deleted", http.MethodGet, at+"sort=items&before="+uuid.NewString(), nil)
}
