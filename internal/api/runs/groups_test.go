package runs_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
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
	if code != http.StatusCreated {
		t.Fatalf("%d %s", code, text)
	}
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
	if code != http.StatusCreated {
		t.Fatalf("%d %s", code, text)
	}
	_, text = b.Ask(http.MethodGet, at+"?lanes=true", nil)
	found = inspect.PayloadGroups{}
	if err := json.Unmarshal(text, &found); err != nil || found.By != "lane" || len(found.Groups) != 2 ||
		*found.Groups[0].Value+*found.Groups[1].Value != "10" || found.Groups[0].Items+found.Groups[1].Items != 9000 {
		t.Errorf("the lanes are %s, %v", text, err)
	}
	b.Refused(404, "", http.MethodGet, api.Prefix+"/runs/nope/groups?by=x", nil)
}
