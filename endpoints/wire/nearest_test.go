package wire

import "testing"

// What was typed with a slip finds the endpoint that was meant: a letter too many, too few, another, or two in turn.
func TestNearest(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"statement": "statement", "statment": "statement", "satement": "statement", "tsatement": "statement",
		"statmenet": "statement", "saement": "", "cuont": "count", "coutn": "count", "cunto": "", "other": "",
	} {
		if got := Nearest(typed, []Listener{{Endpoint: "statement"}, {Endpoint: "count"}}); got != want {
			t.Errorf("%s: %q, want %q", typed, got, want)
		}
	}
}
