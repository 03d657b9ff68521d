package collector

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// applied is what RFC 7396 makes of a document by a patch, word for word.
func applied(target, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	out := map[string]any{}
	if object, ok := target.(map[string]any); ok {
		maps.Copy(out, object)
	}
	for name, value := range changes {
		if value == nil {
			delete(out, name)
		} else {
			out[name] = applied(out[name], value)
		}
	}
	return out
}

// anyPatch has few names and often nests, so that patches meet.
func anyPatch(rnd *rand.Rand, depth int) any {
	switch n := rnd.IntN(10); {
	case n == 0:
		return nil
	case n == 1:
		return []any{float64(rnd.IntN(9))}
	case n < 5 || depth == 0:
		return fmt.Sprint("v", rnd.IntN(100))
	}
	out := map[string]any{}
	for range rnd.IntN(4) {
		out[string(rune('a'+rnd.IntN(3)))] = anyPatch(rnd, depth-1)
	}
	return out
}

// What operations that were merged do to whatever document is what they would have done one at a time.
func TestMergedPatchesDoWhatTheyDidOneByOne(t *testing.T) {
	t.Parallel()
	merged, apart := 0, 0
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		f := folding{how: FoldMerge, limit: 100, bytes: 1 << 20}
		document := anyPatch(rnd, 3)
		want := document
		const patches = 6
		for i := range int64(patches) {
			next := anyPatch(rnd, 3)
			want = applied(want, next)
			text := testenv.Must(json.Marshal(next))(t)
			testenv.NoError(t, f.take(&FlushOp{Seq: i, ID: "x", Payload: text}, "v"))
		}
		size := int64(0)
		got := document
		for _, op := range f.end() {
			var value any
			testenv.MustSame(t, json.Unmarshal(op.Payload, &value), nil, "%s", op.Payload)
			got = applied(got, value)
			size += int64(len(op.Payload) + len(op.ID) + opBytes)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: of %v came %v; want %v", seed, document, got, want)
		}
		testenv.MustSame(t, size, f.held, "seed %d: bytes", seed)
		merged, apart = merged+patches-len(f.ops), apart+len(f.ops)-1
	}
	if merged < 5000 || apart < 1000 {
		t.Errorf("%d were merged, and %d could not be: the test shows too little", merged, apart)
	}
}

func TestMergedTexts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		patches []string
		want    string
	}{
		{[]string{`{"a":1,"b":2}`, `{"b":3,"c":4}`}, `{"a":1,"b":3,"c":4}`},
		{[]string{`{"a":1}`, `{"a":null}`}, `{"a":null}`}, // the service has to delete it, too
		{[]string{`{"a":{"x":1,"y":2}}`, `{"a":{"y":9}}`, `{"a":{"z":[1]}}`}, `{"a":{"x":1,"y":9,"z":[1]}}`},
		{[]string{`{"a":{"x":1}}`, `{"a":7}`}, `{"a":7}`},
		{[]string{`{"a":1}`, `7`}, `7`},
		{[]string{`{}`, `{"n":1.50,"big":123456789012345678901}`}, `{"n":1.50,"big":123456789012345678901}`},
		{[]string{`{"\u0061":1}`, `{"a":2}`}, `{"\u0061":2}`},
		{[]string{`{"a":7}`, `{"a":{"x":1}}`}, `{"a":7} {"a":{"x":1}}`}, // no patch says: replace it by an object
		{[]string{`{"a":null}`, `{"a":{"x":1}}`}, `{"a":null} {"a":{"x":1}}`},
		{[]string{`[1]`, `{"a":1}`}, `[1] {"a":1}`},
	} {
		f := folding{how: FoldMerge, limit: 10, bytes: 1 << 20}
		for i, text := range test.patches {
			testenv.NoError(t, f.take(&FlushOp{Seq: int64(i), Payload: []byte(text)}, "v"))
		}
		got := ""
		for i, op := range f.end() {
			if i > 0 {
				got += " "
			}
			got += string(op.Payload)
		}
		testenv.Same(t, got, test.want, "%v", test.patches)
	}
}
