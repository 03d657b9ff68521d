package endpoints

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// reconnectWait is short so that a service is back within a second of its server.
	reconnectWait = 250 * time.Millisecond
	// longestRefused caps the pause between attempts at servers that refuse this user, doubled from reconnectWait. They
	// log each attempt.
	longestRefused = 4 * time.Second
	// sameTrouble is the interval for logging a persistent refusal or outage, doubled up to longestSameTrouble.
	sameTrouble        = time.Minute
	longestSameTrouble = 16 * time.Minute
	// A server that leaves pingsOut pings unanswered is considered stalled, and another one of the cluster is tried. The
	// default of nats.go is two minutes.
	pingInterval = 2 * time.Second
	pingsOut     = 2
	// writeTimeout bounds a blocked write. Until then nats.go holds the lock of the connection, which blocks pings and
	// status queries.
	writeTimeout = 3 * time.Second
)

// Options returns options for a long-lived connection: it reconnects indefinitely and leaves a stalled server.
func Options() []nats.Option {
	return []nats.Option{
		nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), // a starting server may refuse users at first
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(pingsOut),
		nats.FlusherTimeout(writeTimeout), nats.ReconnectOnFlusherError(),
		nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(reconnectWait/2, reconnectWait/2),
	}
}

// Connect connects to NATS with options from the environment, then opts:
//
//	NATS_URL                   servers, comma-separated; default that of `tranche serve`, or nats://127.0.0.1:4222
//	NATS_CREDS                 a credentials file
//	NATS_NKEY                  a file with an nkey seed
//	NATS_USER, NATS_PASSWORD   a user
//	NATS_CA, NATS_CERT, NATS_KEY   files for TLS
//	NATS_INBOX_PREFIX          where answers come in, for users that may not read all of _INBOX
//	NATS_CONTEXT               a context of the nats CLI, used when NATS_URL is not set
//	TRANCHE_DATA_DIR           the data directory of `tranche serve`, if not the default
//
// Without credentials it logs in to the local NATS server that `tranche serve` runs, with the password that only the
// same OS user can read.
//
// It does not fail if servers are unreachable or refuse this user, but retries indefinitely, as after a lost
// connection. An error means that a variable is invalid. Connection losses, refusals and denied permissions go to
// standard error, or to the logger of LogTo.
func Connect(opts ...nats.Option) (*nats.Conn, error) {
	all := append(append(Options(), nats.Name(filepath.Base(os.Args[0])), LogTo(serve.Speaker())), fromEnvironment()...)
	all = append(all, opts...)
	if name := os.Getenv("NATS_CONTEXT"); name != "" && os.Getenv("NATS_URL") == "" {
		nc, _, err := natscontext.Connect(name, all...)
		if err != nil {
			return nil, fmt.Errorf("connect to NATS by context %q (NATS_CONTEXT): %w", name, err)
		}
		return nc, nil
	}
	url := os.Getenv("NATS_URL")
	if at := localServer(); url == "" && at != nil {
		url = at.Scheme + "://" + at.Host
	}
	nc, err := nats.Connect(cmp.Or(url, nats.DefaultURL), append(all, localLogin)...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS (NATS_URL and the other NATS_ variables): %w", err)
	}
	return nc, nil
}

// fromEnvironment returns the options set by the environment. The options read files when they are applied.
func fromEnvironment() []nats.Option {
	var opts []nats.Option
	if file := os.Getenv("NATS_CREDS"); file != "" {
		opts = append(opts, nats.UserCredentials(file))
	}
	if file := os.Getenv("NATS_NKEY"); file != "" {
		opts = append(opts, nkey(file))
	}
	if user := os.Getenv("NATS_USER"); user != "" {
		opts = append(opts, nats.UserInfo(user, os.Getenv("NATS_PASSWORD")))
	}
	if prefix := os.Getenv("NATS_INBOX_PREFIX"); prefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(prefix))
	}
	if file := os.Getenv("NATS_CA"); file != "" {
		opts = append(opts, nats.RootCAs(file))
	}
	if cert, key := os.Getenv("NATS_CERT"), os.Getenv("NATS_KEY"); cert != "" || key != "" {
		opts = append(opts, nats.ClientCert(cert, key))
	}
	return opts
}

