package endpoints

import (
	"cmp"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// localServer returns the address of the NATS server of the `tranche serve` of this machine and user, with its
// password, or nil when there is none that this user may use.
func localServer() *url.URL {
	dir := os.Getenv("TRANCHE_DATA_DIR")
	if dir == "" {
		var err error
		if dir, err = wire.DefaultDataDir(); err != nil {
			return nil
		}
	}
	file := filepath.Join(dir, wire.NATSURLName)
	text, err := os.ReadFile(file) //nolint:gosec // the directory is this user's to name
	if err != nil {
		return nil
	}
	at, err := url.Parse(strings.TrimSpace(string(text)))
	if err != nil || at.User == nil {
		return nil
	}
	return at
}

// defaultURL is where a connection goes that is told of no server.
func defaultURL() string {
	if at := localServer(); at != nil {
		return at.Scheme + "://" + at.Host
	}
	return nats.DefaultURL
}

// localLogin gives the password of the local server to that server, if the connection has nothing else to say who it
// is. The file is read each time: the server may be started after the service.
func localLogin(o *nats.Options) error {
	servers := o.Servers
	if len(servers) == 0 {
		servers = strings.Split(o.Url, ",")
	}
	known := o.User != "" || o.Token != "" || o.Nkey != "" || o.UserJWT != nil || o.UserInfo != nil ||
		o.TokenHandler != nil
	if known || len(servers) != 1 {
		return nil
	}
	asked := hostOf(servers[0])
	if host, _, _ := net.SplitHostPort(asked); host != "localhost" && !net.ParseIP(host).IsLoopback() {
		return nil
	}
	o.UserInfo = func() (user, password string) {
		at := localServer()
		if at == nil || !sameServer(at.Host, asked) {
			return "", ""
		}
		password, _ = at.User.Password()
		return at.User.Username(), password
	}
	return nil
}

// sameServer compares two addresses of this machine.
func sameServer(a, b string) bool {
	_, portA, errA := net.SplitHostPort(a)
	_, portB, errB := net.SplitHostPort(b)
	return errA == nil && errB == nil && portA == portB
}

// hostOf returns the host and port of an address as nats.go takes it, or "" if it says who connects.
func hostOf(server string) string {
	server = strings.TrimSpace(server)
	if !strings.Contains(server, "://") {
		server = "nats://" + server
	}
	at, err := url.Parse(server)
	if err != nil || at.User != nil {
		return ""
	}
	return net.JoinHostPort(at.Hostname(), cmp.Or(at.Port(), "4222"))
}
