package testenv

import (
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Proxy forwards TCP connections to a target and breaks them on demand. It is safe for concurrent use.
type Proxy struct {
	listener net.Listener
	ctx      context.Context // ends with the proxy; dials use it
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu      sync.Mutex
	target  string
	refuse  bool
	stalled [2]bool
	delay   time.Duration
	long    bool          // new connections can be delayed
	changed chan struct{} // closed and replaced at each change of faults
	conns   map[net.Conn]struct{}
	dropped int // how often all connections were dropped
}

// Direction is one way through a proxy.
type Direction int

const (
	// Up leads from the client to the target.
	Up Direction = iota
	// Down leads from the target to the client.
	Down
)

// NewProxy forwards to target, a host:port or the path of a unix socket, until the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener := Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{
		listener: listener, ctx: ctx, cancel: cancel, target: target,
		changed: make(chan struct{}), conns: make(map[net.Conn]struct{}),
	}
	p.running.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Through returns the URL of a database that leads through a proxy.
func Through(t testing.TB, database string) (through string, p *Proxy) {
	t.Helper()
	to := Must(pgconn.ParseConfig(database))(t)
	_, address := pgconn.NetworkAddress(to.Host, to.Port)
	p = NewProxy(t, address)
	at := url.URL{Scheme: "postgres", User: url.UserPassword(to.User, to.Password), Host: p.Addr(), Path: to.Database,
		RawQuery: "sslmode=disable"}
	return at.String(), p
}

func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut drops every connection, and new ones, until Heal.
func (p *Proxy) Cut() {
	p.set(func() { p.refuse = true })
	p.drop()
}

// Stall keeps connections open and accepts new ones, but delivers nothing in the given directions (default: both)
// until Heal. Then everything sent meanwhile arrives.
func (p *Proxy) Stall(ways ...Direction) {
	if len(ways) == 0 {
		ways = []Direction{Up, Down}
	}
	p.set(func() {
		for _, way := range ways {
			p.stalled[way] = true
		}
	})
}

// Delay delays everything in each direction, without limiting throughput, until it is set again. It only applies to
// connections made after the first call.
func (p *Proxy) Delay(by time.Duration) {
	p.set(func() { p.delay, p.long = by, true })
}

func (p *Proxy) Heal() {
	p.set(func() { p.refuse, p.stalled = false, [2]bool{} })
}

// Turn directs new connections to another target, and drops the existing ones.
func (p *Proxy) Turn(target string) {
	p.set(func() { p.target = target })
	p.drop()
}

// Connections returns the number of connected clients, so that a test can check that its fault hits some.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) / 2
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropped++
	for conn := range p.conns {
		_ = conn.Close()
	}
}

func (p *Proxy) close() {
	p.cancel()
	_ = p.listener.Close()
	p.Cut()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	p.mu.Lock()
	to, refuse, dropped := p.target, p.refuse, p.dropped
	p.mu.Unlock()
	if refuse { // the target is not contacted: PostgreSQL would start a process for each attempt
		return
	}
	network := "tcp"
	if len(to) > 0 && to[0] == '/' {
		network = "unix"
	}
	var dialer net.Dialer
	target, err := dialer.DialContext(p.ctx, network, to)
	if err != nil {
		return
	}
	defer target.Close()
	if !p.enter(dropped, client, target) {
		return
	}
	defer p.leave(client, target)
	var both sync.WaitGroup
	for way, pair := range [][2]net.Conn{Up: {client, target}, Down: {target, client}} {
		both.Go(func() {
			p.copy(Direction(way), pair[0], pair[1])
			// The end of one side ends both: a half-open connection would be another fault.
			_, _ = client.Close(), target.Close()
		})
	}
	both.Wait()
}

// enter registers a connection, unless all were dropped since it began.
func (p *Proxy) enter(dropped int, conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse || p.dropped != dropped {
		return false
	}
	for _, conn := range conns {
		p.conns[conn] = struct{}{}
	}
	return true
}

func (p *Proxy) leave(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		delete(p.conns, conn)
	}
}

func (p *Proxy) copy(way Direction, from io.Reader, to io.Writer) {
	p.mu.Lock()
	long := p.long
	p.mu.Unlock()
	if long {
		from = p.late(from)
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !p.pass(way) {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// late returns a reader of the same data, later by the delay, regardless of the amount in transit.
func (p *Proxy) late(from io.Reader) io.Reader {
	onTheWay := make(chan arrival, 1024)
	p.running.Go(func() {
		defer close(onTheWay)
		for {
			buf := make([]byte, 32<<10)
			n, err := from.Read(buf)
			p.mu.Lock()
			due := time.Now().Add(p.delay)
			p.mu.Unlock()
			select {
			case onTheWay <- arrival{buf[:n], due}:
			case <-p.ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	return &lateReader{onTheWay: onTheWay, closed: p.ctx.Done()}
}

// arrival is data in transit.
type arrival struct {
	data []byte
	due  time.Time
}

type lateReader struct {
	onTheWay <-chan arrival
	closed   <-chan struct{}
	rest     []byte
}

func (r *lateReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		next, open := <-r.onTheWay
		if !open {
			return 0, io.EOF
		}
		select {
		case <-time.After(time.Until(next.due)):
		case <-r.closed:
			return 0, io.EOF
		}
		r.rest = next.data
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// pass waits while the direction is stalled. It returns false once connections are refused.
func (p *Proxy) pass(way Direction) bool {
	for {
		p.mu.Lock()
		stalled, refuse, changed := p.stalled[way], p.refuse, p.changed
		p.mu.Unlock()
		if refuse || !stalled {
			return !refuse
		}
		<-changed
	}
}
