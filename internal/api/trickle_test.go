package api_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// PROOF: who may do what, 19.
// A body that trickles in is not waited for, although its sender is never silent; one that is
// read as it comes may take as long as it likes when it comes.
func TestABodyThatTricklesIsEnded(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=it")
	const csv = "Content-Type: text/csv\r\n"
	many := "id,name\n"
	for i := range 2000 {
		many += fmt.Sprintf("%d,%s\n", i, strings.Repeat("x", 10))
	}
	for path, says := range map[string]string{
		"/runs?endpoint=echo": "came too slowly",
		"/items/preview":      "came too slowly",
		"/runs/it/rerun":      "came too slowly",
		"/runs/open":          "came too slowly",
		"/runs/it/pause":      "",
		"/plans":              "",
		"/session":            "", // which no one has to log in for
		"/trackers":           "",
		"/runs/it/settings":   "",
	} {
		b.Server.LetStall(trickleTimeout)
		kind, body := "", "{"+strings.Repeat(" ", 5000)+"}"
		if strings.HasPrefix(path, "/runs?") || path == "/items/preview" {
			kind, body = csv, many
		}
		trickled(b, path, kind, body, 1, func(status int, text string) bool {
			return status >= 400 && strings.Contains(text, says) &&
				(says != "" || status == http.StatusRequestTimeout || status == http.StatusUnprocessableEntity)
		})
	}
	began := time.Now()
	trickled(b, "/runs?endpoint=echo&name=long", csv, many, 1000, func(status int, _ string) bool {
		return status == http.StatusCreated
	})
	if took := time.Since(began); took < 2*trickleTimeout {
		t.Errorf("a long body took %s only", took)
	}
	b.LockedWith(api.Config{ReadTimeout: trickleTimeout}, access.Config{})
	trickled(b, "/session", "", `{"token":"`+strings.Repeat("x", 5000), 1, func(status int, _ string) bool {
		return status >= 400
	})
}

const trickleTimeout = 400 * time.Millisecond

// trickled sends a body in pieces, and wants a good answer. A machine that is stalled makes the sender a silent one,
// which is answered in another way: then it is sent again.
func trickled(b *apitest.Bench, path, kind, body string, piece int, good func(status int, text string) bool) {
	b.Helper()
	for tries := 1; ; tries++ {
		watch := testenv.NewWatch(b.T)
		status, text := b.Trickle(path, kind, body, piece, trickleTimeout/10)
		if good(status, text) {
			return
		}
		if watch.Longest() < trickleTimeout/4 || tries == 20 {
			b.Errorf("%s: a trickle is answered %d %s, after %s", path, status, text, watch.Ran())
			return
		}
	}
}
