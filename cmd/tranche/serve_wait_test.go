package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/testenv"
)

// natsOf runs a server by a configuration of the test's, on a free port.
func natsOf(t *testing.T, configuration string) (url string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	text := fmt.Sprintf("host: 127.0.0.1\nport: -1\n%s\n", strings.ReplaceAll(configuration, "DIR", t.TempDir()))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	options, err := natsserver.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	options.NoSigs, options.NoLog = true, true
	ns, err := natsserver.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(time.Minute) {
		t.Fatal("the server does not start")
	}
	return ns.ClientURL()
}

const jetstreamOn = "jetstream { store_dir: \"DIR\" }\n"

// What cannot mend itself ends a start, with code 1 and the remedy.
func TestAStartEndsWithTheRemedy(t *testing.T) {
	t.Parallel()
	const users = "authorization { users: [{ user: u, password: right }] }\n"
	const accounts = "accounts { A: { users: [{ user: u, password: right }] }, B: { jetstream: enabled } }\n"
	in := func(url, user string) string { return strings.Replace(url, "://", "://"+user+"@", 1) }
	tests := map[string]struct {
		config string
		user   string
		args   []string
		says   []string
	}{
		"password": {config: jetstreamOn + users, user: "u:wrong",
			says: []string{"--nats", "refuses this user", "check the user and password", "127.0.0.1:"}},
		"no user":      {config: jetstreamOn + users, says: []string{"refuses this user", "--nats-creds"}},
		"no jetstream": {says: []string{"JetStream is not enabled at NATS at nats://127.0.0.1:", "nats-server -js"}},
		"account": {config: jetstreamOn + accounts, user: "u:right",
			says: []string{"not enabled for the account", "jetstream: enabled"}},
		"room": {config: "jetstream { store_dir: \"DIR\", max_file: 64MiB }",
			says: []string{"no room for the streams", "4.2 GiB (4496293888 bytes)", "max_file_store", "--work-max-bytes"}},
		"replicas": {config: jetstreamOn, args: []string{"--stream-replicas", "3"},
			says: []string{"single server", "3 are set", "--stream-replicas"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := natsOf(t, test.config)
			if test.user != "" {
				url = in(url, test.user)
			}
			ends(t, append([]string{"--database", testenv.Database(t), "--nats", url}, test.args...), test.says...)
		})
	}
}

// ends waits until a serve has ended with code 1, and looks whether it has said why.
func ends(t *testing.T, args []string, says ...string) {
	t.Helper()
	s := launch(t, false, args...)
	err := s.Wait()
	text := s.log.String()
	if err == nil || s.ProcessState.ExitCode() != cli.ExitOther {
		t.Errorf("it ended with %v: %s", err, text)
	}
	last := text[strings.LastIndex(strings.TrimRight(text, "\n"), "\n")+1:]
	for _, want := range says {
		if !strings.Contains(last, want) {
			t.Errorf("it does not say %q: %s", want, text)
		}
	}
	if strings.Contains(last, "wrong") {
		t.Errorf("it says the password: %s", text)
	}
}

func TestAStartRefusesOtherURLs(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	ends(t, []string{"--database", database, "--nats", "http://127.0.0.1:4222"}, `begins with \"http://\"`, "nats://",
		"--nats")
	ends(t, []string{"--database", "mysql://u:wrong@127.0.0.1/x"}, `begins with \"mysql://\"`, "postgres://", "--database")
	ends(t, []string{"--database", strings.Replace(database, "://", "://nobody_of_this_name:wrong@", 1)}, "--database")
}

// A first start that could not have its streams leaves the next one to say other things of them.
func TestTheNextFirstStart(t *testing.T) {
	t.Parallel()
	database, url := testenv.Database(t), natsOf(t, jetstreamOn)
	ends(t, []string{"--database", database, "--nats", url, "--stream-replicas", "3"}, "single server")
	s := launch(t, true, "--database", database, "--nats", url, "--stream-replicas", "1", "--work-max-bytes", "7MiB")
	b := &bench{T: t, url: s.where["api"]}
	b.want(b.tranche("streams"), 0, "replicas 1", "requests 7MiB")
	if _, err := s.End(t); err != nil {
		t.Error(err)
	}
}

