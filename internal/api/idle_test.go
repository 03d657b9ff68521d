package api_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// PROOF: who may do what, 19.
// Of the connections on which nothing is asked, from one address, the oldest are closed when
// they are too many; those on which something is asked go on.
func TestIdleConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=it")
	server, err := api.New(b.Store, apitest.NodeOf(b.Engine), testenv.Conn(t, testenv.NATS(t)), api.Config{})
	if err != nil {
		t.Fatal(err)
	}
	listener := testenv.Must(api.Listen(t.Context(), "127.0.0.1:0", api.Exposure{}))(t)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener, time.Minute) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	const more = 5
	dial := func() net.Conn {
		conn := testenv.Must(net.Dial("tcp", listener.Addr().String()))(t)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	ask := func(conn net.Conn, path string) (*bufio.Reader, error) {
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path); err != nil {
			return nil, err
		}
		reader := bufio.NewReader(conn)
		answer, err := http.ReadResponse(reader, nil) //nolint:bodyclose // closing waits for the end of a stream
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("it is answered %s", answer.Status)
		}
		return reader, err
	}
	busy := dial() // the oldest of all
	events := testenv.Must(ask(busy, api.Prefix+"/runs/it/events"))(t)
	all, since := make([]net.Conn, api.MaxIdleEach+more), time.Now()
	for i := range all {
		all[i] = dial()
	}
	for i, conn := range all[:more] {
		testenv.NoError(t, conn.SetReadDeadline(time.Now().Add(2*time.Minute)))
		n, err := conn.Read(make([]byte, 1))
		if n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d is not closed: %v", i, err)
		}
	}
	for _, i := range []int{more, len(all) - 1} {
		// One that has not asked anything by then is closed in any case.
		if _, err := ask(all[i], "/healthz"); err != nil && time.Since(since) < api.HeaderTimeout {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	if _, err := events.ReadString('\n'); err != nil {
		t.Errorf("the stream was interrupted: %v", err)
	}
}