// nkey defers reading the seed so that nats.Connect reports the error.
func nkey(file string) nats.Option {
	return func(o *nats.Options) error {
		option, err := nats.NkeyOptionFromSeed(file)
		if err != nil {
			return fmt.Errorf("NATS_NKEY %s: %w", file, err)
		}
		return option(o)
	}
}

// LogTo logs connection events and denied permissions to log, and backs off from servers that refuse the user.
func LogTo(log *zap.Logger) nats.Option {
	return func(o *nats.Options) error {
		refused := backoff.Seldom{First: sameTrouble, Longest: longestSameTrouble}
		away := backoff.Seldom{First: sameTrouble, Longest: longestSameTrouble}
		var refusals atomic.Int32 // consecutive
		refusal := func(nc *nats.Conn, err error) bool {
			if !stream.LoginRefused(err) {
				return false
			}
			if refused.Now() {
				log.Error("NATS refuses this user; trying again until it does not: "+serve.RefusedRemedy,
					zap.Strings("servers", nc.Servers()), zap.Error(err))
			}
			return true
		}
		o.CustomReconnectDelayCB = func(int) time.Duration {
			return backoff.Nth(reconnectWait, longestRefused, int(refusals.Load())) + rand.N(reconnectWait/2)
		}
		o.ReconnectErrCB = func(nc *nats.Conn, err error) { // the only callback before the first connection
			switch {
			case nc.IsClosed():
			case refusal(nc, err):
				refusals.Add(1)
			default:
				refusals.Store(0)
				if away.Now() {
					remedy := serve.AwayRemedy
					if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
						remedy = "name the authority that signed its certificate with NATS_CA=FILE"
					}
					log.Warn("NATS cannot be reached; trying until it can: "+remedy,
						zap.Strings("servers", nc.Servers()), zap.Error(err))
				}
			}
		}
		o.ConnectedCB = func(nc *nats.Conn) {
			refusals.Store(0)
			refused.Reset()
			away.Reset()
			log.Info("connected to NATS", zap.String("server", nc.ConnectedUrlRedacted()))
		}
		o.AsyncErrorCB = func(nc *nats.Conn, _ *nats.Subscription, err error) {
			if !refusal(nc, err) {
				logReported(log, nc, err)
			}
		}
		o.DisconnectedErrCB = func(nc *nats.Conn, err error) {
			if !nc.IsClosed() {
				log.Warn("the connection to NATS is lost; reconnecting", zap.Error(err))
			}
		}
		o.ReconnectedCB = func(nc *nats.Conn) {
			refusals.Store(0)
			refused.Reset()
			away.Reset()
			log.Info("connected to NATS again", zap.String("server", nc.ConnectedUrlRedacted()))
		}
		return nil
	}
}

// logReported logs an error that NATS reports on a connection that stays.
func logReported(log *zap.Logger, nc *nats.Conn, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		log.Warn("NATS reports an error", zap.Error(err))
		return
	}
	level := zap.ErrorLevel
	if _, _, ours := stream.ReadViolation(err.Error(), nc.Opts.InboxPrefix); ours {
		level = zap.DebugLevel // retried; a Service logs it once, in Permissions.Run
	}
	log.Log(level, "NATS denies this user a subject; grant it in the server's permissions", zap.Error(err))
}

// localServer returns the address and password of this machine's `tranche serve`, or nil if this user has none.
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

// localLogin logs in to the local server if the connection has no other credentials. It reads the file at each
// attempt, because the server may start after the service.
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

// sameServer compares the ports of two loopback addresses.
func sameServer(a, b string) bool {
	_, portA, errA := net.SplitHostPort(a)
	_, portB, errB := net.SplitHostPort(b)
	return errA == nil && errB == nil && portA == portB
}

// hostOf returns the host and port of a NATS address, or "" if it is invalid or has credentials.
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
