package browsertest_test

import (
	"fmt"
	"testing"
)

// Items by a field of their payloads: a row each in the table, a band each in the map, and both in the address.
func itemsInGroups(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		run := s.load(request("idle", "nobody"), 3000, func(i int) (string, string) {
			return fmt.Sprintf("C%d", i), fmt.Sprintf(`{"branch": "b%d", "region": "<b>r</b>"}`, i%7)
		})
		p := b.open(t, s.url)
		p.visit("/runs/" + run.String())
		p.run(`(() => { const e = document.querySelector('[data-test="groups-by"]'); e.value = "branch";
			e.dispatchEvent(new Event("change", {bubbles: true})); })()`)
		p.says("groups-table", "429")
		p.until("the address has it", `location.search.includes("by=branch")`)
		const surface = `document.querySelector('[data-test="map"]').surface`
		p.until("the map is in bands", surface+`.bands?.count === 7`)
		p.until("an item stands in its band", `(({bands}) => { const r = bands.rectOf(3), y = bands.y(10);
			return y >= r.y && y < r.y + r.h && bands.at(bands.x(10), y) === 10; })(`+surface+`)`)
		p.drag(0.2, 0.2, 0.6, 0.6)
		p.lacks("selection")
		p.click("group-3")
		p.until("its band is large", surface+`.view.zoomed`)
		p.visit("/runs/" + run.String() + "?by=region")
		p.says("groups-table", "<b>r</b>")
		p.until("one band", surface+`.bands?.count === 1`)
		p.click("zoom-fit")
		if _, err := s.pool.Exec(t.Context(), `UPDATE work_block SET failed = ready, ready = B'0'::bit(8192)
			WHERE run_id = $1`, run); err != nil {
			t.Fatal(err)
		}
		p.until("what changes is seen", surface+`.bands.shown.data[2999] === 6`) // a node has claimed the first ones
		failed := s.number(`SELECT sum(bit_count(failed)) FROM work_block WHERE run_id = $1`, run)
		p.says("groups-table", fmt.Sprintf("%d,%03d", failed/1000, failed%1000))
	}
}
