package embedded

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// DefaultListen is the default address of NATS, which services expect.
	DefaultListen = "127.0.0.1:4222"
	// DefaultMaxPayload is the default of nats-server, so that what works here works there.
	DefaultMaxPayload = 1 << 20

	serverName = "tranche"
	// Until the NATS server is ready; then an error.
	readyTimeout = 10 * time.Second
	// Between logs of refused clients; each pause is twice the previous one.
	sameRefusal        = time.Minute
	longestSameRefusal = 16 * time.Minute
)

// NATSConfig configures the server. Only StoreDir is required.
type NATSConfig struct {
	// StoreDir holds JetStream's files, and nothing else.
	StoreDir string
	// Listen is a loopback address with a port; port 0 takes a free one. Empty: DefaultListen.
	Listen string
	// MaxPayload is the maximum message size in bytes, at most 64 MiB. 0: DefaultMaxPayload.
	MaxPayload int
	// URLFile receives the server's address with a password, created once: only readers of the file can connect. Empty:
	// any local user can.
	URLFile string
	// Key returns what encrypts JetStream's files, and must never change; empty: nothing does. It is called while no
	// other server uses the directory.
	Key func() (string, error)
	// Log may be nil. The server's notices are logged at debug level.
	Log *zap.Logger
}

func (c NATSConfig) withDefaults() (NATSConfig, error) {
	if c.StoreDir == "" {
		return c, errors.New("NATSConfig.StoreDir is empty")
	}
	dir, err := filepath.Abs(c.StoreDir)
	if err != nil {
		return c, fmt.Errorf("NATSConfig.StoreDir: %w", err)
	}
	c.StoreDir = dir
	c.Listen = cmp.Or(c.Listen, DefaultListen)
	c.MaxPayload = cmp.Or(c.MaxPayload, DefaultMaxPayload)
	if c.MaxPayload < 0 || c.MaxPayload > server.MAX_PAYLOAD_MAX_SIZE*8 {
		return c, fmt.Errorf("NATSConfig.MaxPayload is %d; it must lie between 1 and 64 MiB", c.MaxPayload)
	}
	c.Log = cmp.Or(c.Log, zap.NewNop())
	return c, nil
}

// NATS is a NATS server in this process. Its address stays the same across restarts.
type NATS struct {
	config NATSConfig
	host   string
	lock   *dirLock
	key    string // of config.Key
	// password is for natsUser; empty: none needed.
	password string

	mu      sync.Mutex // held while the server is replaced
	port    int        // fixed by the first start
	server  *server.Server
	store   storeView
	stopped bool

	quit    context.CancelFunc // ends the watch on the store
	watched chan struct{}
}

// StartNATS returns when clients can connect and JetStream works. It returns a [ListenError] for an address that is
// taken or not loopback, and a [LockedError] for a directory in use. The context governs the start only.
func StartNATS(ctx context.Context, config NATSConfig) (*NATS, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	host, port, err := parseListen(config.Listen)
	if err != nil {
		return nil, err
	}
	if err := makeDir(filepath.Dir(config.StoreDir)); err != nil {
		return nil, err
	}
	// Next to the directory, to survive its deletion.
	lock, err := lockDir(config.StoreDir, config.StoreDir+".lock")
	if err != nil {
		return nil, err
	}
	var key string
	if config.Key != nil {
		if key, err = config.Key(); err != nil {
			return nil, errors.Join(err, lock.release())
		}
	}
	n := &NATS{config: config, key: key, host: host, port: port, lock: lock, watched: make(chan struct{})}
	if config.URLFile != "" {
		if n.password, err = readPassword(config.URLFile); err != nil {
			return nil, errors.Join(err, lock.release())
		}
	}
	if err := n.start(ctx); err != nil {
		return nil, errors.Join(err, lock.release())
	}
	watch, quit := context.WithCancel(context.Background())
	n.quit = quit
	go n.watch(watch)
	return n, nil
}

