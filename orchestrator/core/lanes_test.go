package core_test

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/core"
)

// What comes while something is done is done together after it, and beside it only when a batch is full.
func TestBatch(t *testing.T) {
	t.Parallel()
	const full, most = 3, 2
	in, ended := make(chan int), make(chan struct{})
	begun, goOn := make(chan []int), make(chan struct{})
	go func() {
		defer close(ended)
		core.Batch(in, most, time.Hour, func(batch []int) bool { return len(batch) == full }, func(batch []int) {
			begun <- batch
			<-goOn
		})
	}()
	send := func(numbers ...int) {
		for _, n := range numbers {
			in <- n
		}
	}
	begins := func(want ...int) {
		t.Helper()
		testenv.SameList(t, <-begun, want, "was done immediately")
	}
	send(1)
	begins(1) // immediately
	send(2, 3)
	select {
	case in <- 4: // it waits for more, and is full with this
	case batch := <-begun:
		t.Fatalf("%v began beside another", batch)
	}
	begins(2, 3, 4)
	send(5, 6, 7)
	select { // there are two at work, and one is full: no more is taken
	case in <- 8:
		t.Error("something was taken that there is no room for")
	case batch := <-begun:
		t.Errorf("%v began beside two", batch)
	case goOn <- struct{}{}:
	}
	begins(5, 6, 7)
	send(8)
	goOn <- struct{}{}
	goOn <- struct{}{}
	begins(8) // alone, when nothing else is done
	send(9)
	close(in)
	goOn <- struct{}{}
	begins(9) // what is left at the end
	goOn <- struct{}{}
	<-ended
}

// What hangs does not hold up the rest.
func TestBatchBesideOneThatHangs(t *testing.T) {
	t.Parallel()
	in, ended := make(chan int), make(chan struct{})
	begun, goOn := make(chan int), make(chan struct{})
	go func() {
		defer close(ended)
		core.Batch(in, 2, time.Millisecond, func([]int) bool { return false }, func(batch []int) {
			begun <- batch[0]
			<-goOn
		})
	}()
	for _, n := range []int{1, 2} {
		in <- n
		testenv.Same(t, <-begun, n, "has begun")
	}
	close(in)
	close(goOn)
	<-ended
}
