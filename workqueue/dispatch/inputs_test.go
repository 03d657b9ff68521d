package dispatch_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
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
	err := dispatch.New(b.Store).EachInput(t.Context(), dispatch.InputRequest{Run: run, Mask: &dense},
		func(dispatch.Input) bool {
			stopped++
			return stopped < 5
		})
	if err != nil || stopped != 5 {
		t.Errorf("stopped after %d, %v", stopped, err)
	}
	beyond := bitfield.Full(n + 1)
	err = dispatch.New(b.Store).EachInput(t.Context(), dispatch.InputRequest{Run: run, Mask: &beyond},
		func(dispatch.Input) bool { return true })
	testenv.Says(t, err, "2600 of 2601 are in work_queue", "an item that is not there")
}

func seq(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
