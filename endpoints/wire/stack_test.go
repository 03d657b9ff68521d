package wire

import (
	"testing"

	"github.com/google/uuid"
)

func TestFlowIDsCarryTheRequest(t *testing.T) {
	t.Parallel()
	id := NewFlowID(newMeta(), "flow", 1)
	for _, request := range []int{0, 1, 255, 256, MaxRequests - 1} {
		slice := id.Slice(request)
		if flow, n := SplitSlice(slice); flow != id || n != request {
			t.Errorf("request %d of %s is read as %d of %s", request, id, n, flow)
		}
		if slice.Version() != 5 || slice.Variant() != uuid.RFC4122 {
			t.Errorf("%s is no UUID of version 5", slice)
		}
	}
}

func TestStackNamesOneOfSeveralQuestions(t *testing.T) {
	t.Parallel()
	s := Stack("").PushAs("transfer", 1, "debit").PushAs("ledger", 2, "")
	if s != "transfer:1:debit,ledger:2" {
		t.Errorf("got %q", s)
	}
	if got, err := ParseStack(string(s)); err != nil || got != s {
		t.Errorf("%q is read as %q, %v", s, got, err)
	}
	for _, bad := range []string{"a:1:", "a:1:b:c", "a:1:b.c", "a::b"} {
		if got, err := ParseStack(bad); err == nil {
			t.Errorf("%q is taken for %q", bad, got)
		}
	}
}

func FuzzParseStack(f *testing.F) {
	f.Add("statement:1,accounts:2:debit")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseStack(text)
		if err == nil && (string(s) != text || s.Depth() > MaxStack) {
			t.Fatalf("%q is read as %q", text, s)
		}
	})
}
