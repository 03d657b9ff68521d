package browsertest_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestDashboard is all tests, which share a browser. What is measured comes first, while nothing else runs.
func TestDashboard(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	t.Run("a million items", func(t *testing.T) { million(t, b) })
	t.Run("together", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *browser){
			"from a file to its end":   fromAFileToItsEnd,
			"a part is made again":     aPartIsMadeAgain,
			"roles":                    roles,
			"keyboard":                 keyboard,
			"the server is restarted":  serverRestarts,
			"pages are left":           pagesAreLeft,
			"every page":               everyPage,
			"a page that is disturbed": watchersSee,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, b)
			})
		}
	})
}
