package browsertest_test

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// patience is more than any page takes on a busy machine.
const patience = 2 * time.Minute

// browser is a Chromium that lives as long as its test.
type browser struct{ ctx context.Context }

// program returns the browser to start.
func program(t *testing.T) string {
	t.Helper()
	if chosen := cmp.Or(os.Getenv("CHROMIUM"), os.Getenv("CHROME")); chosen != "" {
		return chosen
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			return found
		}
	}
	t.Fatal("no Chromium is there, which the dashboard is tested with; install it: make deps\n" +
		"or name one that is not in PATH: CHROMIUM=FILE")
	return ""
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program(t)), chromedp.UserDataDir(t.TempDir()), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.WSURLReadTimeout(patience), chromedp.WindowSize(1440, 900),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-domain-reliability", true), chromedp.Flag("no-pings", true),
		chromedp.Flag("hide-scrollbars", false), chromedp.Flag("enable-precise-memory-info", true),
	)
	allocator, release := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil { // it waits until the browser has gone
			t.Logf("end the browser: %v", err)
		}
		end()
		release()
	})
	if err := chromedp.Do(ctx); err != nil {
		t.Fatalf("start the browser: %v", err)
	}
	return &browser{ctx}
}
