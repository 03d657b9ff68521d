package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// DefaultListen is where the API is found unless told otherwise.
const DefaultListen = "127.0.0.1:8480"

// Listen opens a loopback address, like "127.0.0.1:8480". Any other is refused: without authentication, everybody on
// the network could start and cancel runs.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen %q is not host:port, like %s", address, DefaultListen)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("--listen %s is not a loopback address, and the API has no authentication yet; "+
			"listen on %s and reach it through a tunnel", address, DefaultListen)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("the address %s of the API is taken, perhaps by another tranche serve; "+
			"choose one with --listen (port 0 takes a free one)", address)
	}
	if err != nil {
		return nil, fmt.Errorf("open the API at %s (--listen): %w", address, err)
	}
	return listener, nil
}
