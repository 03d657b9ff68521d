package main

import (
	"cmp"
	"fmt"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/gather"
)

// batchSize is how a run is cut. What is not given stays as the plan, or the run, has it.
type batchSize struct {
	Chunk    *int `help:"Items in a request, 1 to 8192." placeholder:"N"`
	InFlight *int `help:"Requests out at once, 1 to 10000." placeholder:"N"`
}

func (b *batchSize) check() error {
	return cmp.Or(within("--chunk", b.Chunk, bitfield.Size), within("--in-flight", b.InFlight, gather.MaxInFlight))
}

// within refuses a number that is given and not from 1 to most.
func within(flag string, n *int, most int) error {
	if n != nil && (*n < 1 || *n > most) {
		return fmt.Errorf("%s is %d; it must lie between 1 and %d", flag, *n, most)
	}
	return nil
}

// given is a number, or 0 when it was not given.
func given(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}
