package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/client"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const short = 100 * time.Millisecond

func dial(t *testing.T, at string, timeout time.Duration, options ...client.Option) *client.Client {
	t.Helper()
	options = append(options, client.WithActor("me"), client.WithTimeout(timeout))
	cl := testenv.Must(client.New(at, options...))(t)
	return cl
}

// silent takes connections and says nothing.
func silent(t *testing.T) string {
	t.Helper()
	l := testenv.Must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var conns []net.Conn
		for {
			conn, err := l.Accept()
			if err != nil {
				break
			}
			conns = append(conns, conn)
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return "http://" + l.Addr().String()
}

// rows are items without an end.
type rows struct{}

func (rows) Read(p []byte) (int, error) { return copy(p, strings.Repeat("1\n", len(p)/2)), nil }

// Whatever is asked of a server that takes the connection and never answers, it ends, and says where that was.
func TestASilentServerIsGivenUp(t *testing.T) {
	t.Parallel()
	at := silent(t)
	cl := dial(t, at, short)
	for name, ask := range map[string]func(context.Context) error{
		"look": func(ctx context.Context) error {
			_, err := cl.ListRuns(ctx, client.ListRunsParams{Limit: 1})
			return err
		},
		"change": func(ctx context.Context) error {
			_, err := cl.CancelRun(ctx, "last", client.ControlSettings{})
			return err
		},
		"doctor": func(ctx context.Context) error { _, err := cl.Doctor(ctx); return err },
		"stream": func(ctx context.Context) error { _, err := cl.FailedItems(ctx, "last"); return err },
		"upload": func(ctx context.Context) error { _, err := cl.Start(ctx, client.RunSettings{}, rows{}); return err },
		"no rows": func(ctx context.Context) error {
			_, err := cl.Start(ctx, client.RunSettings{}, http.NoBody)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := ask(t.Context())
			testenv.Same(t, testenv.As[*client.NoResponseError](t, err, "the call").URL, at, "the URL of the error")
			testenv.Says(t, err, "wait longer", "the error")
		})
	}
}

// slowly yields its parts, each after more than the server may be silent.
type slowly struct{ parts []string }

func (s *slowly) Read(p []byte) (int, error) {
	if len(s.parts) == 0 {
		return 0, io.EOF
	}
	<-time.After(2 * short)
	n := copy(p, s.parts[0])
	s.parts = s.parts[1:]
	return n, nil
}

// pauses takes an upload whole, and answers other requests with a stream that is silent for long after each line.
func pauses(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"items":2}`)
		return
	}
	control := http.NewResponseController(w)
	for range 2 {
		_, _ = io.WriteString(w, "{}\n")
		_ = control.Flush()
		<-time.After(2 * short)
	}
}

// What flows is not given up: neither items from a slow source, nor a stream that pauses.
func TestWhatFlowsMayPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cl := dial(t, client.DefaultURL, short, client.WithTransport(piped(t, pauses)))
		started := testenv.Must(cl.Start(t.Context(), client.RunSettings{}, &slowly{[]string{"id\n", "1\n", "2\n"}}))(t)
		testenv.Same(t, started.Items, 2, "items of a slow upload")
		stream := testenv.Must(cl.ExportRun(t.Context(), "last", client.ExportRunParams{}))(t)
		testenv.Same(t, string(testenv.Must(io.ReadAll(stream))(t)), "{}\n{}\n", "a slow stream")
		testenv.NoError(t, stream.Close())
	})
}

// A document that stops in the middle is abandoned too, and the caller's own end stays the caller's.
func TestADocumentThatStops(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"runs":[`)
		_ = http.NewResponseController(w).Flush()
		<-gone
	}))
	defer server.Close()
	defer close(gone)
	_, err := dial(t, server.URL, short).ListRuns(t.Context(), client.ListRunsParams{Limit: 1})
	_ = testenv.As[*client.NoResponseError](t, err, "a server that does not answer")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(short, cancel)
	_, err = dial(t, server.URL, 0).ListRuns(ctx, client.ListRunsParams{Limit: 1})
	testenv.Is(t, err, context.Canceled, "a call that is cancelled")
}

func TestWrongAddresses(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"", "nonsense", "ftp://x", "http://", "http://\x00"} {
		_, err := client.New(at)
		testenv.Fails(t, err, "%q is taken", at)
	}
	_, err := client.New(client.DefaultURL, client.WithTimeout(-1))
	testenv.Fails(t, err, "a negative timeout is taken")
	_, err = dial(t, "http://127.0.0.1:1", 0).Info(t.Context())
	_ = testenv.As[*client.UnreachableError](t, err, "no server")
}

