package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/internal/embedded"
)

// Server is a NATS server, or an account on one.
type Server interface{ URL() string }

// Account is an account on the test binary's NATS server, with its own streams and subjects.
type Account struct {
	*server.Account
	Of *server.Server
}

// URL returns the server's address, with the account's user.
func (a *Account) URL() string {
	return "nats://" + a.Name + ":x@" + a.Of.Addr().String()
}

// NATS makes an account with JetStream on the test binary's server, until the test ends.
func NATS(t testing.TB) *Account {
	t.Helper()
	account := Must(sharedNATS.account())(t)
	t.Cleanup(func() {
		Same(t, errors.Join(account.DisableJetStream(), os.RemoveAll(sharedNATS.store(account))), nil, "clear the account")
	})
	return &Account{account, sharedNATS.server}
}

var sharedNATS natsServer

type natsServer struct {
	once   sync.Once
	err    error
	dir    string
	server *server.Server
	stop   func() error // nil: not started. Programs that start none do not link the server.
}

func (n *natsServer) account() (*server.Account, error) {
	n.once.Do(func() { n.err = n.start() })
	if n.err != nil {
		return nil, n.err
	}
	account, err := n.server.RegisterAccount(suffix())
	if err != nil {
		return nil, err
	}
	return account, account.EnableJetStream(nil, nil)
}

func (n *natsServer) store(of *server.Account) string {
	return filepath.Join(n.dir, server.JetStreamStoreDir, of.Name)
}

func (n *natsServer) start() (err error) {
	if n.dir, err = clusterDir(); err != nil {
		return err
	}
	n.server, err = server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, CustomClientAuthentication: n,
		JetStream: true, StoreDir: n.dir, JetStreamMaxStore: 1 << 50, // for the streams of many tests
		WriteDeadline: stopTimeout, AuthTimeout: stopTimeout.Seconds(), // do not disconnect a stalled client
		DisableShortFirstPing: true, // a first PING after 2 s may overtake the PONG of an equally slow login
	})
	if err != nil {
		return err
	}
	n.stop = func() error {
		n.server.Shutdown()
		n.server.WaitForShutdown()
		return os.RemoveAll(n.dir)
	}
	n.server.Start()
	if !n.server.ReadyForConnections(stopTimeout) || !n.server.JetStreamEnabled() {
		return errors.New("the NATS server does not start")
	}
	return nil
}

// Check implements server.Authentication: a user has the name of its account.
func (n *natsServer) Check(c server.ClientAuthentication) bool {
	account, err := n.server.LookupAccount(c.GetOpts().Username)
	if err == nil {
		c.RegisterUser(&server.User{Username: account.Name, Account: account})
	}
	return err == nil
}

// OwnNATS runs a server with JetStream for one test. StoreDir and Listen have defaults.
func OwnNATS(t testing.TB, config embedded.NATSConfig) *embedded.NATS {
	t.Helper()
	if config.StoreDir == "" {
		config.StoreDir = t.TempDir() + "/nats"
	}
	if config.Listen == "" {
		config.Listen = QuietAddr(t)
	}
	ns := Must(embedded.StartNATS(t.Context(), config))(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		Same(t, ns.Stop(ctx), nil, "stop NATS")
	})
	return ns
}

// DialThrough is Conn through a proxy.
func DialThrough(t testing.TB, ns Server, options ...nats.Option) (*nats.Conn, *Proxy) {
	t.Helper()
	u := Must(url.Parse(ns.URL()))(t)
	proxy := NewProxy(t, u.Host)
	u.Host = proxy.Addr()
	return Dial(t, u.String(), options...), proxy
}

// QuietPort returns a port of 127.0.0.1 that stays free while its server is down. See [embedded.QuietPort].
func QuietPort(t testing.TB) int {
	t.Helper()
	port, release, err := embedded.QuietPort(t.Context())
	NoError(t, err)
	t.Cleanup(release)
	return port
}

func QuietAddr(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", QuietPort(t))
}

