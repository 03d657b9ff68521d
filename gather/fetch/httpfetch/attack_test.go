package httpfetch_test

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// However the address of this machine is written, it is not reached unless the operator allows it.
func TestPrivateAddresses(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	service := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(service.Close)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(service.URL, "http://"))
	var here atomic.Value
	here.Store(netip.MustParseAddr("127.0.0.1"))
	closed := client(t, httpfetch.Config{Resolver: resolver(t, &here)}, "")
	for _, host := range []string{
		"127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.1.", "0.0.0.0", "[::1]", "[::]",
		"[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]", "10.0.0.1", "192.168.1.1",
		"169.254.169.254", "100.64.0.1", "[fd00:ec2::254]", "[fe80::1]", "224.0.0.1", "255.255.255.255", "LOCALHOST",
	} {
		slots, err := get(t, closed, settings("http://"+host+":"+port+"/{key}"), &fetch.Request{Items: items(1)})
		// What is not an address to Go is a name. Without a letter no one has it; the others mean this machine here.
		if codeOf(slots[100].Err) != "address_refused" && codeOf(err) != "unreachable!" {
			t.Errorf("%s: %+v, %v", host, slots[100], err)
		}
	}
	at := strconv.Quote("127.0.0.1:" + port)
	for allow, want := range map[string]string{
		"127.0.0.1": "", at: "", "127.0.0.0/8": "", "\"::/0\"": "address_refused", "\"127.0.0.1:1\"": "address_refused",
		"10.0.0.0/8": "address_refused",
	} {
		c := client(t, httpfetch.Config{}, "http: {allow_private: ["+allow+"]}")
		before := asked.Load()
		slots, err := get(t, c, settings(service.URL+"/{key}"), &fetch.Request{Items: items(1)})
		if err != nil || codeOf(slots[100].Err) != want || (asked.Load() > before) != (want == "") {
			t.Errorf("allowed %s: %+v, %v", allow, slots[100].Err, err)
		}
	}
	testenv.Same(t, asked.Load(), 3, "times the service was asked")
}

// A proxy makes the connection, so addresses are looked at before it is asked, with their ports.
func TestPrivateAddressesBehindAProxy(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(proxy.Close)
	at := strings.TrimPrefix(proxy.URL, "http://")
	c := client(t, httpfetch.Config{}, "http: {proxy: \""+proxy.URL+"\", allow_private: [\""+at+"\", \"10.0.0.1:81\"]}")
	for host, want := range map[string]string{
		"10.0.0.1:81": "", "10.0.0.1:82": "address_refused", "10.0.0.1": "address_refused",
	} {
		slots := testenv.Must(get(t, c, settings("http://"+host+"/{key}"), &fetch.Request{Items: items(1)}))(t)
		testenv.Same(t, codeOf(slots[100].Err), want, "%s: %+v", host, slots[100].Err)
	}
	testenv.Same(t, asked.Load(), 1, "times the proxy was asked")
}

