package dispatch_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// inputsOf reads the inputs of a mask, and what they are is copied.
func (b *bench) inputsOf(want dispatch.InputRequest) (all []dispatch.Input) {
	b.Helper()
	testenv.NoError(b, dispatch.New(b.Store).EachInput(b.Context(), want, func(in dispatch.Input) bool {
		in.Key, in.Payload = bytes.Clone(in.Key), bytes.Clone(in.Payload)
		in.Parts = append([]dispatch.PartInput(nil), in.Parts...)
		for n := range in.Parts {
			in.Parts[n].Data = bytes.Clone(in.Parts[n].Data)
		}
		all = append(all, in)
		return true
	}))
	return all
}

// Scattered items are found by their ordinals, and large parts come a few at a time, in order and whole.
func TestEachInputOfScatteredAndLargeParts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const n = 2600
	run := b.Load(storetest.Chunked(n), n)
	b.Exec(storetest.PutPart, run, 0, 1, strings.Repeat("x", 600), nil, nil, seq(n))                              // 1.5 MB
	b.Exec(storetest.PutPart, run, 1, 1, strings.Repeat("y", 1<<20), "b/c", nil, []int{0, 7, 9, 700, 1400, 2099}) // 6 MB
	dense, sparse := bitfield.Full(n), bitfield.Set{}
	for i := 0; i < n; i += 7 {
		sparse.Add(i)
	}
	for name, mask := range map[string]bitfield.Set{"dense": dense, "sparse": sparse} {
		inputs := b.inputsOf(dispatch.InputRequest{Run: run, Mask: &mask,
			Inputs: []workqueue.StepInput{{Step: 0}, {Step: 1}, {Step: 2}}})
		i := 0
		for bit := range mask.All() {
			in := inputs[i]
			i++
			large := bit == 9 && name == "dense" || bit == 0 || bit == 7 || bit == 700 || bit == 1400 || bit == 2099
			if in.Ordinal != workqueue.Ordinal(bit) || string(in.Key) != fmt.Sprintf("C%d", bit) ||
				!bytes.HasSuffix(in.Parts[0].Data, fmt.Appendf(nil, "x%d", bit)) || len(in.Parts[0].Data) < 601 ||
				in.Parts[1].Missing == large || large && len(in.Parts[1].Data) < 1<<20 || !in.Parts[2].Missing {
				t.Fatalf("%s, item %d: %d %s, parts of %d and %d bytes", name, bit, in.Ordinal, in.Key, len(in.Parts[0].Data),
					len(in.Parts[1].Data))
			}
		}
		testenv.Same(t, i, len(inputs), "%s: %d items", name, len(inputs))
	}
	stopped := 0
	testenv.NoError(t, dispatch.New(b.Store).EachInput(t.Context(), dispatch.InputRequest{Run: run, Mask: &dense},
		func(dispatch.Input) bool {
			stopped++
			return stopped < 5
		}))
	testenv.Same(t, stopped, 5, "stopped after")
	beyond := bitfield.Full(n + 1)
	err := dispatch.New(b.Store).EachInput(t.Context(), dispatch.InputRequest{Run: run, Mask: &beyond},
		func(dispatch.Input) bool { return true })
	testenv.Says(t, err, "2600 of 2601 are in work_queue", "an item that does not exist")
}

// A service reads parts of items that are in flight in its slice, from any byte on. A reset of a part takes that item
// out, and no other.
func TestPartOfAnItemInFlight(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Planned(storetest.Need("fetch"), storetest.Need("sees", 0)), 4)
	b.RecordStep(run, 0)
	s := b.ClaimStep(run, 1, 1).Slices[0]
	inputs := b.inputsOf(dispatch.InputRequest{Run: run, Mask: &s.Mask, Inputs: []workqueue.StepInput{{Step: 0}}})
	read := func(item int, change func(*dispatch.PartRequest)) string {
		part := inputs[item].Parts[0].Data
		sum := sha256.Sum256(part)
		req := dispatch.PartRequest{Slice: s.ID, Endpoint: s.Endpoint, Ordinal: inputs[item].Ordinal, Step: "fetch",
			Bytes: int64(len(part)), SHA256: sum[:], Most: 1 << 20}
		change(&req)
		data, err := dispatch.New(b.Store).Part(t.Context(), req)
		if errors.Is(err, workqueue.ErrNotFound) {
			return "gone"
		}
		testenv.NoError(t, err)
		return string(data)
	}
	same := func(*dispatch.PartRequest) {}
	first, second := string(inputs[1].Parts[0].Data), string(inputs[2].Parts[0].Data)
	testenv.Same(t, read(1, same), first, "a part")
	testenv.Same(t, read(1, func(r *dispatch.PartRequest) { r.From, r.Most = 1, 2 }), first[1:3], "some of it")
	for name, change := range map[string]func(*dispatch.PartRequest){
		"slice":    func(r *dispatch.PartRequest) { r.Slice = workqueue.NewSliceID() },
		"endpoint": func(r *dispatch.PartRequest) { r.Endpoint = "other" },
		"item":     func(r *dispatch.PartRequest) { r.Ordinal = 8192 + 1 },
		"step":     func(r *dispatch.PartRequest) { r.Step = "sees" },
		"size":     func(r *dispatch.PartRequest) { r.Bytes++ },
		"hash":     func(r *dispatch.PartRequest) { r.SHA256 = make([]byte, sha256.Size) },
	} {
		testenv.Same(t, read(1, change), "gone", "another %s", name)
	}
	testenv.Must(redo.New(b.Store).Reset(t.Context(), redo.ResetRequest{Run: run, Actor: "test",
		Select: redo.Selection{Step: "fetch", Keys: []string{string(inputs[1].Key)}}}))(t)
	testenv.Same(t, read(1, same), "gone", "a part that is redone")
	testenv.Same(t, read(2, same), second, "another item's part")
	b.Record(storetest.Whole(s))
	testenv.Same(t, read(2, same), "gone", "the part of an item that is answered")
}

func seq(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
