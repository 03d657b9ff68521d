package runs_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/apitest"
)

// The commands in docs/api.md do what the page says.
func TestTheCommandsOfThePage(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=pause-me")
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "api.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 5 {
		t.Fatalf("the page has only %d blocks of commands", len(blocks))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for _, block := range blocks {
		run := exec.CommandContext(ctx, "sh", "-e", "-c", block[1])
		run.Env = append(os.Environ(), "TRANCHE="+b.URL, "NO_PROXY=*")
		out, err := run.CombinedOutput()
		if err != nil {
			t.Errorf("%v of\n%s%s\ninstall curl if it is missing", err, block[1], out)
		}
	}
}
