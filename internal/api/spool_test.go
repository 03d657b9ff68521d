package api_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
)

// PROOF: who may do what, 19.
// What is kept on disk of uploads is bounded for all of them together.
func TestUploadsOnDiskAreBounded(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	opened := b.Open(`{"endpoint":"echo","name":"open"}`)
	items := "id\n" + strings.Repeat(strings.Repeat("x", 99)+"\n", 40_000)
	b.Server.LetSpool(2 << 20)
	path := "/runs/" + opened.Run.String() + "/items"
	answer := b.Send(http.MethodPost, api.Prefix+path, items, "Content-Type", "text/csv")
	if answer.StatusCode != http.StatusServiceUnavailable || answer.Header.Get("Retry-After") == "" {
		t.Errorf("more than there is room for: %d, %v", answer.StatusCode, answer.Header)
	}
	b.Refused(http.StatusServiceUnavailable, "in parts", http.MethodPost, api.Prefix+path, strings.NewReader(items),
		"Content-Type", "text/csv")
}

// PROOF: who may do what, 19.
// One user has half of the disk that uploads may take.
func TestOneUserHasHalfOfTheDisk(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	path := api.Prefix + "/runs/" + b.Open(`{"endpoint":"echo","name":"open"}`).Run.String() + "/items"
	b.Locked()
	b.Server.LetSpool(4 << 20)
	as := []string{"Authorization", "Bearer " + b.Token("ann", access.Operator, 0).Secret, "Content-Type", "text/csv"}
	rows := func(n int) string { // few items, with much in each
		text := "id,text\n"
		for i := range n {
			text += strconv.Itoa(i) + "," + strings.Repeat("x", 100_000) + "\n"
		}
		return text
	}
	b.Refused(http.StatusServiceUnavailable, "of ann", http.MethodPost, path, strings.NewReader(rows(25)), as...)
	if answer := b.Send(http.MethodPost, path, rows(15), as...); answer.StatusCode != http.StatusOK {
		t.Errorf("less than half is answered %d", answer.StatusCode)
	}
}
