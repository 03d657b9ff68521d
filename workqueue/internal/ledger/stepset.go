package ledger

import (
	"fmt"
)

// Difference is what a change made different, for the audit log and for people.
type Difference struct{ Before, After map[string]any }

func (d *Difference) Add(name string, before, after any) {
	if before == after {
		return
	}
	if d.Before == nil {
		d.Before, d.After = map[string]any{}, map[string]any{}
	}
	d.Before[name], d.After[name] = before, after
}

// Join takes in what is different of one step, under its name where there are several.
func (d *Difference) Join(of *Difference, step string, several bool) {
	for name, before := range of.Before {
		if several {
			d.Add(step+"."+name, before, of.After[name])
		} else {
			d.Add(name, before, of.After[name])
		}
	}
}

// Size is a number, or that nodes find it, with the bound that they keep to.
func Size(n int, auto bool) string {
	if auto {
		return fmt.Sprintf("auto, at most %d", n)
	}
	return fmt.Sprint(n)
}
