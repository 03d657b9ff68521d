package api_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
)

// trickle sends a body in pieces, one after each pause, and returns the answer. The sender goes on until there is one.
func (b *bench) trickle(path, header, body string, piece int, pause time.Duration) (status int, text string) {
	b.Helper()
	conn := b.stalled(path, header+fmt.Sprintf("Content-Length: %d", len(body)), "")
	answered := make(chan struct{})
	go func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for rest := body; rest != ""; {
			select {
			case <-tick.C:
			case <-answered:
				return
			}
			n := min(piece, len(rest))
			if _, err := io.WriteString(conn, rest[:n]); err != nil {
				return
			}
			rest = rest[n:]
		}
	}()
	defer close(answered)
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		b.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil) //nolint:bodyclose // it waits for the connection's end
	if err != nil {
		b.Fatalf("%s: nobody answers: %v", path, err)
	}
	var read json.RawMessage
	if err := json.NewDecoder(answer.Body).Decode(&read); err != nil { // what follows comes when the body is given up
		b.Errorf("%s: the answer %d breaks off after %q: %v", path, answer.StatusCode, read, err)
	}
	return answer.StatusCode, string(read)
}

// PROOF: who may do what, 19.
// A body that trickles in is not waited for, although its sender is never silent; one that is
// read as it comes may take as long as it likes when it comes.
func TestABodyThatTricklesIsEnded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.start("name=it")
	const patience, pause = 400 * time.Millisecond, 40 * time.Millisecond
	const csv = "Content-Type: text/csv\r\n"
	many := "id,name\n"
	for i := range 2000 {
		many += fmt.Sprintf("%d,%s\n", i, strings.Repeat("x", 10))
	}
	for path, says := range map[string]string{
		"/runs?endpoint=echo": "came too slowly",
		"/items/preview":      "came too slowly",
		"/runs/it/rerun":      "came too slowly",
		"/runs/open":          "as a whole within",
		"/runs/it/pause":      "",
		"/plans":              "",
		"/session":            "", // which nobody has to log in for
		"/trackers":           "",
		"/runs/it/settings":   "",
	} {
		b.server.LetStall(patience)
		kind, body := "", "{"+strings.Repeat(" ", 5000)+"}"
		if strings.HasPrefix(path, "/runs?") || path == "/items/preview" {
			kind, body = csv, many
		}
		began := time.Now()
		status, text := b.trickle(path, kind, body, 1, pause)
		if status < 400 || !strings.Contains(text, says) {
			t.Errorf("%s: a trickle is answered %d %s, after %s", path, status, text, time.Since(began))
		}
		if says == "" && status != http.StatusRequestTimeout && status != http.StatusUnprocessableEntity {
			t.Errorf("%s: a trickle is answered %d %s; want 408", path, status, text)
		}
	}
	began := time.Now()
	status, text := b.trickle("/runs?endpoint=echo&name=long", csv, many, 1000, pause)
	if status != http.StatusCreated || time.Since(began) < 2*patience {
		t.Errorf("a long body is answered %d %s after %s", status, text, time.Since(began))
	}
	b.lockedWith(api.Config{ReadTimeout: patience}, access.Config{})
	if status, text := b.trickle("/session", "", `{"token":"`+strings.Repeat("x", 5000), 1, pause); status < 400 {
		t.Errorf("nobody's trickle is answered %d %s", status, text)
	}
}
