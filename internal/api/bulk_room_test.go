package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
)

// PROOF: who may do what, 19.
// Bodies that are held as a whole are held together up to a bound. What they say of their length takes no room, what
// has come of them does. Who comes on top waits a while and is told to come again, and finds room once others have
// gone.
func TestBulkyRequestsAreBoundedTogether(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Server.LetStall(time.Hour)
	var opened trackerclient.BatchOpened
	b.Tracked(http.MethodPost, "", `{"owner":"o"}`, http.StatusCreated, &opened)
	b.Tracked(http.MethodPost, "/"+opened.ID+"/groups", `{"items":9}`, http.StatusOK, nil)
	ack := func() *apitest.Head {
		return b.Send(http.MethodPost, api.Prefix+"/trackers/"+opened.ID+"/ack", `{"ranges":["0:0"]}`,
			"Content-Type", "application/json")
	}
	const most, length = 8 << 20, "Content-Length: 8388608"
	for range 3 { // of which two would be as much as there is room for
		b.Stalled("/trackers/ack", length, "")
	}
	first := b.Stalled("/trackers/ack", length, strings.Repeat(" ", most-1))
	if got := ack(); got.StatusCode != http.StatusOK {
		t.Fatalf("beside a large request a small one is answered %d", got.StatusCode)
	}
	b.Stalled("/trackers/"+opened.ID+"/ack", "Transfer-Encoding: chunked", "7fffff\r\n"+strings.Repeat(" ", most-1))
	var full *apitest.Head
	for deadline := time.Now().Add(2 * time.Minute); full == nil || full.StatusCode == http.StatusOK; full = ack() {
		if time.Now().After(deadline) {
			t.Fatal("the room is never full")
		}
	}
	if full.StatusCode != http.StatusServiceUnavailable || full.Header.Get("Retry-After") == "" {
		t.Errorf("when there is no room: %d %v", full.StatusCode, full.Header)
	}
	code, text := b.Ask(http.MethodPost, api.Prefix+"/trackers", strings.NewReader(`{"owner":"o"}`))
	if code != http.StatusServiceUnavailable || !strings.Contains(string(text), `urn:tranche:tracker:too_many_requests`) {
		t.Errorf("when there is no room: %d %s", code, text)
	}
	if code, _ := b.Ask(http.MethodGet, api.Prefix+"/trackers/"+opened.ID, nil); code != http.StatusOK {
		t.Errorf("who only looks is answered %d", code)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); ack().StatusCode != http.StatusOK; {
		if time.Now().After(deadline) {
			t.Fatal("there is no room when others have gone")
		}
	}
}

// A body that is too large, or that breaks off, is answered as any other is.
func TestBulkyBodiesThatAreWrong(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	for size, want := range map[int]int{8<<20 + 1: http.StatusRequestEntityTooLarge, 100: http.StatusUnprocessableEntity} {
		code, text := b.Ask(http.MethodPost, api.Prefix+"/trackers/ack", strings.NewReader(`{`+strings.Repeat(" ", size)))
		if code != want {
			t.Errorf("%d bytes: %d %s; want %d", size, code, text, want)
		}
	}
}
