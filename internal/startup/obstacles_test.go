package startup

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// obstacles are judged from what nats.go says of real servers.
func TestObstaclesOfTLS(t *testing.T) {
	t.Parallel()
	cert, pool := testCertificate(t)
	core, logged := observer.New(zap.WarnLevel)
	refused := func(t *testing.T, serverTLS *tls.Config, url string, options ...nats.Option) obstacle {
		t.Helper()
		ns, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true,
			TLSConfig: serverTLS, TLS: serverTLS != nil, TLSVerify: serverTLS != nil && serverTLS.ClientAuth != 0})
		testenv.NoError(t, err)
		ns.Start()
		t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
		if !ns.ReadyForConnections(time.Minute) {
			t.Fatal("the server does not start")
		}
		var nc *nats.Conn
		w := &Wait{At: "here", NC: func() *nats.Conn { return nc }}
		nc = testenv.Must(endpoints.Connect(append(options, func(o *nats.Options) error {
			o.Servers = []string{url + "://" + ns.Addr().String()}
			return nil
		}, w.Hear(), endpoints.LogTo(zap.New(core)))...))(t)
		t.Cleanup(nc.Close)
		var o obstacle
		testenv.Until(t, time.Minute, "what is wrong is known", func() bool {
			o = w.judge(nats.ErrDisconnected)
			return o.end != ""
		})
		return o
	}
	trusting := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	if o := refused(t, trusting, "nats"); !strings.Contains(o.end, "not trusted") || !strings.Contains(o.end, "NATS_CA") {
		t.Errorf("an authority that is not known: %+v", o)
	}
	testenv.Same(t, logged.FilterMessageSnippet("NATS_CA=FILE").Len(), 1, "warnings that name NATS_CA")
	testenv.Has(t, refused(t, nil, "tls").end, "offers no TLS", "a server without TLS")
	strict := trusting.Clone()
	strict.ClientAuth, strict.ClientCAs = tls.RequireAndVerifyClientCert, pool
	o := refused(t, strict, "nats", nats.Secure(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}))
	testenv.Has(t, o.end, "NATS_CERT", "a server that wants a certificate: %+v", o)
}

// A name that is not known is named and waited for: it may be that of a server to come.
func TestWaitingForAName(t *testing.T) {
	t.Parallel()
	o := (&Wait{At: "nats://db.invalid:4222"}).unconnected(fmt.Errorf("dial: %w", &net.DNSError{Name: "db.invalid"}))
	if o.end != "" || !strings.Contains(o.waiting, "the name db.invalid is not known") {
		t.Errorf("%+v", o)
	}
}

// What is waited for is said immediately, and then ever more seldom; something else is said immediately.
func TestAWaitIsSaidEverMoreSeldom(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	var said []time.Duration
	nc := testenv.Conn(t, testenv.NATS(t))
	w := &Wait{Trouble: &Troubles{}, NC: func() *nats.Conn { return nc }, Now: func() time.Time { return now },
		Say: func(string) { said = append(said, now.Sub(time.Unix(0, 0))) }}
	for ; now.Sub(time.Unix(0, 0)) < time.Minute; now = now.Add(time.Second) {
		testenv.NoError(t, w.Waits("set up the streams", nats.ErrTimeout))
	}
	want := []time.Duration{0, 5 * time.Second, 15 * time.Second, 35 * time.Second}
	testenv.Same(t, fmt.Sprint(said), fmt.Sprint(want), "said at")
	testenv.NoError(t, w.Waits("set up the streams", nats.ErrNoResponders))
	testenv.Same(t, len(said), 5, "something else")
	now = now.Add(refusedTimeout)
	testenv.Fails(t, w.Waits("set up the streams", nats.ErrNoResponders), "what does not fix itself is waited for")
}

// testCertificate signs itself, for 127.0.0.1.
func testCertificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key := testenv.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	about := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der := testenv.Must(x509.CreateCertificate(rand.Reader, about, about, key.Public(), key))(t)
	parsed := testenv.Must(x509.ParseCertificate(der))(t)
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// A state that lasts for a quarter of an hour is a line a minute, what is different is said immediately, and each line
// names the node.
func TestAStateIsALine(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.InfoLevel)
	now := time.Now()
	node := ""
	log := zap.New(core, zap.WithClock(clock{&now}), Lines(func() string { return node })).Named("node")
	for i := range 1800 {
		log.Warn("check the streams", zap.Error(fmt.Errorf("no answer after %d ms", i)))
		if i == 100 {
			node = "0190"
			log.Warn("check the streams", zap.Error(errors.New("it has no leader")))
		}
		log.Info("one of many")
		now = now.Add(500 * time.Millisecond)
	}
	testenv.Same(t, logs.FilterMessage("check the streams").Len(), 16,
		"lines of a state of 15 minutes: one a minute, and that of another error")
	for _, name := range []string{"tax-2024", "tax-2025"} {
		log.With(zap.String("schedule", name)).Warn("it did not begin")
		log.Warn("it is held", zap.Stringer("run", bytes.NewBufferString(name)))
	}
	testenv.Same(t, logs.FilterMessage("it did not begin").Len()+logs.FilterMessage("it is held").Len(), 4,
		"lines of warnings about two schedules and two runs")
	testenv.Same(t, logs.FilterMessage("one of many").Len(), 1800, "lines that are no warnings")
	testenv.Same(t, logs.FilterField(zap.String("node", "0190")).FilterMessage("one of many").Len(), 1699+1,
		"lines name the node")
}

type clock struct{ now *time.Time }

func (c clock) Now() time.Time                       { return *c.now }
func (clock) NewTicker(d time.Duration) *time.Ticker { return time.NewTicker(d) }
