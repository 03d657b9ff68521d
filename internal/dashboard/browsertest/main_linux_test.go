package browsertest_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
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
		t.Run("data is corrected", dataIsCorrected(b))
		t.Run("a part is made again", aPartIsMadeAgain(b))
		t.Run("why nothing starts", whyNothingStarts(b))
		t.Run("a run that stands", aRunThatStands(b))
		t.Run("a gate", aGate(b))
		t.Run("a gate that changes", aGateThatChanges(b))
		t.Run("a gate that somebody else passed", aGateThatSomebodyElsePassed(b))
		t.Run("a guard that holds", aGuardThatHolds(b))
		t.Run("a list that says why", aListThatSaysWhy(b))
		t.Run("roles", roles(b))
		t.Run("the server is restarted", serverRestarts(b))
		t.Run("pages are left", pagesAreLeft(b))
		t.Run("many tabs", manyTabs(b))
		t.Run("two runs compared", twoRunsCompared(b))
		t.Run("health is an inbox", healthIsAnInbox(b))
		t.Run("find and choose", findAndChoose(b))
		t.Run("the map's address", theMapsAddress(b))
		t.Run("items in groups", itemsInGroups(b))
		t.Run("what happened", whatHappened(b))
		t.Run("parallel steps", parallelSteps(b))
		t.Run("the focus follows", focusFollows(b))
		t.Run("what goes wrong is seen", watchersSee(b))
	})
}
