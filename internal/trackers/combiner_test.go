package trackers_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/trackers"
)

// Very many callers acknowledge the same items together, in two batches, some of them nonsense, while both are sealed.
// Each item counts for one caller, exactly one caller is told of each end, each mistake is told to who made it, and the
// callers share transactions.
func TestAcksThatComeTogether(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const items, callers = 8192 + 700, 300
	batches := []uuid.UUID{b.open(trackerclient.BatchSettings{}, items), b.open(trackerclient.BatchSettings{}, items)}
	var (
		newly     atomic.Int64
		completed sync.Map // batch → *atomic.Int64
		wrong     atomic.Int64
		all       sync.WaitGroup
	)
	told := func(ids []string) {
		for _, id := range ids {
			n, _ := completed.LoadOrStore(id, &atomic.Int64{})
			n.(*atomic.Int64).Add(1) //nolint:forcetypeassert // nothing else is in it
		}
	}
	for i := range callers {
		all.Go(func() {
			ids := shareOf(batches, i, callers, items)
			bad := i%10 == 3
			if bad {
				at := len(ids) / 2
				ids[at] = bitfield.ItemID{Batch: batches[0], Group: 1, Index: 700 + i}.String()
			}
			acked, err := b.ack("", trackerclient.Acknowledgement{IDs: ids})
			if bad {
				place, refused := fmt.Sprintf("ids[%d]", len(ids)/2), asRefused(err)
				if refused == nil || refused.Code != trackerclient.CodePastSize || refused.Place != place {
					t.Errorf("caller %d: %v; want %s at %s", i, err, trackerclient.CodePastSize, place)
				}
				wrong.Add(1)
				return
			}
			testenv.Same(t, err, nil, "caller %d", i)
			newly.Add(acked.Newly)
			told(acked.CompletedBatches)
		})
	}
	for _, id := range batches {
		all.Go(func() {
			if sealed := b.seal(id); sealed.Completed {
				told([]string{sealed.Batch})
			}
		})
	}
	all.Wait()
	testenv.MustSame(t, wrong.Load(), callers/10, "callers that are wrong")
	// What the wrong ones named is their neighbors' too: everything is acknowledged.
	testenv.Same(t, newly.Load(), 2*items, "items were newly acknowledged")
	for _, id := range batches {
		n, _ := completed.Load(id.String())
		if n == nil || n.(*atomic.Int64).Load() != 1 { //nolint:forcetypeassert // as above
			t.Errorf("batch %s: not exactly one caller was told of its end: %v", id, n)
		}
	}
	testenv.Same(t, b.count(`SELECT count(*) FROM run_event WHERE kind = 'tracker.completed'`), 2, "events")
	if commits := b.commits.Load(); commits >= callers {
		t.Errorf("%d callers needed %d transactions: they shared none", callers, commits)
	} else {
		t.Logf("%d callers shared %d transactions", callers, commits)
	}
}

// shareOf is what a caller acknowledges: its part of all items of both batches, and those of its two neighbors, in any
// order. So each item is named by three callers, of whom at most one is wrong.
func shareOf(batches []uuid.UUID, caller, callers, items int) (ids []string) {
	for n := range items {
		if turn := (n - caller + callers) % callers; turn < 2 || turn == callers-1 {
			for _, batch := range batches {
				ids = append(ids, bitfield.ItemID{Batch: batch, Group: n / 8192, Index: n % 8192}.String())
			}
		}
	}
	rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return ids
}

func asRefused(err error) *trackerclient.Error {
	bad, _ := errors.AsType[*trackerclient.Error](err)
	return bad
}

