package intake_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/intake"
)

// What is defused comes back as it was, and what looks like it as well.
func TestFormulasComeBack(t *testing.T) {
	t.Parallel()
	for cell, want := range map[string]string{
		"=1+1": "'=1+1", "@x": "'@x", "-x": "'-x", "'=1": "''=1", "''=1": "'''=1", "'it is": "'it is", "": "", "'": "'",
		"-12.5": "-12.5", "+49301234567": "+49301234567", "+49 30": "'+49 30", "\tx": "'\tx", "plain": "plain", "＝1": "'＝1",
	} {
		got := intake.Defuse(cell)
		if got != want {
			t.Errorf("%q is written as %q; want %q", cell, got, want)
		}
		if back := intake.Armed(got); back != cell {
			t.Errorf("%q is written as %q, and read as %q", cell, got, back)
		}
	}
}
