package api

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"

	"github.com/tranchehq/tranche/internal/access"
)

// How many connections may be open without a request: from one address, which of IPv6 is a network of 64 bits (a proxy
// of ours has as many as all), and in all.
const (
	maxIdleEach = 128
	maxIdle     = 1024
)

// idleConns closes the connections that have been without a request for the longest when there are too many from an
// address, or from the one that has most when there are too many in all. They cost memory and a file each, and nobody
// needs them.
type idleConns struct {
	each, all int

	mu     sync.Mutex
	order  *list.List // of idleConn, the latest first
	places map[net.Conn]*list.Element
	count  map[netip.Prefix]int
}

type idleConn struct {
	conn net.Conn
	from netip.Prefix
}

func newIdleConns(each, all int) *idleConns {
	return &idleConns{each: each, all: all, order: list.New(), places: map[net.Conn]*list.Element{},
		count: map[netip.Prefix]int{}}
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
	from := networkOf(conn)
	i.places[conn] = i.order.PushFront(idleConn{conn, from})
	i.count[from]++
	switch {
	case i.count[from] > i.each:
		return []net.Conn{i.oldest(from)}
	case i.order.Len() > i.all:
		return []net.Conn{i.oldest(i.most())}
	}
	return nil
}

// most returns from where most come.
func (i *idleConns) most() (from netip.Prefix) {
	for each, n := range i.count {
		if n > i.count[from] {
			from = each
		}
	}
	return from
}

// oldest gives up the connection that has been idle for the longest of those that come from there.
func (i *idleConns) oldest(from netip.Prefix) net.Conn {
	for place := i.order.Back(); ; place = place.Prev() {
		if one := place.Value.(idleConn); one.from == from { //nolint:forcetypeassert // nothing else is in it
			i.remove(place)
			return one.conn
		}
	}
}

func (i *idleConns) remove(place *list.Element) {
	one := i.order.Remove(place).(idleConn) //nolint:forcetypeassert // nothing else is in it
	delete(i.places, one.conn)
	if i.count[one.from]--; i.count[one.from] == 0 {
		delete(i.count, one.from)
	}
}

func networkOf(conn net.Conn) netip.Prefix {
	at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Prefix{}
	}
	return access.NetworkOf(at.Addr())
}
