package throttling_test

import (
	"os"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/workqueue/throttling"
)

// Authors of services go by docs/protocol.md.
func TestProtocolNamesTheCodes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range throttling.Codes() {
		if !throttling.Is(code) || !strings.Contains(string(text), "`"+code+"`") {
			t.Errorf("docs/protocol.md does not name %s", code)
		}
	}
	if throttling.Is("") || throttling.Is("deadline") {
		t.Error("other codes count as well")
	}
}
