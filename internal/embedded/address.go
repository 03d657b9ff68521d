package embedded

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	// socketPathLimit is below what the kernels allow for a socket's path: 107 bytes on Linux, 103 on macOS.
	socketPathLimit = 100
	socketPort      = 5432
)

// address is where the server listens: a socket in a private directory, or 127.0.0.1 where that path is too long.
type address struct {
	socketDir string // empty: TCP
	port      int
	password  string
}

// chooseAddress returns the socket's address, or a free TCP port.
func (l layout) chooseAddress(ctx context.Context) (address, error) {
	if len(filepath.Join(l.run, ".s.PGSQL."+strconv.Itoa(socketPort))) < socketPathLimit {
		return address{socketDir: l.run, port: socketPort}, nil
	}
	password, err := os.ReadFile(l.password)
	if err != nil {
		return address{}, fmt.Errorf("read the cluster's password: %w", err)
	}
	port, err := freePort(ctx)
	if err != nil {
		return address{}, err
	}
	return address{port: port, password: strings.TrimSpace(string(password))}, nil
}

// freePort returns a port that was free a moment ago. Somebody may take it before PostgreSQL does; the start is then
// tried again with another.
func freePort(ctx context.Context) (int, error) {
	var config net.ListenConfig
	ln, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := ln.Addr().(*net.TCPAddr).Port
	return port, ln.Close()
}

// url leaves nothing to the environment's PG variables.
func (a address) url(database string) string {
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Path: "/" + database}
	q := url.Values{"sslmode": {"disable"}}
	if a.socketDir != "" {
		q.Set("host", a.socketDir)
		q.Set("port", strconv.Itoa(a.port))
	} else {
		u.User = url.UserPassword(superuser, a.password)
		u.Host = "127.0.0.1:" + strconv.Itoa(a.port)
	}
	// A plus sign for a blank is read by net/url, but not by libpq.
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	return u.String()
}