// parseListen refuses network addresses: this server has no TLS, and its password permits everything.
func parseListen(addr string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err == nil && (port < 0 || port > 65535) {
		err = fmt.Errorf("there is no port %d", port)
	}
	if ip := net.ParseIP(host); err == nil && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		err = errors.New("the built-in server has no TLS and serves this machine only, like on 127.0.0.1:4222")
	}
	if err != nil {
		return "", 0, &ListenError{Addr: addr, Err: err}
	}
	return host, port, nil
}

// start runs a new server on the store. The caller holds mu, or has the only reference to n.
func (n *NATS) start(ctx context.Context) error {
	if err := n.checkPort(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(n.config.StoreDir, 0o700); err != nil {
		return fmt.Errorf("make NATS store: %w", err)
	}
	port := cmp.Or(n.port, server.RANDOM_PORT)
	options := &server.Options{
		ServerName: serverName, Host: n.host, Port: port, NoSigs: true,
		MaxPayload: int32(n.config.MaxPayload), MaxPending: int64(max(server.MAX_PENDING_SIZE, 2*n.config.MaxPayload)),
		JetStream: true, StoreDir: n.config.StoreDir,
	}
	if n.key != "" {
		options.JetStreamCipher, options.JetStreamKey = server.AES, n.key
	}
	if n.password != "" {
		options.Username, options.Password = natsUser, n.password
	}
	srv, err := server.NewServer(options)
	if err != nil {
		return fmt.Errorf("set up NATS server: %w", err)
	}
	log := &natsLog{to: n.config.Log.Sugar(), refused: backoff.Seldom{First: sameRefusal, Longest: longestSameRefusal}}
	if n.config.URLFile != "" {
		log.remedy = "; who connects needs the password: NATS_URL=$(cat " + n.config.URLFile + ")"
	}
	srv.SetLoggerV2(log, false, false, false)
	srv.Start()
	if err := awaitServer(ctx, srv, log); err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		return err
	}
	store, err := lookAtStore(n.config.StoreDir)
	if err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		return fmt.Errorf("check NATS store: %w", err)
	}
	n.server, n.store = srv, store
	if addr, ok := srv.Addr().(*net.TCPAddr); ok {
		n.port = addr.Port
	}
	if n.password != "" {
		if err := writeURL(n.config.URLFile, n.url(), n.password); err != nil {
			n.halt()
			return err
		}
	}
	n.config.Log.Info("NATS server is ready", zap.String("url", srv.ClientURL()), zap.String("store", n.config.StoreDir))
	return nil
}

// checkPort checks in advance, because the server only logs that it cannot listen.
func (n *NATS) checkPort(ctx context.Context) error {
	if n.port == 0 {
		return nil
	}
	addr := net.JoinHostPort(n.host, strconv.Itoa(n.port))
	if err := checkFree(ctx, addr); err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err
		}
		return &ListenError{Addr: addr, Err: err}
	}
	return nil
}

// checkFree checks that a TCP address can be listened on. A program being started by this process briefly inherits
// all its sockets, even closed ones: it waits for that, and opens its own socket under the fork lock.
func checkFree(ctx context.Context, address string) error {
	for tries := 1; ; tries++ { // counted, so that a stalled machine does not use them up
		err := listenOnce(ctx, address)
		if !errors.Is(err, syscall.EADDRINUSE) || tries == freeTries || backoff.Sleep(ctx, 5*time.Millisecond) != nil {
			return err
		}
	}
}

// freeTries take longer than a started program holds inherited sockets.
const freeTries = 100

func listenOnce(ctx context.Context, address string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return listener.Close()
}

func awaitServer(ctx context.Context, srv *server.Server, log *natsLog) error {
	limit := time.Now().Add(readyTimeout)
	for !srv.ReadyForConnections(100 * time.Millisecond) {
		if said := log.fatal(); said != "" {
			return fmt.Errorf("start NATS server: %s", said)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("start NATS server: %w", context.Cause(ctx))
		}
		if time.Now().After(limit) {
			return fmt.Errorf("start NATS server: not ready after %s", readyTimeout)
		}
	}
	if said := log.fatal(); said != "" {
		return fmt.Errorf("start NATS server: %s", said)
	}
	if !srv.JetStreamEnabled() {
		return errors.New("start NATS server: JetStream is not enabled")
	}
	return nil
}

