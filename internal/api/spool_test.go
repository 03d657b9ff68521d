package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
)

// PROOF: who may do what, 19.
// What is kept on disk of uploads is bounded for all of them together.
func TestUploadsOnDiskAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	opened := b.open(`{"endpoint":"echo","name":"open"}`)
	items := "id\n" + strings.Repeat(strings.Repeat("x", 99)+"\n", 40_000)
	b.server.LetSpool(2 << 20)
	path := "/runs/" + opened.Run.String() + "/items"
	answer := b.send(http.MethodPost, api.Prefix+path, items, "Content-Type", "text/csv")
	if answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get("Retry-After") == "" {
		t.Errorf("more than there is room for: %d, %v", answer.StatusCode, answer.Header)
	}
	b.refused(http.StatusServiceUnavailable, "in parts", http.MethodPost, api.Prefix+path, strings.NewReader(items),
		"Content-Type", "text/csv")
}
