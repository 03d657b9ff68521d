package embedded

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"sync"
	"testing"
)

// A port stays with whoever has it until it is released, also while nobody listens there.
func TestQuietPortsAreHeld(t *testing.T) {
	t.Parallel()
	port, release, err := QuietPort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	if other, err := hold(t.Context(), address); err == nil {
		other()
		t.Errorf("%s is given away twice", address)
	}
	release()
	eventually(t, limit, "a port is free after its release", func() bool { // what is being started has it for a moment
		again, err := hold(t.Context(), address)
		if err == nil {
			again()
		}
		return err == nil
	})
}

// A program that is being started has all sockets of this one for a moment, also those that are closed meanwhile.
func TestPortsAreFreeWhileProgramsStart(t *testing.T) {
	t.Parallel()
	if err := exec.CommandContext(t.Context(), "true").Run(); err != nil { // before the first, Go starts one on trial
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	for range 4 {
		starting.Go(func() {
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, "true").Run() // the last ones are ended in the midst of it
			}
		})
	}
	defer starting.Wait()
	defer cancel()
	for range 300 {
		port, release, err := QuietPort(ctx)
		if err != nil {
			t.Fatal(err)
		}
		address := fmt.Sprintf("127.0.0.1:%d", port)
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address) // at once, as a server does
		if err != nil {
			t.Fatal(err)
		}
		_ = listener.Close()
		if err := checkFree(ctx, address); err != nil {
			t.Fatalf("after it was closed: %v", err)
		}
		release()
	}
}
