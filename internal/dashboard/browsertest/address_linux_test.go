package browsertest_test

import (
	"strings"
	"testing"
)

// What one looks at on the map stands in the address: who is sent it sees the same part, the same range and the same
// item.
func theMapsAddress(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		run := s.load(request("idle", "nobody"), 5000, plainItem)
		p := b.open(t, s.url)
		p.visit("/runs/" + run.String() + "?range=100-199")
		p.says("selection", "100 items")
		p.has("map")
		p.click("find")
		p.fill("find", "#4321")
		p.press("\r")
		p.until("the address has it",
			`/view=[0-9.]+_[0-9.]+_[0-9.]+/.test(location.search) && location.search.includes("at=4321")`)
		address := eval[string](p, `location.pathname + location.search`)
		if !strings.Contains(address, "range=100-199") {
			t.Errorf("the address is %s", address)
		}
		const shown = `(({view, cursor}) => view.place + " " + cursor)(document.querySelector('[data-test="map"]').surface)`
		want := eval[string](p, shown)

		other := b.open(t, s.url)
		other.visit(address)
		other.says("selection", "100 items")
		other.until("the same is shown", shown+` === "`+want+`"`)
		other.click("zoom-fit")
		other.until("all is shown", `!location.search.includes("view=")`)
	}
}
