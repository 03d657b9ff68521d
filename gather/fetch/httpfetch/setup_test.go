package httpfetch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// canary is a secret that must not be seen anywhere but in requests to its host.
const canary = "CANARY-7d2f\"quoted&more"

// bundle is a client and a service on this machine.
type bundle struct {
	client *httpfetch.Client
	server *httptest.Server
	host   string // of the service, with its port

	mu   sync.Mutex
	seen []*http.Request
}

// serve starts a service that a client may reach, and which is the host of the secret "token".
func serve(t *testing.T, handler http.HandlerFunc, more ...string) *bundle {
	t.Helper()
	b := &bundle{}
	b.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		b.seen = append(b.seen, r)
		b.mu.Unlock()
		handler(w, r)
	}))
	t.Cleanup(b.server.Close)
	b.host = strings.TrimPrefix(b.server.URL, "http://")
	b.client = client(t, httpfetch.Config{}, fmt.Sprintf(
		"secrets: {token: {file: token, hosts: [\"http://%s\"]}}\nhttp:\n  allow_private: [127.0.0.1]\n%s", b.host,
		strings.Join(more, "")))
	return b
}

func (b *bundle) requests() []*http.Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clip(b.seen)
}

// client makes a client by a file of connections, beside which the canary stands in the file token. It waits as long
// for a connection as for an answer.
func client(t *testing.T, cfg httpfetch.Config, text string) *httpfetch.Client {
	t.Helper()
	cfg.ConnectTimeout = time.Minute
	dir := t.TempDir()
	testenv.NoError(t, os.WriteFile(filepath.Join(dir, "token"), []byte(canary+"\n"), 0o600))
	conns := testenv.Must(connections.Parse(filepath.Join(dir, "connections.yaml"), []byte(text)))(t)
	c := testenv.Must(httpfetch.New(conns, cfg))(t)
	t.Cleanup(c.Close)
	return c
}

// settings are those of a step, with defaults.
func settings(url string, change ...func(*gather.HTTP)) *gather.HTTP {
	h := &gather.HTTP{
		URL: url, Method: "GET", Concurrency: 4, Timeout: workqueue.Duration(time.Minute), MaxBytes: 1 << 20, Redirects: 3,
	}
	for _, f := range change {
		f(h)
	}
	return h
}

// items are a chunk with the keys K0, K1, …
func items(n int) []fetch.Item {
	out := make([]fetch.Item, n)
	for i := range out {
		out[i] = fetch.Item{Ordinal: 100 + i, Key: fmt.Sprintf("K%d", i), Payload: []byte(fmt.Sprintf(`{"n":%d}`, i))}
	}
	return out
}

func get(t *testing.T, c *httpfetch.Client, h *gather.HTTP, req *fetch.Request) (map[int]fetch.Slot, error) {
	t.Helper()
	return getIn(t.Context(), t, c, h, req)
}

func getIn(
	ctx context.Context, t *testing.T, c *httpfetch.Client, h *gather.HTTP, req *fetch.Request,
) (map[int]fetch.Slot, error) {
	t.Helper()
	config := testenv.Must(json.Marshal(h))(t)
	f, err := c.Fetcher(config)
	if err != nil {
		return nil, err
	}
	if req.Run == uuid.Nil {
		req.Run, req.Step, req.Generation = uuid.New(), "branches", 1
	}
	slots, err := f.Fetch(ctx, req)
	byOrdinal := map[int]fetch.Slot{}
	for _, s := range slots {
		if _, twice := byOrdinal[s.Ordinal]; twice {
			t.Errorf("ordinal %d has two slots", s.Ordinal)
		}
		byOrdinal[s.Ordinal] = s
		if s.Err != nil {
			noCanary(t, s.Err.Error())
		}
	}
	if err != nil {
		noCanary(t, err.Error())
	}
	return byOrdinal, err
}

func noCanary(t *testing.T, text string) {
	t.Helper()
	if strings.Contains(text, "CANARY") || strings.Contains(text, "7d2f") {
		t.Errorf("the secret is in %q", text)
	}
}

// codeOf returns the code of a slot or an error, with an exclamation mark when it is retryable.
func codeOf(err error) string {
	e, ok := err.(*wire.SlotError) //nolint:errorlint // as the node gets it
	switch {
	case !ok || e == nil:
		return ""
	case e.Retry:
		return e.Code + "!"
	}
	return e.Code
}