// Conn connects a client that reconnects indefinitely, closed when the test ends.
func Conn(t testing.TB, ns Server) *nats.Conn {
	t.Helper()
	return Dial(t, ns.URL())
}

// Dial is Conn for a URL, such as a proxy's.
func Dial(t testing.TB, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	options = append([]nats.Option{
		nats.Name(t.Name()), nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.Timeout(stopTimeout),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // otherwise it prints them
	}, options...)
	nc := Must(nats.Connect(url, options...))(t)
	t.Cleanup(nc.Close)
	return nc
}

// Dir is t.TempDir with a path short enough for a socket, and through which the user of a PostgreSQL gets when root
// runs the tests.
func Dir(t testing.TB) string {
	t.Helper()
	dir := Must(clusterDir())(t)
	t.Cleanup(func() {
		Same(t, os.RemoveAll(dir), nil, "clear the server's directory")
	})
	return dir
}

// clusterTimeout limits the start of a cluster, until all servers know its leader.
const clusterTimeout = time.Minute

// NATSCluster runs three servers in this process until the test ends, for streams with three replicas.
func NATSCluster(t testing.TB) *embedded.NATSCluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clusterTimeout)
	defer cancel()
	cluster := Must(embedded.StartNATSCluster(ctx, t.TempDir()))(t)
	t.Cleanup(cluster.Stop)
	return cluster
}

// GuardedNATS is a NATS server with a configuration: users and permissions, TLS, or a cluster.
type GuardedNATS struct {
	server *server.Server
	dir    string
	port   int
}

// NATSByConfig runs a server with a configuration until the test ends, but with its own port and store directory.
func NATSByConfig(t testing.TB, config string) *GuardedNATS {
	t.Helper()
	g := &GuardedNATS{dir: t.TempDir(), port: server.RANDOM_PORT}
	srv := Must(server.NewServer(g.options(t, config)))(t)
	srv.Start()
	g.server = srv
	t.Cleanup(g.Stop)
	if !srv.ReadyForConnections(stopTimeout) || !srv.JetStreamEnabled() {
		t.Fatal("test environment: the NATS server does not start")
	}
	g.port = srv.Addr().(*net.TCPAddr).Port
	return g
}

// Reload reloads another configuration, as on a SIGHUP.
func (g *GuardedNATS) Reload(t testing.TB, config string) {
	t.Helper()
	NoError(t, g.server.ReloadOptions(g.options(t, config)))
}

func (g *GuardedNATS) options(t testing.TB, config string) *server.Options {
	t.Helper()
	file := filepath.Join(g.dir, "nats.conf")
	NoError(t, os.WriteFile(file, []byte(config), 0o600))
	opts := Must(server.ProcessConfigFile(file))(t)
	opts.Host, opts.Port, opts.StoreDir = "127.0.0.1", g.port, filepath.Join(g.dir, "store")
	opts.NoSigs, opts.NoLog = true, true
	patience := stopTimeout.Seconds()
	opts.AuthTimeout, opts.TLSTimeout, opts.Cluster.TLSTimeout = patience, patience, patience
	// A first PING after 2 s may overtake the PONG of an equally slow login: then nats.Connect fails.
	opts.DisableShortFirstPing = true
	return opts
}

func (g *GuardedNATS) Stop() {
	g.server.Shutdown()
	g.server.WaitForShutdown()
}

func (g *GuardedNATS) Server() *server.Server { return g.server }

func (g *GuardedNATS) URL() string { return g.server.ClientURL() }

// Conn connects a user whose inbox prefix is inbox, until the test ends.
func (g *GuardedNATS) Conn(t testing.TB, user, password, inbox string) *nats.Conn {
	t.Helper()
	options := []nats.Option{nats.UserInfo(user, password), nats.ReconnectWait(20 * time.Millisecond)}
	if inbox != "" {
		options = append(options, nats.CustomInboxPrefix(inbox))
	}
	return Dial(t, g.URL(), options...)
}
