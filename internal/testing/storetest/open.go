package storetest

import (
	"fmt"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

// OpenRun opens a run of chunks of 1000.
func (b *Bench) OpenRun(change func(*start.OpenRequest)) workqueue.RunID {
	b.Helper()
	req := start.OpenRequest{LoadRequest: Chunked(1000)}
	req.Session = b.Session
	if change != nil {
		change(&req)
	}
	opened, err := start.New(b.Store).OpenRun(b.Context(), req)
	if err != nil {
		b.Fatal(err)
	}
	return opened.Run
}

// AddRequest is an add of the keys given.
func AddRequest(run workqueue.RunID, key string, items []string) start.AddRequest {
	return start.AddRequest{Run: run, Key: key, Digest: []byte(fmt.Sprint(items)), Actor: "ann",
		Items: func() (func(*start.LoadItem) error, error) { return Keys(items...), nil }}
}

// Add adds items to an open run.
func (b *Bench) Add(run workqueue.RunID, items []string) start.Added {
	b.Helper()
	added, err := start.New(b.Store).Add(b.Context(), AddRequest(run, "", items))
	if err != nil {
		b.Fatal(err)
	}
	return added
}

// Seal seals an open run.
func (b *Bench) Seal(run workqueue.RunID) start.Sealed {
	b.Helper()
	sealed, err := start.New(b.Store).SealRun(b.Context(), start.SealRequest{Run: run, Actor: "ann"})
	if err != nil {
		b.Fatal(err)
	}
	return sealed
}