// Each mistake has a code, a place and a text that helps, and changes nothing.
func TestMistakes(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.open(trackerclient.BatchSettings{}, 8192+10)
	other := b.open(trackerclient.BatchSettings{}, 5)
	empty := b.open(trackerclient.BatchSettings{}, 0)
	sealed := b.open(trackerclient.BatchSettings{}, 3)
	b.seal(sealed)
	run := uuid.Must(uuid.NewV7())
	b.exec(`INSERT INTO tracker_batch (id, owner, state) VALUES ($1, 'run', 'open')`, run)
	ack := func(about, ids, ranges string) error {
		_, err := b.ack(about, trackerclient.Acknowledgement{IDs: strings.Fields(ids), Ranges: strings.Fields(ranges)})
		return err
	}
	add := func(batch uuid.UUID, n int64, key string) error { _, err := b.add(batch.String(), n, key); return err }
	open := func(set trackerclient.BatchSettings) error {
		_, err := b.service.Open(t.Context(), set, ann)
		return err
	}
	many := make([]string, tracker.MaxAckGroups+1)
	for i := range many {
		many[i] = uuid.NewString() + ":0:0"
	}
	testenv.NoError(t, add(id, 7, "k"))
	good := id.String() + ":0:1 "
	for _, c := range []struct {
		name, place string
		code        trackerclient.Code
		err         error
	}{
		{"nothing", "", trackerclient.CodeNothing, ack("", "", "")},
		{"a group of too many batches", "ids[20000]", trackerclient.CodeTooMany, ack("", strings.Join(many, " "), "")},
		{"no UUID", "batch", trackerclient.CodeBadID, ack("x", "x:0:0", "")},
		{"garbage", "ids[1]", trackerclient.CodeBadID, ack("", good+"garbage", "")},
		{"no index", "ids[1]", trackerclient.CodeBadID, ack("", good+id.String()+":0", "")},
		{"another batch", "ids[1]", trackerclient.CodeWrongBatch, ack(id.String(), good+other.String()+":0:1", "")},
		{"unknown batch", "ids[1]", trackerclient.CodeNoBatch, ack("", good+uuid.NewString()+":0:1", "")},
		{"a run's batch", "ids[1]", trackerclient.CodeNoBatch, ack("", good+run.String()+":0:1", "")},
		{"foreign group", "ids[2]", trackerclient.CodeNoGroup, ack("", good+good+other.String()+":1:0", "")},
		{"no groups", "ids[0]", trackerclient.CodeNoGroup, ack("", empty.String()+":0:0", "")},
		{"past the size", "ids[1]", trackerclient.CodePastSize, ack("", good+id.String()+":1:10", "")},
		{"past the size by a range", "ranges[0]", trackerclient.CodePastSize, ack(id.String(), "", "1:5-10")},
		{"groups past the end", "ranges[1]", trackerclient.CodeNoGroup, ack(id.String(), "", "0 1-3")},
		{"range backwards", "ranges[0]", trackerclient.CodeBadRange, ack(id.String(), "", "0:9-3")},
		{"range of nothing", "ranges[0]", trackerclient.CodeBadRange, ack(id.String(), "", "0:")},
		{"range of no batch", "ranges[0]", trackerclient.CodeBadRange, ack("", "", "0:1-2")},
		{"zero", "items", trackerclient.CodeZeroItems, add(id, 0, "")},
		{"below zero", "items", trackerclient.CodeZeroItems, add(id, -1, "")},
		{"too many", "items", trackerclient.CodeTooManyItems, add(id, 1e9+1, "")},
		{"after the seal", "", trackerclient.CodeNotOpen, add(sealed, 1, "")},
		{"key for something else", "items", trackerclient.CodeKeyConflict, add(id, 8, "k")},
		{"to no batch", "", trackerclient.CodeNoBatch, add(uuid.New(), 1, "")},
		{"to a run's batch", "", trackerclient.CodeNoBatch, add(run, 1, "")},
		{"no owner", "owner", trackerclient.CodeBadSetting, open(trackerclient.BatchSettings{})},
		{"no time", "open_idle", trackerclient.CodeBadSetting,
			open(trackerclient.BatchSettings{Owner: "o", OpenIdle: "soon"})},
		{"no id", "id", trackerclient.CodeBadID, open(trackerclient.BatchSettings{Owner: "o", ID: "1"})},
		{"a run's id", "id", trackerclient.CodeBatchTaken,
			open(trackerclient.BatchSettings{Owner: "o", ID: run.String()})},
		{"another owner's id", "owner", trackerclient.CodeKeyConflict,
			open(trackerclient.BatchSettings{Owner: "o", ID: id.String()})},
	} {
		bad := asRefused(c.err)
		if bad == nil || bad.Code != c.code || bad.Place != c.place || bad.Message == "" {
			t.Errorf("%s: %+v (%v); want %s at %q", c.name, bad, c.err, c.code, c.place)
		}
	}
	for _, batch := range []uuid.UUID{id, other, sealed} {
		view := b.get(batch, 0, trackers.All)
		testenv.Same(t, view.Pending, view.Items, "pending after mistakes")
	}
}
