package admin

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/orchestrator/client"
)

// Limits that are not named stay, and only who says so keeps everything.
func TestLimitsThatAreSet(t *testing.T) {
	t.Parallel()
	type settings = client.RetentionSettings
	word := func(text string) *string { return &text }
	was := settings{Age: "90d", MaxCount: 7}
	for name, c := range map[string]struct {
		given retentionSet
		want  settings
		wrong string // part of the error
	}{
		"none":           {retentionSet{}, was, "--keep-all"},
		"one":            {retentionSet{MaxBytes: word("1GiB")}, settings{Age: "90d", MaxCount: 7, MaxBytes: 1 << 30}, ""},
		"one off":        {retentionSet{Age: word("off")}, settings{MaxCount: 7}, ""},
		"all off":        {retentionSet{Age: word("off"), MaxCount: word("off")}, settings{KeepAll: true}, ""},
		"keep all":       {retentionSet{KeepAll: true}, settings{KeepAll: true}, ""},
		"keep all but":   {retentionSet{KeepAll: true, Age: word("3d")}, was, "leave it out"},
		"no number":      {retentionSet{MaxCount: word("few")}, was, "--max-count"},
		"less than none": {retentionSet{MaxCount: word("-1")}, was, "--max-count"},
	} {
		set, err := was, c.given.Validate()
		if err == nil {
			err = c.given.change(&set)
		}
		right := err == nil && c.wrong == "" || err != nil && c.wrong != "" && strings.Contains(err.Error(), c.wrong)
		if !right || set != c.want {
			t.Errorf("%s: %+v, %v; want %+v, %q", name, set, err, c.want, c.wrong)
		}
	}
}
