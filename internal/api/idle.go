package api

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// How many connections may be open without a request: from one address (a proxy of ours has as many as all), and in
// all.
const (
	maxIdleEach = 128
	maxIdle     = 1024
)

// idleConns closes the connections that have been without a request for the longest when there are too many. They cost
// memory and a file each, and nobody needs them.
type idleConns struct {
	each, all int

	mu     sync.Mutex
	order  *list.List // of idleConn, the latest first
	places map[net.Conn]*list.Element
	count  map[netip.Addr]int
}

type idleConn struct {
	conn net.Conn
	from netip.Addr
}

func newIdleConns(each, all int) *idleConns {
	return &idleConns{each: each, all: all, order: list.New(), places: map[net.Conn]*list.Element{},
		count: map[netip.Addr]int{}}
}

// track is http.Server's ConnState.
func (i *idleConns) track(conn net.Conn, state http.ConnState) {
	for _, over := range i.note(conn, state == http.StateNew || state == http.StateIdle) {
		if encrypted, ok := over.(*tls.Conn); ok {
			over = encrypted.NetConn() // which says no goodbye that somebody could keep waiting
		}
		_ = over.Close() // whatever it says, it is of no more use
	}
}

// note returns the connections that are too many.
func (i *idleConns) note(conn net.Conn, idle bool) (over []net.Conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if place := i.places[conn]; place != nil {
		i.remove(place)
	}
	if !idle {
		return nil
	}
	from := addressOf(conn)
	i.places[conn] = i.order.PushFront(idleConn{conn, from})
	i.count[from]++
	for place := i.order.Back(); place != nil && (i.count[from] > i.each || i.order.Len() > i.all); {
		earlier := place.Prev()
		one := place.Value.(idleConn) //nolint:forcetypeassert // nothing else is in it
		if i.order.Len() > i.all || one.from == from {
			over = append(over, one.conn)
			i.remove(place)
		}
		place = earlier
	}
	return over
}

func (i *idleConns) remove(place *list.Element) {
	one := i.order.Remove(place).(idleConn) //nolint:forcetypeassert // nothing else is in it
	delete(i.places, one.conn)
	if i.count[one.from]--; i.count[one.from] == 0 {
		delete(i.count, one.from)
	}
}

func addressOf(conn net.Conn) netip.Addr {
	at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap()
}
