package api_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// PROOF: who may do what, 19.
// However often a viewer asks for all of a run, most are told to come back, and there are
// connections left for an operator.
func TestReadersLeaveOperatorsRoom(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	run := b.Start("name=it").Run
	b.Answer(run, "", func(workqueue.Ordinal) []byte { return nil })
	const many, each = 20, 4
	for _, path := range []string{
		"/runs/it/errors?all=T&x", "/runs/it/errors?all", "/runs/it/export", "/runs/it/explain", "/audit", "/runs?q=x;",
	} {
		b.Locked()
		b.Server.LetWait(100 * time.Millisecond)
		b.Exec(`DELETE FROM api_token`) // of the server before
		viewer := b.Token("vic", access.Viewer, 0)
		operator := []string{"Authorization", "Bearer " + b.Token("ops", access.Operator, 0).Secret}
		table, meanwhile := "work_result", "/runs/it"
		switch {
		case strings.HasSuffix(path, "explain"):
			table, meanwhile = "work_slice", "/runs"
		case path == "/audit":
			table = "audit_log"
		case strings.HasPrefix(path, "/runs?"):
			table, meanwhile = "batchrun", "/retention"
		}
		b.Session("Authorization", "Bearer "+viewer.Secret) // so that not all of them look the token up
		undo := b.Lock(table)
		answers := b.Crowd(many, api.Prefix+path, viewer.Secret)
		over := testenv.NewWatch(t).After(time.Minute)
		for refused, let := 0, 0; refused < many-each; {
			answer, ok := testenv.ReceiveBefore(answers, over)
			if !ok {
				t.Errorf("%s: %d of %d are answered", path, refused+let, many)
				break
			}
			odd := answer.StatusCode != http.StatusTooManyRequests || answer.Header.Get("Retry-After") == ""
			if !odd || answer.StatusCode == http.StatusUnprocessableEntity && strings.Contains(path, "&x") {
				refused++
				continue
			}
			let++ // one that was let in may be abandoned on a machine that is stalled
			if let > each || answer.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("%s is answered %d, %v; want 429", path, answer.StatusCode, answer.Header)
				break
			}
		}
		b.JSON(http.MethodGet, meanwhile, "", http.StatusOK, nil, operator...)
		undo()
	}
}

// What reads of a run, and is neither bounded nor a stream, reads little, as those that stand here do.
func TestWhatReadsARunIsBounded(t *testing.T) {
	t.Parallel()
	little := []string{"GET /api/v1/runs/{run}", "GET /api/v1/runs/{run}/events"}
	routes := apitest.Setup(t).Server.Routes()
	for i := range routes {
		route := &routes[i]
		read := strings.HasPrefix(route.Pattern, "GET /api/v1/runs/{run}")
		if read && !route.Bounded() && !slices.Contains(little, route.Pattern) {
			t.Errorf("%s is neither heavy nor broad", route.Pattern)
		}
	}
}

