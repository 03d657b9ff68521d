package endpoints

import (
	"cmp"
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
	// longestRefused is the longest pause before the next try at servers that refuse this user, doubled from
	// reconnectWait: they log each try.
	longestRefused = 4 * time.Second
	// A server that refuses a user, or is not there, is logged again after so long; each pause is twice the one before.
	sameTrouble        = time.Minute
	longestSameTrouble = 16 * time.Minute
	// pingInterval is how often a connection asks its server for a heartbeat. One that leaves pingsOut of them
	// unanswered is stalled, or is out of reach: another server of the cluster is tried. nats.go's own is two minutes.
	pingInterval = 2 * time.Second
	pingsOut     = 2
	// writeTimeout is how long a server may leave what is written to it unread. nats.go holds the lock of the connection
	// meanwhile, so that nothing else of it moves: neither its pings nor the question whether it is connected.
	writeTimeout = 3 * time.Second
)

// Options is how a connection lives on that is to last: it is tried indefinitely, and left when its server is stalled.
func Options() []nats.Option {
	return []nats.Option{
		nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), // a server that starts may refuse users for a while, and takes them then
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(pingsOut),
		nats.FlusherTimeout(writeTimeout), nats.ReconnectOnFlusherError(),
		nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(reconnectWait/2, reconnectWait/2),
	}
}

// Connect connects to NATS as the environment says, and then as opts say:
//
//	NATS_URL                   servers, comma-separated; default that of `tranche serve`, or nats://127.0.0.1:4222
//	NATS_CREDS                 a credentials file
//	NATS_NKEY                  a file with an nkey seed
//	NATS_USER, NATS_PASSWORD   a user
//	NATS_CA, NATS_CERT, NATS_KEY   files for TLS
//	NATS_INBOX_PREFIX          where answers come in, for users that may not read all of _INBOX
//	NATS_CONTEXT               a context of the nats tool, used when NATS_URL is not set
//	TRANCHE_DATA_DIR           where `tranche serve` keeps its data, if not in its usual place
//
// The NATS server that `tranche serve` runs itself takes a password that it has made, and that only its user can read:
// who says nothing of a user, and connects to that server as the same user, is let in by it.
//
// It does not fail when no server is there, or one that refuses this user: it goes on trying, indefinitely, as it does
// after a loss. An error means that something in the environment cannot be used. Losses, refusals
// and denied permissions are said on standard error, or to the log that LogTo names.
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
	url := cmp.Or(os.Getenv("NATS_URL"), defaultURL())
	nc, err := nats.Connect(url, append(all, localLogin)...)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS (NATS_URL and the other NATS_ variables): %w", err)
	}
	return nc, nil
}

// fromEnvironment returns the options that the environment asks for. Files are read by the options themselves.
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

// nkey puts the reading of the seed where nats.Connect reports its error.
func nkey(file string) nats.Option {
	return func(o *nats.Options) error {
		option, err := nats.NkeyOptionFromSeed(file)
		if err != nil {
			return fmt.Errorf("NATS_NKEY %s: %w", file, err)
		}
		return option(o)
	}
}

// LogTo has a connection tell log what happens to it, denied permissions among that, and try servers that refuse its
// user more and more seldom.
func LogTo(log *zap.Logger) nats.Option {
	return func(o *nats.Options) error {
		refused := backoff.Seldom{First: sameTrouble, Longest: longestSameTrouble}
		away := backoff.Seldom{First: sameTrouble, Longest: longestSameTrouble}
		var refusals atomic.Int32 // one at a time
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
		o.ReconnectErrCB = func(nc *nats.Conn, err error) { // the only one to hear of it before there was a connection
			switch {
			case nc.IsClosed():
			case refusal(nc, err):
				refusals.Add(1)
			default:
				refusals.Store(0)
				if away.Now() {
					log.Warn("NATS cannot be reached; trying until it can: "+serve.AwayRemedy,
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
			if refusal(nc, err) {
				return
			}
			if errors.Is(err, nats.ErrPermissionViolation) {
				level := zap.ErrorLevel
				if _, _, ours := stream.ReadViolation(err.Error(), nc.Opts.InboxPrefix); ours {
					level = zap.DebugLevel // retried and again; a Service tells it once, by Permissions.Run
				}
				log.Log(level, "NATS denies this user a subject; grant it in the server's permissions", zap.Error(err))
				return
			}
			log.Warn("NATS reports an error", zap.Error(err))
		}
		o.DisconnectedErrCB = func(nc *nats.Conn, err error) {
			if !nc.IsClosed() {
				log.Warn("the connection to NATS is lost; trying to get it back", zap.Error(err))
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
