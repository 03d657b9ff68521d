package testenv

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

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
	if err := g.server.ReloadOptions(g.options(t, config)); err != nil {
		t.Fatalf("test environment: reload NATS: %v", err)
	}
}

func (g *GuardedNATS) options(t testing.TB, config string) *server.Options {
	t.Helper()
	file := filepath.Join(g.dir, "nats.conf")
	NoError(t, os.WriteFile(file, []byte(config), 0o600))
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatalf("test environment: the NATS configuration: %v", err)
	}
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