// PROOF: who may do what, 4.
// Whoever has taken all ordinary connections keeps no one from revoking their token, and neither
// heartbeats nor the leader tasks from going on.
func TestRevokingNeedsNoOrdinaryConnection(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	const conns = 4
	store, release, err := database.Open(t.Context(), url, database.PoolConfig{MaxConns: conns, LockTimeout: time.Hour})
	testenv.NoError(t, err)
	t.Cleanup(release)
	b := &apitest.Bench{T: t, Pool: testenv.Connect(t, url), Store: store}
	nc := testenv.Conn(t, testenv.NATS(t))
	node, err := orchestrator.New(store, nc, orchestrator.Config{Version: "test", Grace: time.Second,
		SessionTTL: time.Minute}) // one session, also on a machine that is stalled
	testenv.NoError(t, err)
	e := &apitest.Engine{Bench: &apitest.Bench{T: t}}
	e.Keep(node.Run)
	<-node.Ready()
	gate := testenv.Must(access.New(identity.New(store), access.Config{}))(t)
	b.Gated = true
	b.Over(api.NodeOf(node), nc, api.Config{Access: gate, QueryTimeout: time.Hour})
	b.Server.LetWait(time.Hour) // until they are revoked, and not until their turn does not come
	admin := []string{"Authorization", "Bearer " + b.Token("ann", access.Admin, 0).Secret, "Idempotency-Key", "once"}
	viewer := b.Token("vic", access.Viewer, 0)

	b.Session("Authorization", "Bearer "+viewer.Secret) // so that not all of them look the token up
	watch := testenv.NewWatch(t)
	unlock := b.Lock("plan")
	defer unlock()
	answers := b.Crowd(60, api.Prefix+"/plans", viewer.Secret)
	b.Until("all connections are taken", `SELECT count(*) = $1 FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE l.relation = 'plan'::regclass AND NOT l.granted AND a.datname = current_database()`, conns)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	testenv.Fails(t, inspect.New(store).Ping(ctx), "there is an ordinary connection left: the test shows nothing")
	const sweeps = `(SELECT (d->>'runs')::bigint FROM node_session, jsonb_array_elements(stats->'leader_tasks') d
		WHERE d->>'name' = 'sweep')`
	before := b.Number("SELECT coalesce("+sweeps+", $1)", 0)
	b.JSON(http.MethodPost, "/tokens/vic/revoke", "", http.StatusOK, nil, admin...)
	b.Until("heartbeats and sweeps continue", `SELECT count(*) > 0 FROM node_session WHERE `+sweeps+` > $1`, before+1)
	for range cap(answers) {
		answer := <-answers
		if answer.StatusCode == http.StatusServiceUnavailable && watch.Longest() > access.RevocationTime/2 {
			continue // it was ended before: on a machine that was stalled it was not to be learned whether it may continue
		}
		testenv.Same(t, answer.StatusCode, http.StatusUnauthorized, "a request of the token that was revoked is answered")
	}
}

// PROOF: who may do what, 19.
// Bodies that are held entirely are held together up to a bound. What they say of their length takes no room, what
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
	testenv.MustSame(t, ack().StatusCode, http.StatusOK, "beside a large request a small one is answered")
	b.Stalled("/trackers/"+opened.ID+"/ack", "Transfer-Encoding: chunked", "7fffff\r\n"+strings.Repeat(" ", most-1))
	var full *apitest.Head
	apitest.Eventually(t, "the room is full", func() bool {
		full = ack()
		return full.StatusCode != http.StatusOK
	})
	if full.StatusCode != http.StatusServiceUnavailable || full.Header.Get("Retry-After") == "" {
		t.Errorf("when there is no room: %d %v", full.StatusCode, full.Header)
	}
	code, text := b.Ask(http.MethodPost, api.Prefix+"/trackers", strings.NewReader(`{"owner":"o"}`))
	if code != http.StatusServiceUnavailable || !strings.Contains(string(text), `urn:tranche:tracker:too_many_requests`) {
		t.Errorf("when there is no room: %d %s", code, text)
	}
	b.Tracked(http.MethodGet, "/"+opened.ID, "", http.StatusOK, nil)
	testenv.NoError(t, first.Close())
	apitest.Eventually(t, "there is room when others have gone", func() bool { return ack().StatusCode == http.StatusOK })
}

// A body that is too large, or that ends early, is answered as any other is.
func TestBulkyBodiesThatAreWrong(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	for size, want := range map[int]int{8<<20 + 1: http.StatusRequestEntityTooLarge, 100: http.StatusUnprocessableEntity} {
		code, text := b.Ask(http.MethodPost, api.Prefix+"/trackers/ack", strings.NewReader(`{`+strings.Repeat(" ", size)))
		testenv.Same(t, code, want, "%d bytes: %s", size, text)
	}
}

// PROOF: who may do what, 19.
// Of large answers one viewer who takes none of them has a few in progress, and so in memory, however often they ask,
// and an operator gets theirs meanwhile.
func TestSlowReadersOfLargeAnswers(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	const many, each, size = 24, 4, 6 << 20
	run := b.Start("name=it").Run
	b.Answer(run, "text/plain", func(workqueue.Ordinal) []byte { return bytes.Repeat([]byte("x"), size) })
	b.Locked()
	b.Server.LetWait(100 * time.Millisecond)
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
		b.JSON(http.MethodGet, path, "", http.StatusOK, nil, operator...)
	}
}

