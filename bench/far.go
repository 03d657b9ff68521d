package main

import (
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"
)

// far stands before a database and has everything arrive later: a network that is long, not narrow.
type far struct {
	listener net.Listener
	target   string // a unix socket, or an address
	later    time.Duration
	url      string // of the database, through it

	mu    sync.Mutex
	conns []net.Conn
	done  bool
}

func openFar(database string, later time.Duration) (*far, error) {
	u, err := url.Parse(database)
	if err != nil {
		return nil, fmt.Errorf("the database's URL: %w", err)
	}
	f := &far{target: u.Host, later: later}
	query := u.Query()
	if host := query.Get("host"); host != "" {
		f.target = host + "/.s.PGSQL." + query.Get("port")
		query.Del("host")
		query.Del("port")
	}
	if f.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("listen before the database: %w", err)
	}
	u.Host, u.RawQuery = f.listener.Addr().String(), query.Encode()
	f.url = u.String()
	go f.accept()
	return f, nil
}

func (f *far) accept() {
	for {
		client, err := f.listener.Accept()
		if err != nil {
			return
		}
		network := "tcp"
		if f.target[0] == '/' {
			network = "unix"
		}
		target, err := net.Dial(network, f.target)
		if err != nil {
			client.Close()
			continue
		}
		f.mu.Lock()
		f.conns = append(f.conns, client, target)
		if f.done {
			client.Close()
			target.Close()
		}
		f.mu.Unlock()
		go f.carry(client, target)
		go f.carry(target, client)
	}
}

type arrival struct {
	data []byte
	due  time.Time
}

// carry brings bytes over, and ends both connections with either.
func (f *far) carry(from, to net.Conn) {
	onTheWay := make(chan arrival, 1024)
	go func() {
		defer from.Close()
		defer to.Close()
		for a := range onTheWay {
			time.Sleep(time.Until(a.due))
			if _, err := to.Write(a.data); err != nil {
				break
			}
		}
		for range onTheWay { // whoever reads is not to wait
		}
	}()
	defer close(onTheWay)
	for {
		buf := make([]byte, 32<<10)
		n, err := from.Read(buf)
		if n > 0 {
			onTheWay <- arrival{buf[:n], time.Now().Add(f.later)}
		}
		if err != nil {
			return
		}
	}
}

func (f *far) close() {
	f.listener.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = true
	for _, c := range f.conns {
		c.Close()
	}
}
