package httpfetch

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/tranchehq/tranche/internal/connections"
)

// addressError says that an address is not to be reached. It does not say which: who writes plans may learn that a name
// is not to be asked, and not what it stands for in the operator's network.
type addressError struct{}

func (*addressError) Error() string {
	return "it has an address of this machine or of a private network; the operator's http.allow_private says which of " +
		"those may be reached"
}

// special are ranges that netip does not know of, which no public service has. Some of them contain an address of the
// fourth version, by which a private one could be reached.
var special = []netip.Prefix{ //nolint:gochecknoglobals // never changed
	netip.MustParsePrefix("0.0.0.0/8"),       // this network
	netip.MustParsePrefix("100.64.0.0/10"),   // between a carrier and its customers
	netip.MustParsePrefix("192.0.0.0/24"),    // protocols
	netip.MustParsePrefix("192.0.2.0/24"),    // documentation
	netip.MustParsePrefix("192.88.99.0/24"),  // relays
	netip.MustParsePrefix("198.18.0.0/15"),   // benchmarks
	netip.MustParsePrefix("198.51.100.0/24"), // documentation
	netip.MustParsePrefix("203.0.113.0/24"),  // documentation
	netip.MustParsePrefix("240.0.0.0/4"),     // reserved, and broadcast
	netip.MustParsePrefix("::/96"),           // contains one of the fourth version
	netip.MustParsePrefix("::ffff:0:0:0/96"), // likewise
	netip.MustParsePrefix("64:ff9b::/96"),    // likewise
	netip.MustParsePrefix("64:ff9b:1::/48"),  // likewise
	netip.MustParsePrefix("100::/64"),        // discard
	netip.MustParsePrefix("2001::/23"),       // protocols, and Teredo, which contains one
	netip.MustParsePrefix("2001:db8::/32"),   // documentation
	netip.MustParsePrefix("2002::/16"),       // contains one of the fourth version
	netip.MustParsePrefix("3fff::/20"),       // documentation
	netip.MustParsePrefix("5f00::/16"),       // segment routing
	netip.MustParsePrefix("fec0::/10"),       // private, once
}

// public reports whether an address is one of the public internet.
func public(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	return address.IsGlobalUnicast() && !address.IsPrivate() &&
		!slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(address) })
}

// checkAddress returns an *addressError for an address that must not be reached.
func checkAddress(at netip.AddrPort, allowed []connections.Network) error {
	if public(at.Addr()) || slices.ContainsFunc(allowed, func(n connections.Network) bool { return n.Contains(at) }) {
		return nil
	}
	return &addressError{}
}

// guard is called for each address that is about to be connected to, after its name was looked up.
func (c *Client) guard(_ context.Context, network, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || network != "tcp4" && network != "tcp6" {
		return fmt.Errorf("connect: %s is no address", network)
	}
	return checkAddress(at, c.conns.HTTP.AllowPrivate)
}

func (c *Client) dialer() *net.Dialer {
	return &net.Dialer{Timeout: c.cfg.ConnectTimeout, Resolver: c.cfg.Resolver, ControlContext: c.guard}
}