// What stands in a path arrives as it is, dots and slashes too.
func TestNamesInPaths(t *testing.T) {
	t.Parallel()
	var asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.EscapedPath()
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(server.Close)
	cl := dial(t, server.URL, 0)
	for name, want := range map[string]string{
		".": "%2E", "..": "%2E%2E", "...": "...", "a/b": "a%2Fb", "a//b": "a%2F%2Fb", "?x#y": "%3Fx%23y", "%2E": "%252E",
	} {
		_ = testenv.Must(cl.GetItem(t.Context(), "last", name, client.GetItemParams{}))(t)
		testenv.Same(t, asked, "/api/"+client.APIVersion+"/runs/last/items/"+want, "key %q: asked for", name)
		testenv.Must(cl.GetPlan(t.Context(), name))(t)
		testenv.Same(t, asked, "/api/"+client.APIVersion+"/plans/"+want, "plan %q: asked for", name)
	}
}

// The address of the API is good for that of its server.
func TestTheAddressOfTheAPI(t *testing.T) {
	t.Parallel()
	var asked string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Path
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(server.Close)
	for end, below := range map[string]string{
		"": "", "/": "", "/api/v1": "", "/api/v1/": "", "/t/api/v1": "/t", "/t": "/t",
	} {
		testenv.Must(dial(t, server.URL+end, 0).Info(t.Context()))(t)
		testenv.Same(t, asked, below+"/api/"+client.APIVersion+"/info", "with %q it asked for", end)
	}
}

// Of several servers the first that can be connected to is called, and by TLS one whose authority was named.
func TestSeveralServersAndAnAuthority(t *testing.T) {
	t.Parallel()
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"id":"r"}`) })
	plain, secure := httptest.NewServer(answer), httptest.NewTLSServer(answer)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	testenv.NoError(t, os.WriteFile(ca, certificate, 0o600))
	strict := httptest.NewUnstartedServer(answer)
	strict.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	strict.StartTLS()
	t.Cleanup(strict.Close)
	key := filepath.Join(t.TempDir(), "key.pem")
	der := testenv.Must(x509.MarshalPKCS8PrivateKey(strict.TLS.Certificates[0].PrivateKey))(t)
	testenv.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	const nowhere = "http://127.0.0.1:1"
	for name, c := range map[string]struct {
		at      string
		options []client.Option
		fails   string
	}{
		"the second":      {nowhere + ", " + plain.URL, nil, ""},
		"none":            {nowhere + ",http://127.0.0.1:2", nil, "answers at " + nowhere + ", http://127.0.0.1:2"},
		"an authority":    {secure.URL, []client.Option{client.WithCA(ca)}, ""},
		"no such one":     {secure.URL, nil, "certificate"},
		"a certificate":   {strict.URL, []client.Option{client.WithCertificate(ca, key), client.WithCA(ca)}, ""},
		"no certificate":  {strict.URL, []client.Option{client.WithCA(ca)}, "certificate required"},
		"a second by TLS": {nowhere + "," + secure.URL, []client.Option{client.WithCA(ca)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cl := dial(t, c.at, time.Minute, c.options...)
			t.Cleanup(cl.Close)
			for range 2 {
				run, err := cl.GetRun(t.Context(), "r")
				if c.fails == "" && (err != nil || run.ID != "r") || c.fails != "" &&
					(err == nil || !strings.Contains(err.Error(), c.fails)) {
					t.Errorf("%+v, %v", run, err)
				}
			}
		})
	}
	_, err := client.New(plain.URL, client.WithCA(os.DevNull))
	testenv.Fails(t, err, "a file without certificates was taken")
}

// pipes is a listener to which only its own dial leads. The clock of a bubble continues while a pipe is waited for, and
// would are stalled for a socket.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

// Addr implements net.Listener.
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// piped leads to a server in the bubble of a test, which ends with it.
func piped(t *testing.T, handle http.HandlerFunc) *http.Transport {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := &http.Server{Handler: handle, ReadHeaderTimeout: time.Minute}
	transport := &http.Transport{DialContext: p.dial}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(p) })
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = server.Close()
		serving.Wait()
	})
	return transport
}
