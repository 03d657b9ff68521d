package testenv

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/internal/embedded"
)

// NATS runs a server with JetStream on a free port until the test ends.
func NATS(t testing.TB) *embedded.NATS {
	t.Helper()
	return NATSWith(t, embedded.NATSConfig{})
}

// NATSWith is NATS with settings. An empty StoreDir or Listen is filled in.
func NATSWith(t testing.TB, config embedded.NATSConfig) *embedded.NATS {
	t.Helper()
	if config.StoreDir == "" {
		config.StoreDir = t.TempDir() + "/nats"
	}
	if config.Listen == "" {
		config.Listen = QuietAddr(t)
	}
	ns, err := embedded.StartNATS(t.Context(), config)
	if err != nil {
		t.Fatalf("test environment: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if err := ns.Stop(ctx); err != nil {
			t.Errorf("test environment: %v", err)
		}
	})
	return ns
}

// QuietPort is a port of 127.0.0.1 that is free for the test until it ends, also while its server is down. See
// [embedded.QuietPort].
func QuietPort(t testing.TB) int {
	t.Helper()
	port, release, err := embedded.QuietPort(t.Context())
	if err != nil {
		t.Fatalf("test environment: %v", err)
	}
	t.Cleanup(release)
	return port
}

// QuietAddr is 127.0.0.1 with a [QuietPort].
func QuietAddr(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", QuietPort(t))
}

// Conn connects a client that never gives up on the server, closed when the test ends.
func Conn(t testing.TB, ns *embedded.NATS) *nats.Conn {
	t.Helper()
	return Dial(t, ns.URL())
}

// Dial is Conn for any address, like that of a proxy.
func Dial(t testing.TB, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	options = append([]nats.Option{
		nats.Name(t.Name()), nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.Timeout(stopTimeout),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // else it prints them
	}, options...)
	nc, err := nats.Connect(url, options...)
	if err != nil {
		t.Fatalf("connect to NATS at %s: %v", url, err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// tempDir is t.TempDir with a path short enough for a socket in it.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := clusterDir()
	if err != nil {
		t.Fatalf("test environment: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("test environment: %v", err)
		}
	})
	return dir
}
