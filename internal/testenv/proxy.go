package testenv

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

// Proxy forwards TCP connections to a target and breaks them on demand. It is safe for concurrent use.
type Proxy struct {
	target   string
	listener net.Listener
	ctx      context.Context // ends with the proxy; a dial obeys it
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu      sync.Mutex
	refuse  bool
	stalled [2]bool
	changed chan struct{} // closed and replaced whenever a fault comes or goes
	conns   map[net.Conn]struct{}
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
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("start proxy to %s: %v", target, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{
		target: target, listener: listener, ctx: ctx, cancel: cancel,
		changed: make(chan struct{}), conns: make(map[net.Conn]struct{}),
	}
	p.running.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr returns the host:port that clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Cut drops every connection and every new one, until Heal.
func (p *Proxy) Cut() {
	p.set(func() { p.refuse = true })
	p.drop()
}

// Stall keeps connections open and takes new ones, but lets nothing through in the directions named (none named: in
// both), until Heal. What was sent meanwhile arrives then: it is a network that lost its way, not the data.
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

// Heal ends every fault.
func (p *Proxy) Heal() {
	p.set(func() { p.refuse, p.stalled = false, [2]bool{} })
}

// Connections returns how many clients are connected, so that a test can tell that its fault had something to hit.
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
	network := "tcp"
	if len(p.target) > 0 && p.target[0] == '/' {
		network = "unix"
	}
	var dialer net.Dialer
	target, err := dialer.DialContext(p.ctx, network, p.target)
	if err != nil {
		return
	}
	defer target.Close()
	if !p.enter(client, target) {
		return
	}
	defer p.leave(client, target)
	var both sync.WaitGroup
	for way, pair := range [][2]net.Conn{Up: {client, target}, Down: {target, client}} {
		both.Go(func() {
			p.copy(Direction(way), pair[0], pair[1])
			// Either end being gone ends both: a half-open connection is a fault of its own.
			_, _ = client.Close(), target.Close()
		})
	}
	both.Wait()
}

func (p *Proxy) enter(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
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

// pass waits while the direction is stalled and reports false once connections are refused.
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
