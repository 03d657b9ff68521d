package api_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// PROOF: who may do what, 4 and 7.
// A revoked token is of no use within five seconds: on the node that was told and on another, for new requests and for
// streams that are open, by the token itself and by a browser that had logged in with it. So is one that expires.
// Others go on.
func TestARevokedTokenEndsEverywhere(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=it")
	admin := b.Token("ann", access.Admin, 0)
	ends := map[string]apitest.MadeToken{"revoked": b.Token("vic", access.Viewer, 0), "expiring": b.Token("eve",
		access.Viewer, 0)}
	stays := b.Token("sue", access.Viewer, 0)
	var nodes []string
	for range 2 {
		b.Locked()
		nodes = append(nodes, b.URL)
	}
	begun, watch := map[string]<-chan time.Time{}, testenv.NewWatch(t)
	ways := map[string][]string{"stays": {"Authorization", "Bearer " + stays.Secret}}
	for name, token := range ends {
		ways[name] = []string{"Authorization", "Bearer " + token.Secret}
		ways[name+", browser"] = b.LogIn(token.Secret).Headers()
	}
	for _, node := range nodes {
		for name, headers := range ways {
			opened, ended := b.OpenStream(node, headers...)
			if !opened {
				t.Fatalf("%s opened no stream", name)
			}
			begun[name+" at "+node] = ended
		}
	}
	before := time.Now()
	code, text := b.Ask(http.MethodPost, api.Prefix+"/tokens/vic/revoke", nil, "Authorization", "Bearer "+admin.Secret)
	if code != http.StatusOK {
		t.Fatalf("revoking: %d %s", code, text)
	}
	const expire = `UPDATE api_token SET expires_at = tranche_now() WHERE name = 'eve'`
	testenv.Must(b.Pool.Exec(t.Context(), expire))(t)
	limit := watch.After(access.RevocationTime)
	for name, ended := range begun {
		if name == "stays at "+nodes[0] || name == "stays at "+nodes[1] {
			continue
		}
		at, ok := testenv.ReceiveBefore(ended, limit)
		if !ok {
			t.Fatalf("%s: its stream goes on after %s", name, access.RevocationTime)
		}
		t.Logf("%s: its stream ended after %s", name, at.Sub(before))
	}
	for _, node := range nodes {
		for name, headers := range ways {
			if opened, _ := b.OpenStream(node, headers...); opened != (name == "stays") {
				t.Errorf("%s: a new stream was opened: %v", name, opened)
			}
		}
		select {
		case <-begun["stays at "+node]:
			if watch.Longest() < access.RevocationTime/2 { // else it was not to be learned in time whether it may go on
				t.Error("the stream of another token has ended too")
			}
		default:
		}
	}
}

// A change that is in progress when its token is revoked is interrupted, and leaves nothing.
func TestARevokedTokenBreaksOffAnUpload(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t).Locked()
	token := b.Token("ann", access.Operator, 0)
	// Not by a client of net/http, which may see that the connection is gone before it sees the answer.
	conn := b.Stalled("/runs?endpoint=echo&name=late", "Content-Type: text/csv\r\nAuthorization: Bearer "+token.Secret+
		"\r\nContent-Length: 99999999", "")
	go func() {
		padding := strings.Repeat("x", 1000)
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(conn, "%d,%s\n", i, padding); err != nil {
				return
			}
			select {
			case <-b.Context().Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	type answered struct {
		code int
		text json.RawMessage
		err  error
	}
	answer := make(chan answered, 1)
	go func() {
		var a answered
		head, err := http.ReadResponse(bufio.NewReader(conn), nil) //nolint:bodyclose // it waits for the connection's end
		if a.err = err; err == nil {
			a.code, a.err = head.StatusCode, json.NewDecoder(head.Body).Decode(&a.text)
		}
		answer <- a
	}()
	apitest.Eventually(t, "the token is used", func() (used bool) {
		const look = `SELECT last_used_at IS NOT NULL FROM api_token WHERE id = $1`
		return b.Pool.QueryRow(t.Context(), look, token.ID).Scan(&used) == nil && used
	})
	testenv.Must(identity.New(b.Store).RevokeToken(t.Context(), token.ID.String(), "the test"))(t)
	limit := testenv.NewWatch(t).After(time.Minute) // what it wrote is taken back, however slow the database is
	a, ok := testenv.ReceiveBefore(answer, limit)
	if !ok {
		t.Fatal("the upload goes on")
	}
	var p apitest.Problem
	if err := json.Unmarshal(a.text, &p); err != nil || a.code != http.StatusUnauthorized {
		t.Errorf("the upload was answered %d %s, %v", a.code, a.text, a.err)
	}
	var runs int
	if err := b.Pool.QueryRow(t.Context(), `SELECT count(*) FROM batchrun`).Scan(&runs); err != nil || runs != 0 {
		t.Errorf("%d runs are left, %v", runs, err)
	}
}
