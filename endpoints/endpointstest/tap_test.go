package endpointstest

import (
	"net"
	"slices"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// TestTapPassesWholeMessages cuts what a client writes at every byte.
func TestTapPassesWholeMessages(t *testing.T) {
	t.Parallel()
	const written = "CONNECT {}\r\nPING\r\nSUB a.b q 17\r\nPUB x 0\r\n\r\nPUB x y 3\r\nP\r\n\r\n" +
		"HPUB $JS.ACK.s.c 12 16\r\nNATS/1.0\r\n\r\n+ACK\r\nPONG\r\n"
	for cut := range len(written) {
		i := &Instance{kit: &Kit{}, held: map[string]delivery{"$JS.ACK.s.c": {}}}
		client, server := net.Pipe()
		passed := make(chan string)
		go func() {
			buf := make([]byte, 0, len(written))
			for len(buf) < len(written) {
				n, err := server.Read(buf[len(buf):cap(buf)])
				buf = buf[:len(buf)+n]
				if err != nil {
					break
				}
			}
			passed <- string(buf)
		}()
		conn := newTap(client, i)
		for _, part := range []string{written[:cut], written[cut:]} {
			if n, err := conn.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatalf("cut at %d: wrote %d of %d: %v", cut, n, len(part), err)
			}
		}
		testenv.Same(t, <-passed, written, "cut at %d: passed", cut)
		if !slices.Equal(conn.subs, []string{"17"}) || len(i.held) != 0 {
			t.Errorf("cut at %d: subscriptions %q, %d held", cut, conn.subs, len(i.held))
		}
		_, _ = client.Close(), server.Close()
	}
}
