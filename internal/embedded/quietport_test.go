package embedded

import (
	"fmt"
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
	again, err := hold(t.Context(), address)
	if err != nil {
		t.Fatalf("%s is not free after its release: %v", address, err)
	}
	again()
}
