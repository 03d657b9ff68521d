package browsertest_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestDashboard is all tests, which share a browser. What is measured comes first, while nothing else runs.
func TestDashboard(t *testing.T) { //nolint:tparallel // what is measured runs alone
	t.Parallel()
	b := startBrowser(t)
	t.Run("a million items", million(b))
	t.Run("together", func(t *testing.T) {
		t.Run("every page", everyPage(b))
		t.Run("keyboard", keyboard(b))
		t.Run("from a file to its end", fromAFileToItsEnd(b))
		t.Run("failures are accepted", failuresAreAccepted(b))
		t.Run("a part is made again", aPartIsMadeAgain(b))
		t.Run("why nothing starts", whyNothingStarts(b))
		t.Run("a run that stands", aRunThatStands(b))
		t.Run("a list that says why", aListThatSaysWhy(b))
