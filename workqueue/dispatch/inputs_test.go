package dispatch_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

// inputsOf reads the inputs of a mask, and what they are is copied.
func (b *bench) inputsOf(want dispatch.InputRequest) (all []dispatch.Input) {
	b.Helper()
	err := dispatch.New(b.Store).EachInput(b.Context(), want, func(in dispatch.Input) bool {
		in.Key, in.Payload = bytes.Clone(in.Key), bytes.Clone(in.Payload)
		in.Parts = append([]dispatch.PartInput(nil), in.Parts...)
		for n := range in.Parts {
			in.Parts[n].Data = bytes.Clone(in.Parts[n].Data)
		}
		all = append(all, in)
		return true
	})
	if err != nil {
		b.Fatal(err)
	}
	return all
}

// Of each item the newest part counts, an error is none, and what was not asked for is not there.
func TestEachInputBringsTheNewestParts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 10)
	b.Exec(storetest.PutPart, run, 0, 1, "old", nil, nil, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	b.Exec(storetest.PutPart, run, 0, 3, "new", "a/b", nil, []int{2, 3})
	b.Exec(storetest.PutPart, run, 0, 2, "middle", nil, nil, []int{3, 4})
	b.Exec(storetest.PutPart, run, 0, 4, "", nil, "BAD", []int{5})
	b.Exec(storetest.PutPart, run, 7, 1, "seven", nil, nil, []int{0, 4, 5})
	mask := bitfield.Full(6)
	mask.Remove(1)
	steps := []workqueue.StepInput{{Step: 7, Name: "seven"}, {Step: 0, Name: "zero"}}
	var got []string
	for _, in := range b.inputsOf(dispatch.InputRequest{Run: run, Mask: &mask, Inputs: steps}) {
		line := fmt.Sprintf("%d %s %s", in.Ordinal, in.Key, in.Payload)
		for _, p := range in.Parts {
			line += fmt.Sprintf(" [%v %s %s]", p.Missing, p.Data, p.ContentType)
		}
		got = append(got, line)
	}
	want := `0 C0 {} [false seven0 ] [false old0 ]
2 C2 {} [true  ] [false new2 a/b]
3 C3 {} [true  ] [false new3 a/b]
4 C4 {} [false seven4 ] [false middle4 ]
5 C5 {} [false seven5 ] [true  ]`
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	for _, in := range b.inputsOf(dispatch.InputRequest{Run: run, Mask: &mask, NoItem: true}) {
		if in.Payload != nil || len(in.Parts) != 0 || len(in.Key) == 0 {
			t.Errorf("%+v", in)
		}
	}
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
		if i != len(inputs) {
			t.Errorf("%s: %d items, want %d", name, len(inputs), i)
		}
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
	if err == nil || !strings.Contains(err.Error(), "2600 of 2601 are in work_queue") {
		t.Errorf("an item that is not there: %v", err)
	}
}

// seq is 0, 1, … n-1.
func seq(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
