package api_test

import (
	"os"
	"strings"
	"testing"
)

// Where people choose what they want to see of the audit log, each action stands.
func TestEveryActionIsOffered(t *testing.T) {
	t.Parallel()
	// The leader's, by the limits of what is kept and by what a provider of identities says; and what was not let happen.
	actions := map[string]bool{"session_end": true, "login_failed": true}
	for _, m := range mutations() {
		actions[m.action] = true
	}
	for file, list := range map[string][2]string{
		"../../docs/operations.md":               {"`--action` (", ")"},
		"../dashboard/static/app/pages/audit.js": {"const actions = [", "]"},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, found := strings.Cut(string(text), list[0])
		names, _, closed := strings.Cut(rest, list[1])
		if !found || !closed {
			t.Fatalf("%s has no list of actions", file)
		}
		offered := map[string]bool{}
		for action := range strings.FieldsFuncSeq(names, func(r rune) bool { return strings.ContainsRune(", \n\"", r) }) {
			offered[action] = true
		}
		for action := range actions {
			if !offered[action] {
				t.Errorf("%s does not offer %q", file, action)
			}
		}
		for action := range offered {
			if !actions[action] {
				t.Errorf("%s offers %q, which no one does", file, action)
			}
		}
	}
}