// URL returns the address for clients, nats://host:port, without the password.
func (n *NATS) URL() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.url()
}

func (n *NATS) url() string { return "nats://" + net.JoinHostPort(n.host, strconv.Itoa(n.port)) }

// Login returns the option with the password, if there is one.
func (n *NATS) Login() nats.Option {
	if n.password == "" {
		return func(*nats.Options) error { return nil }
	}
	return nats.UserInfo(natsUser, n.password)
}

// Restart restarts the server at the same address on the same store. Clients see a lost connection.
func (n *NATS) Restart(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped {
		return errors.New("restart NATS server: it has been stopped")
	}
	n.halt()
	return n.start(ctx)
}

func (n *NATS) halt() {
	n.server.Shutdown()
	n.server.WaitForShutdown()
}

// Stop ends the server and releases the directory. Later calls do nothing. The server writes its state first and
// cannot be hurried: if ctx ends first, Stop returns an error while that continues.
func (n *NATS) Stop(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- n.end() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("stop NATS server: %w", context.Cause(ctx))
	}
}

func (n *NATS) end() error {
	n.quit()
	<-n.watched
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopped {
		return nil
	}
	n.stopped = true
	n.halt()
	return n.lock.release()
}

// natsLog forwards the server's log and keeps the first fatal line, the only place that says why a start failed.
type natsLog struct {
	to *zap.SugaredLogger

	refused backoff.Seldom // for refused clients
	remedy  string         // for them

	mu    sync.Mutex
	first string
}

func (l *natsLog) fatal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

func (l *natsLog) Fatalf(format string, v ...any) {
	l.mu.Lock()
	l.first = cmp.Or(l.first, fmt.Sprintf(format, v...))
	l.mu.Unlock()
	l.to.Errorf("nats: "+format, v...)
}

// Warnf drops the warning about an unhashed password: it is random and in a private file.
func (l *natsLog) Warnf(format string, v ...any) {
	if !strings.HasPrefix(format, "Plaintext passwords") {
		l.to.Warnf("nats: "+format, v...)
	}
}

// Errorf logs refused clients rarely, because they keep trying.
func (l *natsLog) Errorf(format string, v ...any) {
	switch line := fmt.Sprintf(format, v...); {
	case !strings.Contains(line, server.ErrAuthentication.Error()):
		l.to.Warn("nats: ", line)
	case l.refused.Now():
		l.to.Warn("nats: ", line, l.remedy)
	}
}

func (l *natsLog) Noticef(format string, v ...any) { l.to.Debugf("nats: "+format, v...) }
func (l *natsLog) Debugf(format string, v ...any)  { l.to.Debugf("nats: "+format, v...) }
func (l *natsLog) Tracef(format string, v ...any)  { l.to.Debugf("nats: "+format, v...) }

// natsUser is the only user of a server with a password.
const natsUser = "tranche"

func readPassword(file string) (string, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return rand.Text(), nil
	}
	if err != nil {
		return "", fmt.Errorf("read the password for NATS: %w", err)
	}
	if at, err := url.Parse(strings.TrimSpace(string(text))); err == nil && at.User != nil {
		if password, given := at.User.Password(); given && at.User.Username() == natsUser && password != "" {
			return password, nil
		}
	}
	return rand.Text(), nil
}

func writeURL(file, at, password string) error {
	address, err := url.Parse(at)
	if err != nil {
		return fmt.Errorf("write the address of NATS: %w", err)
	}
	address.User = url.UserPassword(natsUser, password)
	draft, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*") // created with mode 0600
	if err != nil {
		return fmt.Errorf("write the address of NATS: %w", err)
	}
	_, err = draft.WriteString(address.String() + "\n")
	if err = errors.Join(err, draft.Close()); err == nil {
		err = os.Rename(draft.Name(), file)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write the address of NATS: %w", err), os.Remove(draft.Name()))
	}
	return nil
}
