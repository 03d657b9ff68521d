package browsertest_test

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
)

// Why a run stands is open, and before all else, on its page, to which any piece of its id leads. A large screen is
// used.
func aRunThatStands(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		run := s.load(request("idle", "nobody"), 5000, plainItem).String()
		p := b.open(t, s.url)
		p.visit("/runs/" + run[14:23])
		p.says("why", "obody listens on endpoint nobody")
		p.until("it stands before the map", `!!(document.querySelector('`+at("why")+`').compareDocumentPosition(
			document.querySelector('`+at("map")+`')) & Node.DOCUMENT_POSITION_FOLLOWING)`)

		p.do("be large", chromedp.EmulateViewport(3840, 2160))
		p.until("the map has the width and the height of the screen", `(({width, height}) => width > 2600 && height > 1000)(
			document.querySelector('`+at("map")+`').getBoundingClientRect())`)
		p.fits("a large screen", 3840)
	}
}

// The list says why a run stands, and how fast one goes as the server says it; a run of which a few items failed does
// not look like one of which many did.
func aListThatSaysWhy(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		s.number(`WITH shut AS (INSERT INTO endpoint_pace (endpoint, breaker, breaker_reason, breaker_since, probe_at)
			VALUES ('statement', 'open', 'most requests fail', tranche_now(), tranche_now() + interval '1 hour') RETURNING 1)
			SELECT count(*) FROM shut`)
		s.listen(&bills{})
		s.load(request("shut", "statement"), 10, plainItem)
		held := s.load(request("held", "statement"), 10, plainItem)
		s.number(`WITH h AS (UPDATE batchrun SET hold = 'threshold', hold_detail = '5 items failed', held_at = tranche_now(),
			held_by = 'tranche' WHERE id = $1 RETURNING 1) SELECT count(*) FROM h`, held)
		for name, failed := range map[string]int{"few": 3, "many": 400} {
			run := s.load(request(name, "statement"), 1000, plainItem)
			s.number(`WITH c AS (UPDATE batchrun SET state = 'completed', finished_at = tranche_now(), done = items - $2::int,
				failed = $2 WHERE id = $1 RETURNING 1) SELECT count(*) FROM c`, run, failed)
		}
		p := b.open(t, s.url)
		p.visit("/runs")
		row := func(name, part string) string {
			return fmt.Sprintf(`[...document.querySelectorAll('tr')].find((r) => r.querySelector('`+at("run-link")+
				`')?.innerText === %q)?.querySelector(%q)`, name, part)
		}
		p.until("it says that the breaker is open", row("shut", at("stands"))+`?.innerText.includes("statement")`)
		p.until("it says why a run is held", row("held", ".runs-state")+`?.innerText.includes("too many failed")`)
		width := func(name string) string {
			return fmt.Sprintf(`(%[1]s.getBoundingClientRect().width / %[1]s.parentElement.getBoundingClientRect().width)`,
				row(name, ".progress .bad"))
		}
		p.until("a few failures are a sliver", width("few")+` > 0 && `+width("few")+` < 0.02`)
		p.until("many are seen as many", width("many")+` > 0.38 && `+width("many")+` < 0.42`)
	}
}