// PROOF: who may do what, 19.
// What is kept on disk of uploads is bounded, and one user has half of it.
func TestOneUserHasHalfOfTheDisk(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	path := api.Prefix + "/runs/" + b.Open(`{"endpoint":"echo","name":"open"}`).Run.String() + "/items"
	b.Locked()
	b.Server.LetSpool(4 << 20)
	as := []string{"Authorization", "Bearer " + b.Token("ann", access.Operator, 0).Secret, "Content-Type", "text/csv"}
	rows := func(n int) string { // few items, with much in each
		text := "id,text\n"
		for i := range n {
			text += strconv.Itoa(i) + "," + strings.Repeat("x", 100_000) + "\n"
		}
		return text
	}
	b.Refused(http.StatusServiceUnavailable, "of ann", http.MethodPost, path, strings.NewReader(rows(25)), as...)
	if answer := b.Send(http.MethodPost, path, rows(50), as...); answer.StatusCode != http.StatusServiceUnavailable ||
		answer.Header.Get("Retry-After") == "" {
		t.Errorf("more than there is room for: %d, %v", answer.StatusCode, answer.Header)
	}
	testenv.Same(t, b.Send(http.MethodPost, path, rows(15), as...).StatusCode, http.StatusOK, "less than half is answered")
}

// PROOF: who may do what, 19.
// Of the connections on which nothing is asked, from one address, the oldest are closed when
// they are too many; those on which something is asked continue.
func TestIdleConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=it")
	server, err := api.New(b.Store, apitest.NodeOf(b.Engine), testenv.Conn(t, testenv.NATS(t)), api.Config{})
	testenv.NoError(t, err)
	listener := testenv.Must(api.Listen(t.Context(), "127.0.0.1:0", api.Exposure{}))(t)
	testenv.Keep(t, t.Errorf, "the server", func(ctx context.Context) error {
		return server.Serve(ctx, listener, time.Minute)
	})
	const more = 5
	dial := func() net.Conn {
		conn := testenv.Must(net.Dial("tcp", listener.Addr().String()))(t)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	ask := func(conn net.Conn, path string) (*bufio.Reader, error) {
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path); err != nil {
			return nil, err
		}
		reader := bufio.NewReader(conn)
		answer, err := http.ReadResponse(reader, nil) //nolint:bodyclose // closing waits for the end of a stream
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("it is answered %s", answer.Status)
		}
		return reader, err
	}
	busy := dial() // the oldest of all
	events := testenv.Must(ask(busy, api.Prefix+"/runs/it/events"))(t)
	all, since := make([]net.Conn, api.MaxIdleEach+more), time.Now()
	for i := range all {
		all[i] = dial()
	}
	for i, conn := range all[:more] {
		testenv.NoError(t, conn.SetReadDeadline(time.Now().Add(2*time.Minute)))
		n, err := conn.Read(make([]byte, 1))
		if n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d is not closed: %v", i, err)
		}
	}
	for _, i := range []int{more, len(all) - 1} {
		// One that has not asked anything by then is closed in any case.
		if _, err := ask(all[i], "/healthz"); err != nil && time.Since(since) < api.HeaderTimeout {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	_, err = events.ReadString('\n')
	testenv.Same(t, err, nil, "the stream was interrupted")
}

// PROOF: who may do what, 4 and 18. A name is one actor in the audit log, and no other looks like it. A token does not
// outlive its time, ends after it was rotated, and is of no use elsewhere.
func TestTokensAreBound(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t).LockedWith(api.Config{TokenMaxAge: 48 * time.Hour}, access.Config{})
	admin := []string{"Authorization", "Bearer " + b.Token("ann", access.Admin, 0).Secret, "Content-Type",
		"application/json"}
	b.Exec(`INSERT INTO web_session (hash, user_name, role, expires_at, subject)
		VALUES (sha256('x'), 'Bob', 'viewer', tranche_now() + interval '2 days', '4711')`)
	const tokens = api.Prefix + "/tokens"
	for body, says := range map[string]string{
		`"name":"Ann"`:                            "is that of another token or of a person",
		`"name":"bob"`:                            "is that of another token or of a person",
		`"name":"аnn"`:                            "only letters from A to Z", // Cyrillic
		`"name":"eve@example.com"`:                "only letters from A to Z",
		`"name":"oidc:4711"`:                      "only letters from A to Z",
		`"name":"eve","expires_in":"49h"`:         "--token-max-age",
		`"name":"eve","networks":["10.0.0.0/8 "]`: "is not an address and bits",
	} {
		code, text := b.Ask(http.MethodPost, tokens, strings.NewReader(`{"role":"viewer",`+body+`}`), admin...)
		if code != http.StatusConflict && code != http.StatusUnprocessableEntity || !strings.Contains(string(text), says) {
			t.Errorf("%s: %d %s", body, code, text)
		}
	}
	made := func(path, body string) (out api.CreatedToken) {
		t.Helper()
		b.JSON(http.MethodPost, path, body, http.StatusOK, &out, admin...)
		return out
	}
	reads := func(secret string) int {
		t.Helper()
		code, _ := b.Ask(http.MethodGet, api.Prefix+"/runs", nil, "Authorization", "Bearer "+secret)
		return code
	}
	here := made("/tokens", `{"name":"ci","role":"viewer","networks":["127.0.0.0/8","::1/128"]}`)
	if here.ExpiresAt == nil || time.Until(*here.ExpiresAt) > 48*time.Hour {
		t.Errorf("a token is good until %v", here.ExpiresAt)
	}
	away := made("/tokens", `{"name":"away","role":"admin","networks":["198.51.100.0/24"]}`)
	testenv.Same(t, reads(away.Secret), http.StatusUnauthorized, "from elsewhere")
	next := made("/tokens/ci/rotate", `{"overlap":"1h"}`)
	testenv.Same(t, fmt.Sprintln(reads(here.Secret), reads(next.Secret), next.Name, next.Role, next.Networks),
		"200 200 ci viewer [127.0.0.0/8 ::1/128]\n", "both are good, and alike")
	made("/tokens/"+next.ID.String()+"/revoke", "")
	b.Refused(http.StatusConflict, "is that of another token", http.MethodPost, tokens,
		strings.NewReader(`{"name":"ci","role":"viewer"}`), admin...)
	testenv.Advance(t, b.Pool, time.Hour)
	next = made("/tokens", `{"name":"ci","role":"viewer"}`) // and the server looks tokens up again
	testenv.Same(t, fmt.Sprint(reads(here.Secret), reads(next.Secret)), "401 200", "after the overlap")
}

// PROOF: who may do what, 19. One caller's requests are bounded, reads and changes apart, and no one else's by them.
func TestRequestsAreLimitedByCaller(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t).LockedWith(api.Config{}, access.Config{RequestRate: 1})
	ann := []string{"Authorization", "Bearer " + b.Token("ann", access.Operator, 0).Secret}
	bob := []string{"Authorization", "Bearer " + b.Token("bob", access.Viewer, 0).Secret}
	for _, who := range [][]string{ann, nil} { // and an address of which no one knows who asks
		limited := false
		for range 1000 {
			answer := b.Send(http.MethodGet, api.Prefix+"/session", "", who...)
			if limited = answer.StatusCode == http.StatusTooManyRequests; limited {
				testenv.Same(t, answer.Header.Get("Retry-After"), "1", "when to try again")
				break
			}
		}
		if !limited {
			t.Error("1000 concurrent requests are answered")
		}
	}
	testenv.Same(t, b.Send(http.MethodPost, api.Prefix+"/runs/none/pause", "{}", ann...).StatusCode, http.StatusNotFound,
		"a change")
	testenv.Same(t, b.Send(http.MethodGet, api.Prefix+"/runs", "", bob...).StatusCode, http.StatusOK, "another caller")
}
