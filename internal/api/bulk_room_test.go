package api_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/fanout"
	"github.com/tranchehq/tranche/internal/api"
)

// stalled begins a request of so many bytes, and sends no more of it than its head.
func (b *bench) stalled(path, size string) net.Conn {
	b.Helper()
	host := strings.TrimPrefix(b.url, "http://")
	c, err := net.Dial("tcp", host)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, "POST "+api.Prefix+path+" HTTP/1.1\r\nHost: "+host+
		"\r\nContent-Type: application/json\r\n"+size+"\r\n\r\n"); err != nil {
		b.Fatal(err)
	}
	return c
}

// Bodies that are held as a whole are held together up to a bound. Who comes on top waits a while and is told to come
// again, and finds room once others have gone.
func TestBulkyRequestsAreBoundedTogether(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var opened fanout.BatchOpened
	b.tracked(http.MethodPost, "", `{"owner":"o"}`, http.StatusCreated, &opened)
	b.tracked(http.MethodPost, "/"+opened.ID+"/groups", `{"items":9}`, http.StatusOK, nil)
	ack := func() *head {
		return b.send(http.MethodPost, api.Prefix+"/trackers/"+opened.ID+"/ack", `{"ranges":["0:0"]}`,
			"Content-Type", "application/json")
	}
	first := b.stalled("/trackers/ack", "Content-Length: 8388608")
	if got := ack(); got.StatusCode != http.StatusOK {
		t.Fatalf("beside a large request a small one is answered %d", got.StatusCode)
	}
	b.stalled("/trackers/"+opened.ID+"/ack", "Transfer-Encoding: chunked") // it may become as large as any
	var full *head
	for deadline := time.Now().Add(20 * time.Second); full == nil || full.StatusCode == http.StatusOK; full = ack() {
		if time.Now().After(deadline) {
			t.Fatal("the room is never full")
		}
	}
	if full.StatusCode != http.StatusServiceUnavailable || full.Header.Get("Retry-After") == "" {
		t.Errorf("when there is no room: %d %v", full.StatusCode, full.Header)
	}
	code, text := b.ask(http.MethodPost, api.Prefix+"/trackers", strings.NewReader(`{"owner":"o"}`))
	if code != http.StatusServiceUnavailable || !strings.Contains(string(text), `urn:tranche:tracker:too_many_requests`) {
		t.Errorf("when there is no room: %d %s", code, text)
	}
	if code, _ := b.ask(http.MethodGet, api.Prefix+"/trackers/"+opened.ID, nil); code != http.StatusOK {
		t.Errorf("who only looks is answered %d", code)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ack().StatusCode != http.StatusOK; {
		if time.Now().After(deadline) {
			t.Fatal("there is no room when others have gone")
		}
	}
}
