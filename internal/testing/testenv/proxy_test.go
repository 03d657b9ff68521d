package testenv_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// echoServer answers every byte with the same byte.
func echoServer(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	t.Cleanup(func() {
		_ = ln.Close()
		<-done
	})
	return ln.Addr().String()
}

func open(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func send(t *testing.T, conn net.Conn, b byte) {
	t.Helper()
	if _, err := conn.Write([]byte{b}); err != nil {
		t.Fatal(err)
	}
}

func receive(conn net.Conn, within time.Duration) (byte, error) {
	_ = conn.SetReadDeadline(time.Now().Add(within))
	var b [1]byte
	_, err := io.ReadFull(conn, b[:])
	return b[0], err
}

func mustReceive(t *testing.T, conn net.Conn, want byte) {
	t.Helper()
	if got, err := receive(conn, time.Minute); err != nil || got != want {
		t.Fatalf("received %q, %v; want %q", got, err, want)
	}
}

func TestProxyForwardsStallsAndHeals(t *testing.T) {
	t.Parallel()
	for name, ways := range map[string][]testenv.Direction{
		"both": nil, "up": {testenv.Up}, "down": {testenv.Down},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := testenv.NewProxy(t, echoServer(t))
			conn := open(t, p.Addr())
			send(t, conn, 'a')
			mustReceive(t, conn, 'a')
			p.Stall(ways...)
			send(t, conn, 'b')
			if got, err := receive(conn, 50*time.Millisecond); err == nil {
				t.Fatalf("received %q through a stalled proxy", got)
			}
			p.Heal()
			mustReceive(t, conn, 'b')
		})
	}
}

func TestProxyCutsAndHeals(t *testing.T) {
	t.Parallel()
	p := testenv.NewProxy(t, echoServer(t))
	old := open(t, p.Addr())
	send(t, old, 'a')
	mustReceive(t, old, 'a')
	if p.Connections() != 1 {
		t.Fatalf("%d connections, want 1", p.Connections())
	}
	p.Cut()
	for name, conn := range map[string]net.Conn{"old": old, "new": open(t, p.Addr())} {
		var late net.Error
		if _, err := receive(conn, time.Minute); err == nil || (errors.As(err, &late) && late.Timeout()) {
			t.Errorf("the %s connection was not dropped: %v", name, err)
		}
	}
	p.Heal()
	conn := open(t, p.Addr())
	send(t, conn, 'c')
	mustReceive(t, conn, 'c')
}

func TestProxyCutEndsAStall(t *testing.T) {
	t.Parallel()
	p := testenv.NewProxy(t, echoServer(t))
	conn := open(t, p.Addr())
	send(t, conn, 'a')
	mustReceive(t, conn, 'a')
	p.Stall()
	send(t, conn, 'b')
	p.Cut()
	if _, err := receive(conn, time.Minute); err == nil {
		t.Fatal("the byte came through")
	}
}

func TestNATSThroughAProxy(t *testing.T) {
	t.Parallel()
	ns := testenv.NATS(t)
	nc, p := testenv.DialThrough(t, ns)
	direct := testenv.Conn(t, ns)
	sub, err := direct.SubscribeSync("x")
	if err != nil {
		t.Fatal(err)
	}
	if err := direct.Flush(); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	eventually(t, time.Minute, "the client noticed", func() bool { return !nc.IsConnected() })
	p.Heal()
	eventually(t, time.Minute, "the client is back", nc.IsConnected)
	if err := nc.Publish("x", nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := sub.NextMsgWithContext(ctx); err != nil {
		t.Fatal(err)
	}
}

// What is delayed comes later by the delay, both ways, and what is sent together arrives together.
func TestProxyDelays(t *testing.T) {
	t.Parallel()
	proxy := testenv.NewProxy(t, echoServer(t))
	const each, bytes = 50 * time.Millisecond, 200
	proxy.Delay(0)
	conn := open(t, proxy.Addr())
	proxy.Delay(each)
	began, w := time.Now(), testenv.NewWatch(t)
	for i := range byte(bytes) {
		send(t, conn, i)
	}
	for i := range byte(bytes) {
		if got, err := receive(conn, time.Minute); err != nil || got != i {
			t.Fatalf("byte %d came as %d, %v", i, got, err)
		}
	}
	if took, ran := time.Since(began), w.Ran(); took < 2*each || ran >= bytes*each {
		t.Errorf("it took %s, in which the machine ran for %s; want 2 times %s and not %d times", took, ran, each, bytes)
	}
	proxy.Cut()
	if _, err := receive(conn, time.Minute); err == nil {
		t.Error("a connection that was cut lives on")
	}
}
