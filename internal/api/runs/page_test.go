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
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// The commands in docs/api.md do what the page says.
func TestTheCommandsOfThePage(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=pause-me")
	page := testenv.Must(os.ReadFile(filepath.Join("..", "..", "..", "docs", "api.md")))(t)
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
		testenv.Same(t, err, nil, "of\n%s%s\ninstall curl if it is missing", block[1], out)
	}
}