// resolver answers every question with the address of the moment.
func resolver(t *testing.T, address *atomic.Value) *net.Resolver {
	t.Helper()
	conn := testenv.Must(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	done := make(chan struct{})
	t.Cleanup(func() { _ = conn.Close(); <-done })
	go func() {
		defer close(done)
		for buf := make([]byte, 1500); ; {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil {
				continue
			}
			m.Response = true
			m.Additionals = nil
			if m.Questions[0].Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET},
					Body:   &dnsmessage.AResource{A: address.Load().(netip.Addr).As4()}, //nolint:forcetypeassert // the test's
				}}
			}
			if packed, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(packed, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// onePort listens on one port of two addresses.
func onePort(t *testing.T, address, other string) (l, m net.Listener) {
	t.Helper()
	for range 20 { // another process may have the port of the other address
		l := testenv.Must(net.Listen("tcp", net.JoinHostPort(address, "0")))(t)
		_, port, _ := net.SplitHostPort(l.Addr().String())
		if m, err := net.Listen("tcp", net.JoinHostPort(other, port)); err == nil {
			return l, m
		}
		_ = l.Close()
	}
	t.Fatalf("no port is free on both %s and %s", address, other)
	return nil, nil
}

// A name that was good and then means this machine is refused: what counts is where the connection goes.
func TestRebinding(t *testing.T) {
	t.Parallel()
	var good, bad atomic.Int64
	count := func(l net.Listener, asked *atomic.Int64) {
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.Header().Set("Connection", "close")
		})}
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close(); <-done })
	}
	there, here := onePort(t, "127.0.0.2", "127.0.0.1")
	count(there, &good)
	count(here, &bad)
	_, port, _ := net.SplitHostPort(there.Addr().String())
	var address atomic.Value
	address.Store(netip.MustParseAddr("127.0.0.2"))
	c := client(t, httpfetch.Config{Resolver: resolver(t, &address)}, "http: {allow_private: [127.0.0.2]}")
	ask := func() string {
		slots, err := get(t, c, settings("http://rebind.example:"+port+"/{key}"), &fetch.Request{Items: items(1)})
		testenv.Same(t, err, nil, "the request")
		return codeOf(slots[100].Err)
	}
	if got := ask(); got != "" || good.Load() != 1 {
		t.Fatalf("before: %s, asked %d times", got, good.Load())
	}
	address.Store(netip.MustParseAddr("127.0.0.1"))
	if got := ask(); got != "address_refused" || bad.Load() != 0 {
		t.Errorf("after: %s, asked %d times", got, bad.Load())
	}
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	type seen struct{ headers, referer, key string }
	stolen := make(chan seen, 10)
	away := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all := fmt.Sprint(r.Header)
		stolen <- seen{all, r.Referer(), r.Header.Get("X-Item")}
		if back := r.URL.Query().Get("back"); back != "" {
			http.Redirect(w, r, back, http.StatusFound)
		}
	}))
	t.Cleanup(away.Close)
	private := "http://127.0.0.3:" + strings.TrimPrefix(away.URL, "http://127.0.0.1:")
	var b *bundle
	b = serve(t, func(w http.ResponseWriter, r *http.Request) {
		to := map[string]string{
			"/here": "/landed", "/away": away.URL + "/x", "/private": private, "/loop": "/loop", "/file": "file:///etc/passwd",
			"/gopher": "gopher://127.0.0.1/", "/user": strings.Replace(away.URL, "//", "//a:b@", 1), "/post": away.URL,
			"/pingpong": away.URL + "/?back=" + b.server.URL + "/landed", "/echo": "http://x" + r.Header.Get("X-Token") + "/",
		}[r.URL.Path]
		switch {
		case r.URL.Path == "/post":
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusTemporaryRedirect)
		case to != "":
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusFound)
		default:
			_, _ = io.WriteString(w, `"`+r.Header.Get("X-Item")+strings.Repeat("!", len(r.Header.Get("X-Token")))+`"`)
		}
	})
	ask := func(path string, change ...func(*gather.HTTP)) (string, string) {
		t.Helper()
		h := settings(b.server.URL+path+"?k={key}", append(change, func(h *gather.HTTP) {
			h.Headers = map[string]string{
				"X-Token": "{secret.token}", "Authorization": "Bearer {secret.token}", "X-Item": "{key}",
			}
		})...)
		slots, err := get(t, b.client, h, &fetch.Request{Items: items(1)})
		if err != nil {
			return codeOf(err), ""
		}
		return codeOf(slots[100].Err), string(slots[100].Data)
	}
	if code, data := ask("/here"); code != "" || data != `"K0`+strings.Repeat("!", len(canary))+`"` {
		t.Errorf("within the host: %s %s", code, data)
	}
	code, _ := ask("/away")
	testenv.Same(t, code, "", "to another host")
	if got := <-stolen; strings.Contains(got.headers, "CANARY") || got.referer != "" || got.key != "" {
		t.Errorf("another host got %+v", got)
	}
	if code, data := ask("/pingpong"); code != "" || strings.Contains(data, "!") {
		t.Errorf("there and back: %s %s", code, data)
	}
	<-stolen
	post := func(h *gather.HTTP) { h.Method, h.Body = "POST", gather.JSON(`{"t":"{secret.token}"}`) }
	none := func(h *gather.HTTP) { h.Redirects = 0 }
	for path, change := range map[string]func(*gather.HTTP){
		"/loop": nil, "/file": nil, "/gopher": nil, "/user": nil, "/post": post, "/here": none, "/echo": nil,
	} {
		if change == nil {
			change = func(*gather.HTTP) {}
		}
		if code, _ := ask(path, change); code != "redirect_refused" && (path != "/echo" || code != "unreachable!") {
			t.Errorf("%s: %s", path, code)
		}
	}
	code, _ = ask("/private")
	testenv.Same(t, code, "address_refused", "to a private address")
	if len(stolen) > 0 {
		t.Errorf("another host was asked: %+v", <-stolen)
	}
}

