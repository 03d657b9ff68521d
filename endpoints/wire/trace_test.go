package wire

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

func TestParseTrace(t *testing.T) {
	t.Parallel()
	for _, parent := range []string{
		someParent, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
		"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes",
	} {
		if got := ParseTrace(parent, "a=1,b@c=2"); got != (Trace{parent, "a=1,b@c=2"}) {
			t.Errorf("%q: got %+v", parent, got)
		}
	}
	for name, parent := range map[string]string{
		"empty":          "",
		"short":          someParent[:54],
		"long":           someParent + "0",
		"more of 00":     someParent + "-01",
		"version ff":     "ff" + someParent[2:],
		"upper case":     strings.ToUpper(someParent),
		"no trace":       "00-00000000000000000000000000000000-b7ad6b7169203331-01",
		"no span":        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
		"no hex":         strings.Replace(someParent, "b7", "bg", 1),
		"no dash":        strings.Replace(someParent, "-b7", "ab7", 1),
		"later, no dash": "cc" + someParent[2:] + "x",
		"later, endless": "cc" + someParent[2:] + "-" + strings.Repeat("x", 100),
		"two lines":      "cc" + someParent[2:] + "-\r\nTranche-Run: x",
	} {
		if got := ParseTrace(parent, "a=1"); !got.IsZero() || got.State != "" {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	for _, state := range []string{
		"x", "=1", "a=", "a=1=2", "a b=1", strings.Repeat("a=1,", 40), "a=" + strings.Repeat("x", 600), "a=\n", "a=é",
	} {
		if got := ParseTrace(someParent, state); got != (Trace{Parent: someParent}) {
			t.Errorf("state %q: got %+v", state, got)
		}
	}
}

func FuzzParseTrace(f *testing.F) {
	f.Add(someParent, "vendor=1")
	f.Add("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x", "a=1,,b=2")
	f.Add("00--", "\x00")
	f.Fuzz(func(t *testing.T, parent, state string) {
		got := ParseTrace(parent, state)
		if got.IsZero() {
			if got.State != "" {
				t.Errorf("a state without a parent: %+v", got)
			}
			return
		}
		h := nats.Header{}
		got.SetHeader(h)
		if HeaderSize(h) > 700 || TraceOfHeader(h) != got {
			t.Errorf("%+v does not come back", got)
		}
		for _, text := range []string{got.Parent, got.State} {
			if OneLine(text) != text || !printable(text) {
				t.Errorf("%q goes into a header", text)
			}
		}
	})
}
