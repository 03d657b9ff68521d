package client_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// serve is a server that a test plays.
func serve(t *testing.T, handle http.HandlerFunc) *client.Client {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	cl := testenv.Must(client.New(server.URL, client.WithToken("tr_secret")))(t)
	t.Cleanup(cl.Close)
	return cl
}

// A stream that ends early continues after the last event that came, and gives up on what says no permanently.
func TestEventsGoOn(t *testing.T) {
	t.Parallel()
	var asked []string
	cl := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("Last-Event-ID"))
		switch len(asked) {
		case 1:
			_, _ = io.WriteString(w, ": hello\nretry: 1\nid: 7-1\nevent: run\ndata: {\"a\":\ndata: 1}\n\n"+
				"id: 7-2\ndata: 2\n\ndata: half")
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 3:
			_, _ = io.WriteString(w, "event: end\r\ndata: {}\r\n\r\n")
		default:
			w.WriteHeader(http.StatusForbidden)
		}
	})
	var got []string
	var last error
	for event, err := range cl.WatchRun(t.Context(), "last", client.WatchRunParams{Planes: true}) {
		if last = err; err == nil {
			got = append(got, fmt.Sprintf("%s %s %s", event.Name, event.ID, event.Data))
		}
	}
	testenv.SameList(t, got, []string{"run 7-1 {\"a\":\n1}", "message 7-2 2", "end 7-2 {}"}, "the events")
	testenv.Same(t, testenv.As[*client.ProblemError](t, last, "its end").Status, http.StatusForbidden, "it ended with")
	testenv.SameList(t, asked, []string{"", "7-2", "7-2", "7-2"}, "it asked from")
}

func TestEventsOfNobodyEndAtOnce(t *testing.T) {
	t.Parallel()
	cl := dial(t, "http://127.0.0.1:1", 0)
	seen := 0
	for _, err := range cl.Watch(t.Context(), client.WatchParams{}) {
		seen++
		_ = testenv.As[*client.UnreachableError](t, err, "no server")
	}
	testenv.Same(t, seen, 1, "errors")
}

func TestPagesAreReadToTheEnd(t *testing.T) {
	t.Parallel()
	var pages atomic.Int32
	cl := serve(t, func(w http.ResponseWriter, r *http.Request) {
		pages.Add(1)
		switch r.URL.Query().Get("before") {
		case "":
			_, _ = io.WriteString(w, `{"runs":[{"id":"c"},{"id":"b"}],"next":"b"}`)
		case "b":
			_, _ = io.WriteString(w, `{"runs":[{"id":"a"}]}`)
		default:
			w.WriteHeader(http.StatusUnprocessableEntity)
		}
	})
	var ids []string
	for run, err := range cl.AllRuns(t.Context(), client.ListRunsParams{State: []string{"running", "paused"}, Limit: 2}) {
		testenv.NoError(t, err)
		ids = append(ids, run.ID)
	}
	if !slices.Equal(ids, []string{"c", "b", "a"}) || pages.Load() != 2 {
		t.Errorf("%q in %d pages", ids, pages.Load())
	}
	for _, err := range cl.AllRuns(t.Context(), client.ListRunsParams{}) {
		testenv.NoError(t, err)
		break
	}
	testenv.Same(t, pages.Load(), 3, "pages read by who has enough after one entry")
	cl = serve(t, func(w http.ResponseWriter, r *http.Request) { // 0 is an ordinal to continue after
		_, _ = io.WriteString(w, map[string]string{"": `{"items":[{"key":"a"}],"next":0}`,
			"0": `{"items":[{"key":"b"}]}`}[r.URL.Query().Get("after")])
	})
	for item, err := range cl.AllItems(t.Context(), "last", client.ListItemsParams{}) {
		if ids = append(ids, item.Key); err != nil {
			t.Fatal(err)
		}
	}
	testenv.SameList(t, ids[3:], []string{"a", "b"}, "items")
}

// A token goes to its server only, and what is the same is not read again.
func TestWhatGoesWithARequest(t *testing.T) {
	t.Parallel()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("it was followed")
	}))
	t.Cleanup(elsewhere.Close)
	cl := serve(t, func(w http.ResponseWriter, r *http.Request) {
		testenv.Same(t, r.Header.Get("Authorization"), "Bearer tr_secret", "authorization")
		switch {
		case r.Header.Get("If-None-Match") == `"1"`:
			w.WriteHeader(http.StatusNotModified)
		case r.Method == http.MethodPost && r.Header.Get("Idempotency-Key") == "k":
			w.Header().Set("Idempotency-Replayed", "true")
			_, _ = io.WriteString(w, `{"action":"pause","unknown":1}`+"\n")
		default:
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}
	})
	_, err := cl.GetRun(t.Context(), "last")
	testenv.Fails(t, err, "a redirect is not an error")
	_, err = cl.GetRun(t.Context(), "last", client.IfNoneMatch(`"1"`))
	testenv.Is(t, err, client.ErrNotModified, "asked again")
	var raw []byte
	var header http.Header
	done, err := cl.PauseRun(t.Context(), "last", client.ControlSettings{}, client.IdempotencyKey("k"), client.Raw(&raw),
		client.ResponseHeader(&header))
	if err != nil || done.Action != "pause" || string(raw) != `{"action":"pause","unknown":1}` ||
		header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%+v %s %v, %v", done, raw, header, err)
	}
}