// PROOF: who may do what, 16. A service that answers 200 with what it was sent does not show it to viewers.
func TestSecretsInResults(t *testing.T) {
	t.Parallel()
	b := serve(t, func(w http.ResponseWriter, r *http.Request) {
		token := r.Header.Get("X-Token")
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(r.URL.Path != "/plain")
		if r.URL.Path == "/text" {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, "you sent "+token)
			return
		}
		_ = encoder.Encode(map[string]any{"K0": map[string]string{"saw": token}, "K1": []int{}})
	})
	for _, path := range []string{"/text", "/escaped", "/plain"} {
		slots := testenv.Must(get(t, b.client, settings(b.server.URL+path, func(h *gather.HTTP) {
			h.Headers = map[string]string{"X-Token": "{secret.token}"}
		}), &fetch.Request{Items: items(1)}))(t)
		testenv.Same(t, codeOf(slots[100].Err)+string(slots[100].Data), "secret_in_result", "%s", path)
	}
	slots := testenv.Must(get(t, b.client, settings(b.server.URL+"/", func(h *gather.HTTP) {
		h.Headers, h.WholeChunk = map[string]string{"X-Token": "{secret.token}"}, true
	}), &fetch.Request{Items: items(2)}))(t)
	testenv.Same(t, codeOf(slots[100].Err)+string(slots[101].Data), "secret_in_result[]", "a chunk")
}

// A small answer that becomes a large one, and one that never ends, are cut off.
func TestBombs(t *testing.T) {
	t.Parallel()
	b := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/drip" {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, "x")
				_ = http.NewResponseController(w).Flush()
				select {
				case <-time.After(5 * time.Millisecond):
				case <-r.Context().Done():
				}
			}
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.CopyN(z, zeros{}, 8<<20)
		_ = z.Close()
	}, "  max_response: 64KiB\n")
	for path, want := range map[string]string{"/zip": "result_too_large", "/drip": "timeout!"} {
		h := settings(b.server.URL + path + "?k={key}")
		if path == "/drip" {
			h.Timeout = workqueue.Duration(200 * time.Millisecond)
		}
		slots, err := get(t, b.client, h, &fetch.Request{Items: items(1)})
		if codeOf(slots[100].Err) != want && codeOf(err) != want {
			t.Errorf("%s: %+v, %v", path, slots[100].Err, err)
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// A certificate of an unknown authority is refused; the operator's file names authorities, and the client's own
// certificate, which is shown to that host only.
func TestTLS(t *testing.T) {
	t.Parallel()
	var shown atomic.Int64
	service := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		shown.Store(int64(len(r.TLS.PeerCertificates)))
	}))
	service.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	service.Config.ErrorLog = nil
	service.StartTLS()
	t.Cleanup(service.Close)
	dir := t.TempDir()
	pair := service.TLS.Certificates[0]
	key := testenv.Must(x509.MarshalPKCS8PrivateKey(pair.PrivateKey))(t)
	for name, block := range map[string]*pem.Block{
		"ca.pem":  {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		"key.pem": {Type: "PRIVATE KEY", Bytes: key},
	} {
		testenv.NoError(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600))
	}
	host := strings.TrimPrefix(service.URL, "https://")
	for text, want := range map[string]string{
		"": "tls_error 0",
		fmt.Sprintf(", hosts: {%q: {ca: ca.pem}}", host):                                      " 0",
		fmt.Sprintf(", hosts: {%q: {ca: ca.pem, cert: ca.pem, key: key.pem}}", host):          " 1",
		", hosts: {127.0.0.1: {ca: ca.pem, cert: ca.pem, key: key.pem}}":                      " 1",
		", hosts: {other.example: {ca: ca.pem, cert: ca.pem, key: key.pem}}":                  "tls_error 0",
		fmt.Sprintf(", hosts: {%q: {ca: ca.pem}, \"127.0.0.1\": {max_connections: 1}}", host): " 0",
	} {
		conns, err := connections.Parse(filepath.Join(dir, "c.yaml"), []byte("http: {allow_private: [127.0.0.1]"+text+"}"))
		testenv.NoError(t, err)
		c := testenv.Must(httpfetch.New(conns, httpfetch.Config{ConnectTimeout: time.Minute}))(t)
		shown.Store(0)
		slots, err := get(t, c, settings(service.URL+"/{key}"), &fetch.Request{Items: items(1)})
		if got := fmt.Sprintf("%s %d", codeOf(slots[100].Err), shown.Load()); got != want || err != nil {
			t.Errorf("%s: got %q (%+v, %v), want %q", text, got, slots[100].Err, err, want)
		}
		c.Close()
	}
}
