package embedded

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// NATSCluster is three clustered NATS servers in this process, for tests only: nothing in it is meant to last.
type NATSCluster struct {
	servers []*server.Server
	release []func() // releases a port
}

// StartNATSCluster returns when streams with three replicas can be created. The servers listen on free loopback ports
// and store files below dir.
func StartNATSCluster(ctx context.Context, dir string) (*NATSCluster, error) {
	var ports []int
	var routes []*url.URL
	c := &NATSCluster{}
	for range 3 {
		port, release, err := QuietPort(ctx)
		if err != nil {
			c.Stop()
			return nil, err
		}
		c.release = append(c.release, release)
		ports = append(ports, port)
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	}
	for i, port := range ports {
		name := fmt.Sprintf("%s-%d", serverName, i)
		s, err := server.NewServer(&server.Options{
			ServerName: name, Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true, JetStream: true,
			StoreDir: filepath.Join(dir, name), Routes: routes,
			Cluster: server.ClusterOpts{Name: serverName, Host: "127.0.0.1", Port: port},
		})
		if err != nil {
			c.Stop()
			return nil, fmt.Errorf("set up NATS server %s: %w", name, err)
		}
		s.Start()
		c.servers = append(c.servers, s)
	}
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !c.together() {
		select {
		case <-ctx.Done():
			c.Stop()
			return nil, fmt.Errorf("wait for NATS servers to become a cluster: %w", ctx.Err())
		case <-poll.C:
		}
	}
	return c, nil
}

// QuietPort returns a free loopback TCP port, reserved until release or the end of the process: servers must know
// their peers' ports before they start, and find their own still free after a restart. The range is outside the
// kernel's ephemeral ports, and a bound UDP port marks it as taken for other callers.
func QuietPort(ctx context.Context) (port int, release func(), err error) {
	const first, last = 12000, 32000 // below Linux's ephemeral range
	for range 100 {
		port = first + rand.IntN(last-first)
		if release, err = hold(ctx, fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, release, nil
		}
	}
	return 0, nil, fmt.Errorf("find a free port: %w", err)
}

func hold(ctx context.Context, address string) (release func(), err error) {
	var config net.ListenConfig
	held, err := config.ListenPacket(ctx, "udp", address)
	if err != nil {
		return nil, err
	}
	if err := checkFree(ctx, address); err != nil {
		_ = held.Close()
		return nil, err
	}
	return func() { _ = held.Close() }, nil
}

func (c *NATSCluster) together() bool {
	leaders := 0
	for _, s := range c.servers {
		if !s.JetStreamIsCurrent() {
			return false
		}
		if s.JetStreamIsLeader() {
			leaders++
		}
	}
	return leaders == 1
}

// URLs returns the servers' client URLs.
func (c *NATSCluster) URLs() []string {
	var urls []string
	for _, s := range c.servers {
		urls = append(urls, s.ClientURL())
	}
	return urls
}

// Stop ends the servers.
func (c *NATSCluster) Stop() {
	for _, s := range c.servers {
		s.Shutdown()
		s.WaitForShutdown()
	}
	for _, release := range c.release {
		release()
	}
}
