package api_test

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
)

const unsentLogIn = "Content-Type: application/json\r\nContent-Length: 100"

// PROOF: who may do what, 19.
// Who may not try to log in is told so before he has sent his token, and others are not waited for as long as other
// senders are.
func TestLoginsAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.LockedWith(api.Config{}, access.Config{Throttle: access.ThrottleConfig{Burst: 1, Every: time.Hour}})
	b.Server.LetStall(time.Hour) // other senders are waited for that long
	first, second := b.Stalled("/session", unsentLogIn, `{"tok`), b.Stalled("/session", unsentLogIn, "")
	codes := map[int]bool{}
	for _, conn := range []net.Conn{second, first} {
		answer := b.Answered(conn)
		codes[answer.StatusCode] = true
		if answer.StatusCode == http.StatusTooManyRequests && answer.Header.Get("Retry-After") == "" {
			t.Errorf("it is answered %v", answer.Header)
		}
	}
	if !codes[http.StatusTooManyRequests] || !codes[http.StatusRequestTimeout] {
		t.Errorf("two logins of which nothing comes are answered %v; want 429 and 408", codes)
	}
	large := `{"token":"` + strings.Repeat("x", 5000) + `"}`
	b.LockedWith(api.Config{}, access.Config{})
	answer := b.Send(http.MethodPost, api.Prefix+"/session", large, "Content-Type", "application/json")
	if answer.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a large login is answered %d", answer.StatusCode)
	}
}

// PROOF: who may do what, 19.
// Of requests of whom no one knows who makes them, an address has a few in progress. That bounds neither those of other
// addresses, nor those of who has a token.
func TestStrangersAreBounded(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	many := access.ThrottleConfig{Burst: 1000, TotalBurst: 1000}
	b.LockedWith(api.Config{TrustedProxies: []netip.Prefix{apitest.Loopback}}, access.Config{Throttle: many})
	const most = 4
	b.Server.LetStrangers(most)
	from := func(address string) string { return unsentLogIn + "\r\nX-Forwarded-For: " + address }
	var stalled []net.Conn
	stall := func() { stalled = append(stalled, b.Stalled("/session", from("192.0.2.1"), "")) }
	for range most {
		stall()
	}
	ask := func(path, address string, header ...string) *apitest.Head {
		return b.Send(http.MethodGet, path, "", append(header, "X-Forwarded-For", address)...)
	}
	deadline, tick := time.After(2*time.Minute), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	full := ask("/", "192.0.2.1")
	for ; full.StatusCode != http.StatusTooManyRequests; full = ask("/", "192.0.2.1") {
		select {
		case <-deadline:
			t.Fatal("any number of logins may be in progress")
		case <-tick.C:
			stall() // on a machine that was stalled the first of them have been given up
		}
	}
	if full.Header.Get("Retry-After") == "" {
		t.Errorf("who is one too many is answered %v", full.Header)
	}
	if answer := b.Answered(b.Stalled("/runs", from("192.0.2.1"), "")); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("a start by no one is answered %d", answer.StatusCode) // and the rest of it is not waited for
	}
	if answer := ask("/", "192.0.2.2"); answer.StatusCode != http.StatusNotFound {
		t.Errorf("from another address: %d", answer.StatusCode)
	}
	for _, probe := range []string{"/healthz", "/readyz"} {
		// In /readyz PostgreSQL has little time to answer.
		if answer := ask(probe, "192.0.2.1"); answer.StatusCode != http.StatusOK &&
			(probe == "/healthz" || answer.StatusCode != http.StatusServiceUnavailable) {
			t.Errorf("who looks at %s from there is answered %d", probe, answer.StatusCode)
		}
	}
	token := "Bearer " + b.Token("ann", access.Viewer, 0).Secret
	if answer := ask(api.Prefix+"/runs", "192.0.2.1", "Authorization", token); answer.StatusCode != http.StatusOK {
		t.Errorf("with a token: %d", answer.StatusCode)
	}
	for _, conn := range stalled {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	for ask("/", "192.0.2.1").StatusCode != http.StatusNotFound { // this server has no pages
		select {
		case <-deadline:
			t.Fatal("logins that have gone are still counted")
		case <-tick.C:
		}
	}
}
