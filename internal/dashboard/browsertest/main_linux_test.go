// Package browsertest_test holds tests of the dashboard in a real browser: people's ways through it, on the keyboard,
// on a phone and in the dark, with each role, against hostile data and over a restart of the server.
//
// One headless Chromium serves all tests of a process, and each page is a separate browser context: no test sees the
// cookies of another. What a page writes to its console as an error, what its content security policy refuses and what
// it requests without an answer fail the test that opened it. Servers, nodes, services and databases are real.
//
// Chromium, or Chrome, is found in PATH, or where the variables CHROMIUM or CHROME say; `make deps` installs it.
package browsertest_test

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestDashboard is all tests, which share a browser. What is measured comes first, while nothing else runs.
func TestDashboard(t *testing.T) { //nolint:tparallel // what is measured runs alone
	t.Parallel()
	b := startBrowser(t)
	t.Run("a million items", million(b))
	t.Run("together", func(t *testing.T) {
		t.Run("every page", everyPage(b, (*page).onScreens))
		t.Run("in 4K", everyPage(b, (*page).onALargeScreen))
		t.Run("roles", roles(b))
		t.Run("many tabs", manyTabs(b))
		t.Run("a proxy", behindAProxy(b))
		for name, walk := range map[string]func(*stack, *page){
			"keyboard": keyboard, "what goes wrong is seen": watchersSee, "health is an inbox": healthIsAnInbox,
			"from a file to its end": fromAFileToItsEnd, "a part is recomputed": aPartIsMadeAgain,
			"a run that ended": aRunThatHasEnded, "two runs compared": twoRunsCompared,
			"why nothing starts": whyNothingStarts, "a list that says why": aListThatSaysWhy,
			"a run that stands": aRunThatStands, "items in groups": itemsInGroups, "find and choose": findAndChoose,
			"a gate": aGate, "a gate that changes": aGateThatChanges,
			"a gate that someone else passed": aGateThatSomebodyElsePassed,
			"a fail-fast limit that holds":    aFailFastLimitThatHolds,
			"the server is restarted":         serverRestarts, "parallel steps": parallelSteps,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newStack(t, stackConfig{})
				walk(s, b.open(t, s.url))
			})
		}
	})
}

// patience is more than any page takes on a busy machine.
const patience = 2 * time.Minute

// browser is a Chromium that lives as long as its test.
type browser struct{ ctx context.Context }

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
	testenv.MustSame(t, chromedp.Do(ctx), nil, "start the browser")
	return &browser{ctx}
}