// obstacles are judged from what nats.go says of real servers.
func TestObstaclesOfTLS(t *testing.T) {
	t.Parallel()
	cert, pool := testCertificate(t)
	refused := func(t *testing.T, serverTLS *tls.Config, url string, options ...nats.Option) obstacle {
		t.Helper()
		ns, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true,
			TLSConfig: serverTLS, TLS: serverTLS != nil, TLSVerify: serverTLS != nil && serverTLS.ClientAuth != 0})
		if err != nil {
			t.Fatal(err)
		}
		ns.Start()
		t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
		if !ns.ReadyForConnections(time.Minute) {
			t.Fatal("the server does not start")
		}
		var nc *nats.Conn
		w := &startWait{at: "here", nc: func() *nats.Conn { return nc }}
		nc, err = endpoints.Connect(append(options, at(url+"://"+ns.Addr().String()), w.hear())...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		var o obstacle
		eventually(t, "what is wrong is known", func() bool { o = w.judge(nats.ErrDisconnected); return o.end != "" })
		return o
	}
	trusting := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	if o := refused(t, trusting, "nats"); !strings.Contains(o.end, "not trusted") || !strings.Contains(o.end, "NATS_CA") {
		t.Errorf("an authority that is not known: %+v", o)
	}
	if o := refused(t, nil, "tls"); !strings.Contains(o.end, "offers no TLS") {
		t.Errorf("a server without TLS: %+v", o)
	}
	strict := trusting.Clone()
	strict.ClientAuth, strict.ClientCAs = tls.RequireAndVerifyClientCert, pool
	o := refused(t, strict, "nats", nats.Secure(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}))
	if !strings.Contains(o.end, "NATS_CERT") {
		t.Errorf("a server that wants a certificate: %+v", o)
	}
}

// A name that is not known is named and waited for: it may be that of a server to come.
func TestWaitingForAName(t *testing.T) {
	t.Parallel()
	o := (&startWait{at: "nats://db.invalid:4222"}).unconnected(fmt.Errorf("dial: %w", &net.DNSError{Name: "db.invalid"}))
	if o.end != "" || !strings.Contains(o.waiting, "the name db.invalid is not known") {
		t.Errorf("%+v", o)
	}
}

// What is waited for is said at once, and then ever more seldom; something else is said at once.
func TestAWaitIsSaidEverMoreSeldom(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	var said []time.Duration
	nc := testenv.Conn(t, testenv.NATS(t))
	w := &startWait{trouble: &troubles{}, nc: func() *nats.Conn { return nc }, now: func() time.Time { return now },
		say: func(string) { said = append(said, now.Sub(time.Unix(0, 0))) }}
	for ; now.Sub(time.Unix(0, 0)) < time.Minute; now = now.Add(time.Second) {
		if err := w.waits("set up the streams", nats.ErrTimeout); err != nil {
			t.Fatal(err)
		}
	}
	want := []time.Duration{0, 5 * time.Second, 15 * time.Second, 35 * time.Second}
	if fmt.Sprint(said) != fmt.Sprint(want) {
		t.Errorf("said at %v, want %v", said, want)
	}
	if err := w.waits("set up the streams", nats.ErrNoResponders); err != nil || len(said) != 5 {
		t.Errorf("something else: %v, %v", err, said)
	}
	now = now.Add(refusedPatience)
	if err := w.waits("set up the streams", nats.ErrNoResponders); err == nil {
		t.Error("what does not mend itself is waited for")
	}
}

// testCertificate signs itself, for 127.0.0.1.
func testCertificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, about, about, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}
