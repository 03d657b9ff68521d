package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
)

// ErrConnectionClosed is what [Node.Run] returns when its connection to NATS was closed, by the program or by nats.go,
// which gives up after as many tries as its options say. Such a connection never comes back.
var ErrConnectionClosed = errors.New("the connection to NATS was closed for good")

// whileConnected returns a context that ends with ctx, or when the connection to NATS is closed: a node that lives on
// without one would keep its session and the lease, and do nothing. end frees what this takes, and says whether the
// connection was the reason.
func (n *Node) whileConnected(ctx context.Context) (connected context.Context, end func() error) {
	connected, cancel := context.WithCancelCause(ctx)
	closed := n.kernel.NC.StatusChanged(nats.CLOSED)
	var watch sync.WaitGroup
	watch.Go(func() {
		if !n.kernel.NC.IsClosed() {
			select {
			case <-closed:
			case <-connected.Done():
				return
			}
		}
		cancel(ErrConnectionClosed)
	})
	return connected, func() error {
		cancel(nil)
		watch.Wait()
		n.kernel.NC.RemoveStatusListener(closed)
		if !errors.Is(context.Cause(connected), ErrConnectionClosed) {
			return nil
		}
		if err := n.kernel.NC.LastError(); err != nil {
			return fmt.Errorf("orchestrator: %w: %w", ErrConnectionClosed, err)
		}
		return fmt.Errorf("orchestrator: %w", ErrConnectionClosed)
	}
}
