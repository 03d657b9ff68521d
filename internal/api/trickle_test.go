package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apitest"
)

// PROOF: who may do what, 19.
// A body that trickles in is not waited for, although its sender is never silent; one that is
// read as it comes may take as long as it likes when it comes.
func TestABodyThatTricklesIsEnded(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=it")
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
		b.Server.LetStall(patience)
		kind, body := "", "{"+strings.Repeat(" ", 5000)+"}"
		if strings.HasPrefix(path, "/runs?") || path == "/items/preview" {
			kind, body = csv, many
		}
		began := time.Now()
		status, text := b.Trickle(path, kind, body, 1, pause)
		if status < 400 || !strings.Contains(text, says) {
			t.Errorf("%s: a trickle is answered %d %s, after %s", path, status, text, time.Since(began))
		}
		if says == "" && status != http.StatusRequestTimeout && status != http.StatusUnprocessableEntity {
			t.Errorf("%s: a trickle is answered %d %s; want 408", path, status, text)
		}
	}
	began := time.Now()
	status, text := b.Trickle("/runs?endpoint=echo&name=long", csv, many, 1000, pause)
	if status != http.StatusCreated || time.Since(began) < 2*patience {
		t.Errorf("a long body is answered %d %s after %s", status, text, time.Since(began))
	}
	b.LockedWith(api.Config{ReadTimeout: patience}, access.Config{})
	if status, text := b.Trickle("/session", "", `{"token":"`+strings.Repeat("x", 5000), 1, pause); status < 400 {
		t.Errorf("nobody's trickle is answered %d %s", status, text)
	}
}
