package runs

import (
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/workqueue"
)

// The table of settings in docs/operations.md names each setting and its flag.
func TestSettingsAreInTheTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	flags := maps.Collect(workqueue.Flags())
	for _, name := range gather.OverrideFields() {
		flag, ofStep := flags[name]
		if !ofStep {
			flag = "--" + strings.ReplaceAll(name, "_", "-")
		}
		row := regexp.MustCompile("(?m)^\\| `" + name + "`.* \\| `" + flag + "`")
		if !row.Match(text) {
			t.Errorf("no row says that %s is %s in run start", name, flag)
		}
	}
}
