package api_test

import (
	"bytes"
	"net"
	"net/http"
	"testing"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/workqueue"
)

// PROOF: who may do what, 19.
// Of large answers one viewer who takes none of them has a few in progress, and so in memory, however often he asks,
// and an operator gets his own meanwhile.
func TestSlowReadersOfLargeAnswers(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	const many, each, size = 24, 4, 6 << 20
	run := b.Start("name=it").Run
	b.Answer(run, "text/plain", func(workqueue.Ordinal) []byte { return bytes.Repeat([]byte("x"), size) })
	b.Locked()
	viewer := b.Token("vic", access.Viewer, 0).Secret
	operator := []string{"Authorization", "Bearer " + b.Token("ops", access.Operator, 0).Secret}
	b.Session("Authorization", "Bearer "+viewer) // so that not all of them look the token up
	conns := make([]net.Conn, many)
	for i := range conns {
		conns[i] = b.Unread([]string{"/runs/it/items/2/result", "/runs/it/items/2"}[i%2], viewer)
	}
	codes := map[int]int{}
	for _, conn := range conns {
		answer := b.Answered(conn)
		codes[answer.StatusCode]++
		if answer.StatusCode == http.StatusTooManyRequests && answer.Header.Get("Retry-After") == "" {
			t.Errorf("one too many is answered %v", answer.Header)
		}
	}
	if codes[http.StatusOK] != each || codes[http.StatusTooManyRequests] != many-each {
		t.Errorf("%d slow readers are answered %v; want %d of them 200, and 429", many, codes, each)
	}
	for _, path := range []string{"/runs/it/items/3/result", "/runs/it/items/3", "/runs/it/errors", "/runs"} {
		if answer, text := b.Get(path, operator...); answer.StatusCode != http.StatusOK {
			t.Errorf("meanwhile an operator is answered %d %.200s for %s", answer.StatusCode, text, path)
		}
	}
}
