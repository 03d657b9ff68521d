package systest

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// natsTLS is each server's own part of the configuration, with what docs/operate/deploy.md adds to it for TLS.
const natsTLS = `server_name: nats-%[6]d
jetstream {}
tls { cert_file: %[1]q, key_file: %[2]q, ca_file: %[3]q }
cluster {
  name: tranche
  listen: 127.0.0.1:%[4]d
  routes: [%[5]s]
  tls { cert_file: %[1]q, key_file: %[2]q, ca_file: %[3]q, verify: true }
}
`

// startNATS starts three servers that speak TLS with clients and with one another.
func startNATS(t *testing.T, ca *authority) (urls string, servers []*natsserver.Server) {
	t.Helper()
	cert, key := ca.certify(t, "127.0.0.1")
	ports, routes := make([]int, 3), make([]string, 3)
	for i := range ports {
		ports[i] = testenv.QuietPort(t)
		routes[i] = fmt.Sprintf("%q", fmt.Sprintf("nats://127.0.0.1:%d", ports[i]))
	}
	all := make([]string, 3)
	for i := range ports {
		s := testenv.NATSByConfig(t, fmt.Sprintf(natsTLS, cert, key, ca.file, ports[i], strings.Join(routes, ", "), i))
		servers = append(servers, s.Server())
		all[i] = strings.Replace(s.URL(), "nats://", "tls://", 1)
	}
	until(t, "the servers are one", func() bool {
		for _, s := range servers {
			if !s.JetStreamIsCurrent() || s.NumRoutes() == 0 {
				return false
			}
		}
		return true
	})
	return strings.Join(all, ","), servers
}

// startPostgres starts a server that takes nothing but TLS over the network, and returns a database's URL that says
// nothing of it. It has an address of its own, so that its port is free.
func startPostgres(t *testing.T, ca *authority) string {
	t.Helper()
	at := fmt.Sprintf("127.83.%d.%d", os.Getpid()>>8&0xff, os.Getpid()&0xff)
	cert, key := ca.certify(t, at)
	hba := filepath.Join(ca.dir, "pg_hba.conf")
	write(t, hba, []byte("local all all trust\nhostssl all all 127.0.0.0/8 scram-sha-256\n"))
	dir, err := os.MkdirTemp("", "operate-pg-") //nolint:usetesting // another user owns it, and a socket's path is short
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	testenv.NoError(t, os.Chmod(dir, 0o711))
	config := embedded.PostgresConfig{DataDir: dir, NoRestart: true, Bound: true}
	first, err := embedded.StartPostgres(t.Context(), config) // which makes it, and its user
	testenv.NoError(t, err)
	local := testenv.Must(url.Parse(first.URL()))(t)
	conn := testenv.Connect(t, first.URL())
	for _, sql := range []string{"CREATE ROLE app LOGIN PASSWORD 'secret'", "CREATE DATABASE tls OWNER app"} {
		testenv.Must(conn.Exec(t.Context(), sql))(t)
	}
	conn.Close()
	info := testenv.Must(os.Stat(local.Query().Get("host")))(t)
	owner := info.Sys().(*syscall.Stat_t)
	for _, file := range []string{key, hba} {
		testenv.NoError(t, os.Chown(file, int(owner.Uid), int(owner.Gid)))
	}
	testenv.NoError(t, first.Stop(t.Context()))
	config.Settings = map[string]string{"listen_addresses": at, "ssl": "on", "ssl_cert_file": cert, "ssl_key_file": key,
		"hba_file": hba}
	pg, err := embedded.StartPostgres(t.Context(), config)
	testenv.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := pg.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	return "postgres://app:secret@" + net.JoinHostPort(at, local.Query().Get("port")) + "/tls"
}
