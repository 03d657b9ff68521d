package browsertest_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	startstore "github.com/tranchehq/tranche/workqueue/start"
)

// three items of a hundred cannot be done, for two reasons.
func threeBad(key string) (code, message string) {
	switch key {
	case "C7", "C42":
		return "no_address", "customer " + key + " has no address"
	case "C90":
		return "blocked", "the account is blocked"
	}
	return "", ""
}

// A person drops a file, looks at it, tries it, starts it, sees it finish with three errors and runs those again.
func fromAFileToItsEnd(s *stack, p *page) {
	service := &bills{codes: threeBad, gate: make(chan struct{}, 1000)}
	s.listen(service)
	p.visit("/runs")
	p.click("start")
	p.has("start-page")
	p.click("what-endpoint")
	p.until("services are known", `document.querySelector('`+at("listens")+`')`)
	p.fill("endpoint", "sttement")
	p.says("meant", "statement")
	p.clickOn("what was meant", at("meant")+" button")
	p.lacks("meant")

	var csv strings.Builder
	csv.WriteString("customer,name\n")
	for i := range 100 {
		fmt.Fprintf(&csv, "C%d,Person %d\n", i, i)
	}
	p.drop("drop", "numbers.ndjson", `{"id":"A","amount":12345678901234567890}`+"\n")
	p.says("preview", "12345678901234567890")
	p.drop("drop", "customers.csv", csv.String())
	p.says("preview", "Person 1")
	p.fill("name", "October")
	p.fill("chunk", "10")

	p.click("dry-run")
	p.says("findings", "100")
	testenv.MustSame(s, s.number(`SELECT count(*) FROM batchrun`), 0, "runs that a dry run stored")
	p.click("go")
	p.until("the page of the run", `/^\/runs\/[0-9a-f-]{36}$/.test(location.pathname)`)
	p.has("run-page")
	run := runOf(p)

	// It is followed live: as the service continues, the page says so.
	p.until("it runs", `document.querySelector('h1 [data-state]')?.dataset.state === "running"`)
	for range 5 {
		service.gate <- struct{}{}
	}
	p.until("half of it is done", `/\b(4[789]|50)\b/.test(document.querySelector('`+at("numbers")+`')?.innerText)`)
	supposedBySlider(s, p)
	close(service.gate)
	p.until("it is completed", `document.querySelector('h1 [data-state]')?.dataset.state === "completed"`)
	p.until("the map shows three that failed", `/\b3\b/.test(document.querySelector('`+at("legend-6")+`')?.innerText)`)

	p.visit("/runs/" + run + "/errors")
	p.until("two groups", `document.querySelectorAll('`+at("group")+`').length === 2`)
	p.says("group", "no_address")
	p.says("group", "blocked")

	// A sample that fails again says why, and the first thing that it offers is not to let the others go.
	p.click("rerun-failed")
	p.has("rerun-dialog")
	p.click("canary")
	p.fill("canary-items", "2")
	p.click("rerun-go")
	p.says("verdict", "failed again, for the same cause as before")
	p.until("what failed is the first button",
		`document.querySelector('`+at("follow")+` .dialog-buttons').firstElementChild.dataset.test === "see-errors"`)
	p.click("approve")
	p.says("approve-anyway-dialog", "2 of 2 failed")
	p.click("confirm-yes")
	s.ended(runID(s.T, run))

	p.visit("/runs/" + run + "/errors")
	service.well.Store(true)
	p.click("rerun-failed")
	p.has("rerun-dialog")
	p.click("rerun-go")
	p.has("rerun-follow")
	s.ended(runID(s.T, run))
	p.visit("/runs/" + run + "/errors")
	p.has("no-errors")
	testenv.Same(s, s.number(`SELECT failed FROM batchrun`), 0, "items have failed")
}

// A slider shows when the run would end, again while it is dragged, and changes nothing until that is asked for.
func supposedBySlider(s *stack, p *page) {
	p.has("slide-priority")
	for _, to := range []string{"-8", "5"} {
		p.run(`(() => { const e = document.querySelector('` + at("slide-priority") + `');
			e.value = "` + to + `"; e.dispatchEvent(new Event("input", {bubbles: true})); })()`)
		p.says("supposed", "priority="+to+": would end")
		if to == "-8" { // who leaves it has set nothing
			p.run(`document.querySelector('` + at("slide-priority") +
				`').dispatchEvent(new FocusEvent("focusout", {bubbles: true}))`)
			p.lacks("slid-priority")
		}
	}
	p.until("its band", `document.querySelectorAll('`+at("supposed")+` g.then rect').length === 2`)
	const priority = `SELECT priority FROM batchrun`
	testenv.Same(s, s.number(priority), 0, "a slider that was dragged set the priority")
	p.click("slid-priority")
	s.until("the priority is set", priority)
	p.lacks("supposed")

	// A change that began from what another has changed meanwhile is a conflict, until it is sent again.
	p.fill("set-priority", "7")
	s.post("/runs/"+runOf(p)+"/settings", "application/json", `{"priority": 3, "max_failed": "50"}`)
	p.until("the page has the change", `document.querySelector('`+at("set-max_failed")+`').value === "50"`)
	p.press("\r")
	p.allow("409")
	p.says("knob-priority", "It is now 3")
	testenv.Same(s, s.number(priority), 3, "the priority after a conflict")
	p.press("\r")
	s.until("it is set anyway", `SELECT count(*) FROM batchrun WHERE priority = 7`)
}

func runOf(p *page) string {
	p.Helper()
	return strings.Split(eval[string](p, `location.pathname`), "/")[2]
}

func runID(t *testing.T, text string) workqueue.RunID {
	t.Helper()
	id := testenv.Must(uuid.Parse(text))(t)
	return workqueue.RunID(id)
}

func (s *stack) number(query string, args ...any) (n int) {
	s.Helper()
	testenv.NoError(s, s.Pool.QueryRow(s.Context(), query, args...).Scan(&n))
	return n
}

func (p *page) drop(test, name, text string) {
	p.Helper()
	p.has(test)
	body := testenv.Must(json.Marshal(text))(p)
	p.run(fmt.Sprintf(`(() => {
		const files = new DataTransfer();
		files.items.add(new File([%s], %q, {type: "text/csv"}));
		const on = document.querySelector('%s');
		for (const kind of ["dragenter", "dragover", "drop"]) {
			on.dispatchEvent(new DragEvent(kind, {dataTransfer: files, bubbles: true, cancelable: true}));
		}
	})()`, body, name, at(test)))
}

// A range on the map is selected with the mouse, and its parts are recomputed; a part of one item on its page.
func aPartIsMadeAgain(s *stack, p *page) {
	s.listen(&bills{codes: threeBad})
	run := s.load(request("again", "statement"), 500, plainItem)
	s.ended(run)
	p.visit("/runs/" + run.String())
	p.has("map")
	p.until("the map is drawn", `document.querySelector('`+at("legend-5")+`')?.innerText.includes("497")`)
	p.drag(0.1, 0.5, 0.6, 0.5)
	p.has("selection")
	p.click("reset")
	p.has("reset-dialog")
	p.says("reset-tried", "would be recomputed")
	p.click("reset-go")
	p.lacks("reset-dialog")
	s.until("parts are recomputed", `SELECT count(*) FROM work_result WHERE generation = 2`)
	s.ended(run)

	p.visit("/runs/" + run.String() + "/item?key=C3")
	p.has("item-page")
	p.click("reset-part")
	p.has("reset-dialog")
	p.click("reset-go")
	s.until("the part is recomputed", `SELECT count(*) FROM work_result WHERE ordinal = 3 AND generation =
	(SELECT max(generation) FROM batchrun) AND generation > 2`)
}

// until waits for a count that is not 0.
func (s *stack) until(what, query string) {
	s.Helper()
	testenv.Until(s, patience, what, func() bool { return s.number(query) > 0 })
}

func plainItem(i int) (key, payload string) {
	return fmt.Sprint("C", i), fmt.Sprintf(`{"name":"Person %d"}`, i)
}

// The list says why a run stands, and how fast one goes as the server says it; a run of which a few items failed does
// not look like one of which many did.
func aListThatSaysWhy(s *stack, p *page) {
	s.number(`WITH shut AS (INSERT INTO endpoint_pace (endpoint, breaker, breaker_reason, breaker_since, probe_at)
		VALUES ('statement', 'open', 'most requests fail', tranche_now(), tranche_now() + interval '1 hour') RETURNING 1)
		SELECT count(*) FROM shut`)
	s.listen(&bills{})
	s.load(request("shut", "statement"), 10, plainItem)
	held := s.load(request("held", "statement"), 10, plainItem)
	s.number(`WITH h AS (UPDATE batchrun SET hold = 'threshold', hold_detail = '5 items failed', held_at = tranche_now(),
		held_by = 'tranche' WHERE id = $1 RETURNING 1) SELECT count(*) FROM h`, held)
	s.number(`WITH n AS (INSERT INTO schedule (name, spec, source, zone, created_by, changed_by)
		VALUES ('nightly', '{}', '', 'UTC', '', '') RETURNING 1) SELECT count(*) FROM n`)
	for name, failed := range map[string]int{"few": 3, "many": 400, "old night": 0, "night": 0} {
		run := s.load(request(name, "statement"), 1000, plainItem)
		s.number(`WITH c AS (UPDATE batchrun SET state = 'completed', finished_at = tranche_now(), done = items - $2::int,
			failed = $2, schedule = CASE WHEN name LIKE '%night' THEN 'nightly' END WHERE id = $1 RETURNING 1)
			SELECT count(*) FROM c`, run, failed)
	}
	aWall(s, p)
	p.visit("/runs")
	row := func(name, part string) string {
		return fmt.Sprintf(`[...document.querySelectorAll('tr')].find((r) => r.querySelector('`+at("run-link")+
			`')?.innerText === %q)?.querySelector(%q)`, name, part)
	}
	p.until("it says that the breaker is open", row("shut", at("blocker"))+`?.innerText.includes("statement")`)
	p.until("it says why a run is held", row("held", ".runs-state")+`?.innerText.includes("too many failed")`)
	width := func(name string) string {
		return fmt.Sprintf(`(%[1]s.getBoundingClientRect().width / %[1]s.parentElement.getBoundingClientRect().width)`,
			row(name, ".progress .bad"))
	}
	p.until("a few failures are a sliver", width("few")+` > 0 && `+width("few")+` < 0.02`)
	p.until("many are seen as many", width("many")+` > 0.38 && `+width("many")+` < 0.42`)
	p.until("no few are an alarm", row("few", at("state"))+`.matches(".tone-warn") && `+
		row("many", at("state"))+`.matches(".tone-bad")`)
	p.until("what is stuck is not calm", row("shut", at("state"))+`.matches(".tone-warn")`)
	p.until("what needs attention comes first", `[...document.querySelectorAll('`+at("attention")+` `+at("run-link")+
		`')].map((e) => e.innerText).sort().join() === "held,shut"`)
	p.until("a schedule has one line", `document.querySelectorAll('`+at("strip")+` i').length === 2`)
	p.click("of-schedule")
	p.until("all of its runs", `document.querySelectorAll('`+at("run-link")+`').length === 2`)
	p.click("only-schedule")
	p.has("attention")
	names := func(what, want string) {
		p.until(what, `[...document.querySelectorAll('`+at("run-link")+
			`')].map((e) => e.innerText).join().startsWith("`+want+`")`)
	}
	p.click("sort-failed")
	names("the most failed first", "many,few,")
	p.click("views")
	p.click("save-view")
	p.inBothThemes("saving a view")
	p.fill("view-name", "worst")
	p.press(kb.Enter)
	p.click("state-attention")
	p.lacks("sort-failed")
	p.click("views")
	p.click("view")
	p.until("the saved view", `location.search === "?sort=failed"`)
	s.post("/plans", "application/yaml", "name: statement\nsteps: [{endpoint: statement}]\n")
	p.visit("/plans?name=statement")
	p.says("durations", "Half of the last 4 took at most")
	p.accessible("how long a plan's runs took")

	p.allow("409")
	p.visit("/endpoint?name=statement")
	p.click("change-max_in_flight")
	p.fill("input-max_in_flight", "7")
	s.post("/endpoints/statement/settings", "application/json", `{"max_in_flight": 9}`)
	p.press(kb.Enter)
	p.says("control-max_in_flight", "It is now 9. Press Enter to set 7 anyway.")
	p.press(kb.Enter)
	s.until("it is set anyway", `SELECT count(*) FROM endpoint_setting WHERE max_in_flight = 7`)
	p.forgets("control-max_in_flight", "?name=other")
}

// A screen on a wall shows what continues and what needs attention, as it changes, in large type and without controls.
func aWall(s *stack, p *page) {
	p.inTheme("light")
	p.do("be a wall", chromedp.EmulateViewport(3840, 2160))
	p.visit("/wall")
	p.says("wall-runs", "held")
	p.says("wall-runs", "Paused: too many items failed")
	p.has("wall-needs")
	p.until("it is dark and large, without controls", `matchMedia("(prefers-color-scheme: light)").matches &&
		document.documentElement.dataset.theme === "dark" && !document.querySelector("a, button, input, [tabindex='0']") &&
		[...document.querySelectorAll(".wall *")].every((e) => parseFloat(getComputedStyle(e).fontSize) > 70)`)
	p.fits("a wall", 3840)
	p.until("all is on the screen", `document.documentElement.scrollHeight <= innerHeight`)
	s.post("/runs/shut/pause", "application/json", `{}`)
	p.says("wall-runs", "Paused by an operator")
	s.post("/runs/shut/resume", "application/json", `{}`)
	p.asPhone()
	p.fits("a phone", 390)
	p.inBothThemes("a wall on a phone")
	p.do("be a screen", chromedp.EmulateViewport(1440, 900))
}

// A run of which three items failed, as people find it: they go to it, accept what failed, correct an item, and read
// what happened.
func aRunThatHasEnded(s *stack, p *page) {
	s.listen(&bills{codes: threeBad})
	run := s.load(request("October", "statement"), 100, plainItem)
	s.ended(run)
	focusFollows(s, p)
	failuresAreAccepted(s, p, run)
	dataIsCorrected(s, p, run)
	whatHappened(p, run)
}

// A user who goes to another page is at its heading, which is read out, by any way.
func focusFollows(s *stack, p *page) {
	at := func(heading string) {
		s.Helper()
		p.until("at "+heading, `document.activeElement?.tagName === "H1" && document.activeElement.innerText.includes("`+
			heading+`") && document.title.includes("`+heading+`")`)
	}
	p.visit("/runs")
	p.click("nav-plans")
	at("Plans")
	p.chord("g", "e")
	at("Endpoints")
	p.run(`history.back()`)
	at("Plans")
	p.click("nav-runs")
	at("Runs")
	p.click("run-link")
	at("October")
	p.press(kb.Tab)
	p.until("Tab continues from there",
		`document.activeElement?.closest("#main") && document.activeElement.tagName !== "H1"`)
}

// An operator accepts a group of errors and then all, sees it at an item and at the run, and withdraws one.
func failuresAreAccepted(s *stack, p *page, run workqueue.RunID) {
	p.visit("/runs/" + run.String() + "/errors")
	p.has("group")
	p.click("accept-group") // the first has two items
	p.fill("reason", "they are to be written to")
	p.click("dry-run")
	p.says("tried", "2 items would be accepted; then 2 of the 3")
	p.click("accept-go")
	p.lacks("accept-dialog")
	p.says("accepted", "accepted")
	p.says("errors-page", "2 of them accepted")
	p.click("accept-failed")
	p.says("accept-dialog", "1 item of October")
	p.fill("reason", "blocked permanently")
	p.click("accept-go")
	p.lacks("accept-dialog")
	p.says("errors-page", "3 of them accepted")

	p.visit("/runs/" + run.String())
	p.says("numbers", "3 accepted")
	p.visit("/runs/" + run.String() + "/item?key=C42")
	p.says("acceptance", "they are to be written to")
	p.click("accept-part")
	p.click("accept-go")
	p.lacks("acceptance")
	testenv.Same(s, s.number(`SELECT accepted FROM batchrun`), 2, "items are accepted")
}

// An operator corrects the data of an item on its page: what is not JSON cannot be sent, numbers keep their digits, and
// what the item had stays known.
func dataIsCorrected(s *stack, p *page, run workqueue.RunID) {
	p.visit("/runs/" + run.String() + "/item?key=C5")
	p.click("correct-item")
	p.fill("correct-payload", `{"name":"Bob"`)
	p.says("correct-dialog", "JSON is broken")
	p.fill("correct-payload", `{"name":"Bob","n":12345678901234567890}`)
	p.fill("reason", "it is Bob")
	p.click("dry-run")
	p.says("tried", "would be corrected, as generation 2")
	p.click("correct-go")
	p.has("correct-follow")
	s.ended(run)
	p.visit("/runs/" + run.String() + "/item?key=C5")
	p.says("payload", "12345678901234567890")
	p.says("earlier-payloads", "until generation 2")
	p.says("earlier-payloads", "it is Bob")
	p.forgets("correct-item", "?key=C42")
}

// What happened to a run stands on the axis of its charts, and in words; people add notes.
func whatHappened(p *page, run workqueue.RunID) {
	p.visit("/runs/" + run.String())
	for _, said := range []string{"Started by test", "billing@1.0.0 first answered at statement",
		"Completed, generation 1"} {
		p.says("history-list", said)
	}
	p.until("marks on the axis", `document.querySelectorAll('`+at("mark")+`').length > 0`)
	p.until("marks where the chart draws", `[...document.querySelectorAll('`+at("mark")+`')].every((e) => {
		const mark = e.getBoundingClientRect();
		const chart = document.querySelector('`+at("throughput")+` svg').getBoundingClientRect();
		return mark.left >= chart.left && mark.right <= chart.right; })`)
	p.fill("note", "the bank called <b>twice</b>")
	p.press(kb.Enter)
	p.says("history-list", "the bank called <b>twice</b>")
	p.until("the field is empty", `document.querySelector('`+at("note")+`').value === ""`)
	for _, theme := range []string{"light", "dark"} {
		p.inTheme(theme)
		p.accessible(theme)
	}
	p.asPhone()
	p.fits("a phone", 390)
}

// Why a run stands is open, and before all else, on its page, to which any piece of its id leads. A large screen is
// used.
func aRunThatStands(s *stack, p *page) {
	run := s.load(request("idle", "nobody"), 5000, plainItem).String()
	pagesAreLeft(p, run)
	theMapsAddress(p, run)
	p.visit("/runs/" + run[14:23])
	p.says("why", "o service listens on endpoint nobody")
	p.says("remedies", "Endpoint nobody")
	p.until("it stands before the map", `!!(document.querySelector('`+at("why")+`').compareDocumentPosition(
		document.querySelector('`+at("map")+`')) & Node.DOCUMENT_POSITION_FOLLOWING)`)

	p.do("be large", chromedp.EmulateViewport(3840, 2160))
	p.until("the map has the width and the height of the screen", `(({width, height}) => width > 2600 && height > 1000)(
		document.querySelector('`+at("map")+`').getBoundingClientRect())`)
	p.fits("a large screen", 3840)
}

// What one looks at on the map stands in the address: who is sent it sees the same part, the same range and the same
// item.
func theMapsAddress(p *page, run string) {
	p.visit("/runs/" + run + "?range=100-199")
	p.says("selection", "100 items")
	p.has("map")
	p.click("find")
	p.fill("find", "#4321")
	p.press("\r")
	p.until("the address has it",
		`/view=[0-9.]+_[0-9]+(_[0-9.-]+){2}/.test(location.search) && location.search.includes("at=4321")`)
	address := eval[string](p, `location.pathname + location.search`)
	testenv.Has(p, address, "range=100-199", "the address")
	const surface = `document.querySelector('[data-test="map"]').surface`
	const shown = `(s => [s.ordinalAt(s.view.width / 2, s.view.height / 2, true),
		(s.view.scale / s.view.fitScale).toFixed(2), s.cursor].join(" "))(` + surface + `)`
	other := p.b.open(p.T, p.base)
	for i, at := range []int{4321, 0, 4999, 77, 2500, 1234, 3900, 49, 4951, 600} {
		zoom := fmt.Sprintf("%.2f", 1.3+0.2*float64(i))
		address = fmt.Sprintf("/runs/%s?range=100-199&view=%s_%d_0.5_0.5&at=%d", run, zoom, at, at)
		other.do("have another window", chromedp.EmulateViewport(900+int64(i)*150, 700+int64(i%3)*200))
		other.visit(address)
		other.says("selection", "100 items")
		other.until("its zoom and its item", surface+`?.layout && `+shown+`.endsWith("`+fmt.Sprintf("%s %d", zoom, at)+`")`)
		want := eval[string](other, shown)
		other.do("resize it", chromedp.EmulateViewport(1300, 1000))
		other.until("the address stays", fmt.Sprintf(`location.pathname + location.search === %q`, address))
		other.do("and back", chromedp.EmulateViewport(900+int64(i)*150, 700+int64(i%3)*200))
		other.until("the same is shown", shown+` === "`+want+`"`)
	}
	other.click("zoom-fit")
	other.until("all is shown", `!location.search.includes("view=")`)
}

// Pages that are left hold no connection: however many there were, the next one is loaded. On the way back they are
// live.
func pagesAreLeft(p *page, run string) {
	for range 4 {
		p.visit("/runs")
		p.visit("/runs/" + run)
	}
	p.run(`history.back()`)
	p.until("the list", `location.pathname === "/runs"`)
	p.settled()
	p.until("it is live", `document.querySelector('`+at("connection")+`')?.dataset.state === "live"`)
}

// A run beside the one before it: what was fixed, which results are others, and in what they differ.
func twoRunsCompared(s *stack, p *page) {
	service := &bills{codes: threeBad}
	s.listen(service)
	before := s.load(request("October", "statement"), 50, plainItem)
	s.ended(before)
	service.well.Store(true)
	now := s.load(request("November", "statement"), 51, func(i int) (string, string) {
		key, payload := plainItem(i)
		if i == 5 {
			payload = fmt.Sprintf(`{"name": "Renamed %d"}`, i)
		}
		return key, payload
	})
	s.ended(now)
	p.visit("/runs/" + now.String())
	p.click("more")
	p.click("menu-compare")
	p.has("comparison-page")
	p.says("change-newly_fixed", "2")
	p.says("change-changed", "1")
	p.says("change-only_here", "1")
	p.says("list-newly_fixed", "C42")
	p.click("show-difference")
	p.until("the difference", `document.querySelector('`+at("list-changed")+` del') && document.querySelector('`+
		at("list-changed")+` ins').innerText.includes("Renamed 5")`)
	p.says("comparison-steps", "October → now")
	p.until("both are named", `document.querySelector("h1").innerText === "November against October"`)
	p.forgets("comparison-steps", "?against="+before.String())
}

const gathering = `
name: gathering
steps:
  - {name: accounts, endpoint: accounts}
  - {name: movements, endpoint: movements}
  - {name: statement, endpoint: statement, needs: [accounts, movements]}
`

// Steps that go side by side stand side by side, behind one another those that need one another.
func parallelSteps(s *stack, p *page) {
	p.visit("/plans")
	p.run("window.__plan = `" + gathering + "`")
	if status := eval[int](p, `fetch("/api/v1/plans", {method: "POST", body: window.__plan,
		headers: {"Content-Type": "application/yaml"}}).then((r) => r.status)`); status >= 300 {
		s.Fatalf("the plan is answered with %d", status)
	}
	p.visit("/plans?name=gathering")
	p.has("step-graph")
	p.until("a graph", `(() => {
		const [accounts, movements, statement] = [...document.querySelectorAll('`+at("graph-step")+`')]
			.map((e) => e.getBoundingClientRect());
		return accounts.left === movements.left && accounts.bottom < movements.top && statement.left > accounts.right &&
			document.querySelectorAll('`+at("step-graph")+` path').length === 2; })()`)
	p.accessible("light")
	p.asPhone()
	p.fits("a phone", 390)

	p.allow("409", "412")
	p.visit("/plans?name=gathering&edit=1")
	p.fill("plan-source", gathering+"# mine\n")
	p.click("apply")
	p.says("plan-page", "Version 2, the newest")
	p.click("edit")
	p.has("plan-source")
	s.post("/plans", "application/yaml", gathering+"# of another\n")
	p.click("apply")
	p.says("plan-errors", "gathering is 3")
}

// Items by a field of their payloads: a row each in the table, a band each in the map, and both in the address.
func itemsInGroups(s *stack, p *page) {
	run := s.load(request("idle", "nobody"), 3000, func(i int) (string, string) {
		return fmt.Sprintf("C%d", i), fmt.Sprintf(`{"branch": "b%d", "region": "<b>r</b>"}`, i%7)
	})
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
	testenv.Must(s.Pool.Exec(s.Context(), `UPDATE work_block SET failed = ready, ready = B'0'::bit(8192)
		WHERE run_id = $1`, run))(s)
	p.until("what changes is seen", surface+`.bands.shown.data[2999] === 6`) // a node has claimed the first ones
	failed := s.number(`SELECT sum(bit_count(failed)) FROM work_block WHERE run_id = $1`, run)
	p.says("groups-table", fmt.Sprintf("%d,%03d", failed/1000, failed%1000))
}

// Search from anywhere finds runs, pages and items; several runs are acted on together; a tab says how its run goes.
func findAndChoose(s *stack, p *page) {
	first := s.load(request("alpha", "nobody"), 100, plainItem)
	s.load(request("beta", "nobody"), 100, plainItem)
	s.load(request("gamma", "nobody"), 100, plainItem)
	p.visit("/health")
	search := func(text, found string) {
		p.Helper()
		p.do("Ctrl K", chromedp.KeyEvent("k", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
		p.fill("search-text", text)
		p.until("it is found",
			`document.querySelector('[role=option][aria-selected=true]')?.innerText.includes("`+found+`")`)
		p.press(kb.Enter)
		p.lacks("search")
	}
	s.post("/schedules", "application/yaml", "name: nightly\ncron: 0 3 * * *\nplan: nothing\nitems: {file: a.csv}\n")
	s.post("/collectors", "application/yaml", "name: crm\nendpoint: nobody\nmin_size: 2\n")
	p.allow("404") // of keys that the run does not have
	search("nightl", "nightly")
	p.until("the schedule", `location.pathname + location.search === "/schedules?name=nightly"`)
	search("crm", "crm")
	p.until("the collector", `location.pathname + location.search === "/collectors?name=crm"`)
	search("alph", "alpha")
	p.until("the run", `location.pathname === "/runs/`+first.String()+`"`)
	p.until("its tab says how it goes", `document.title === "0 % · alpha"`)
	search("pau", "Pause")
	p.says("state", "paused")
	search("C42", "C42")
	p.has("item-page")
	p.until("a request has its logs", `document.querySelector('`+at("link")+`')?.href.startsWith("http://logs.test/?q=")`)
	p.do("Ctrl K", chromedp.KeyEvent("k", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
	p.fill("search-text", "no such key")
	p.inBothThemes("searching")
	p.until("what does not exist is not offered",
		`document.querySelector('[role=dialog], dialog').innerText.includes("Nothing found")`)
	p.press(kb.Escape)
	p.visit("/no/such/page")
	p.until("an unknown path is a page", `document.querySelector("h1").innerText === "Nothing here"`)
	search("dead let", "Dead letters")
	p.has("letters-page")

	p.visit("/runs")
	p.run(`[...document.querySelectorAll('` + at("choose") + `')].filter((e) => /beta|gamma/.test(e.ariaLabel)).
		forEach((e) => e.click())`)
	p.says("bulk", "2 runs")
	p.click("bulk-pause")
	p.until("both are paused", `[...document.querySelectorAll('#main [data-row]')].filter((e) =>
		e.innerText.includes("paused")).length === 3`)
	p.lacks("bulk")
}

// The page of a run that its fail-fast limit holds says why; the first button leads to what failed, and going on
// must be confirmed.
func aFailFastLimitThatHolds(s *stack, p *page) {
	s.listen(&bills{codes: func(string) (string, string) { return "bad_payload", "balance is a number, want a text" }})
	req := request("year-end", "statement")
	req.FailFast = workqueue.FailFast{Failures: 20, Within: 40}
	req.Steps[0].Chunk, req.Steps[0].InFlight = 40, 1
	run := s.load(req, 1000, plainItem)
	p.visit("/runs/" + run.String())
	p.says("hold", "too many first outcomes failed")
	p.says("hold", "bad_payload")
	p.until("what changes nothing is the first button, and to continue the last one before the menu",
		`(([first, ...all]) => first.dataset.test === "errors" && all.at(-2).dataset.test === "resume")(
			[...document.querySelectorAll(".page-actions .btn")])`)
	p.accessible("a run that its fail-fast limit holds")
	p.click("resume")
	p.says("resume-dialog", "may fail in the same way")
	p.until("to leave it is chosen", `document.activeElement.dataset.test === "confirm-no"`)
	p.click("confirm-no")
	p.lacks("resume-dialog")
	p.says("hold", "too many first outcomes failed")
	p.click("errors")
	p.says("groups", "bad_payload")
	p.visit("/runs/" + run.String())
	p.click("resume")
	p.click("confirm-yes")
	s.ended(run)
}

// gated is a run of two steps with a gate between them.
func gated(name string) startstore.LoadRequest {
	req := request(name, "statement")
	req.Steps[0].Name = "compose"
	send := req.Steps[0]
	send.Name, send.Needs, send.Barrier, send.Approval = "send", []int{0}, true, workqueue.ApproveAnyone
	req.Steps = append(req.Steps, send)
	return req
}

// withoutAddress is a service that refuses C3.
func withoutAddress() *bills {
	return &bills{codes: func(key string) (string, string) {
		if key == "C3" {
			return "no_address", "there is none"
		}
		return "", ""
	}}
}

// A gate shows what would continue, some of it, and what is other than in the run before; what changes nothing
// stands first among the buttons, and the word that lets it begin is requested again.
func aGate(s *stack, p *page) {
	service := withoutAddress()
	s.listen(service)
	for i := range 2 {
		run := s.load(gated(fmt.Sprint("year ", i)), 10, plainItem)
		p.visit("/runs/" + run.String())
		p.says("gate", "9 items continue")
		if i == 0 {
			p.lacks("beside")
		} else {
			p.says("beside", "year 0")
		}
		const button = `(gate => gate.querySelector('[data-test="gate-approve"]').getBoundingClientRect().top -
			gate.getBoundingClientRect().top)(document.querySelector('[data-test="gate"]'))`
		stood := eval[float64](p, button)
		p.says("gate-before", "1 failed")
		p.says("gate-sample", "C")
		if i == 1 {
			p.says("gate-changes", "still failing: 1")
			testenv.Same(s, eval[float64](p, button), stood, "the button's place, once the comparison is there")
			p.accessible("a gate")
		}
		p.until("what lets it begin is the last button",
			`document.querySelector('`+at("gate")+` .card-buttons').lastElementChild.dataset.test === "gate-approve"`)
		p.visit("/runs")
		p.says("waits-approval", "send")
		p.visit("/runs/" + run.String())
		p.click("gate-approve")
		p.has("gate-dialog")
		if i == 1 {
			p.inBothThemes("approving")
		}
		p.fill("gate-reason", "looks good")
		p.click("confirm-yes")
		s.ended(run)
		p.lacks("gate")
	}
	n := s.number(`SELECT count(*) FROM audit_log WHERE action = 'approve' AND detail->>'reason' = 'looks good'`)
	testenv.Same(s, n, 2, "approvals say why")
}

// What was redone before a gate while someone looks does not continue by their word: the page says what is other than
// they have seen, and asks again with that.
func aGateThatChanges(s *stack, p *page) {
	service := withoutAddress()
	s.listen(service)
	run := s.load(gated("year"), 10, plainItem)
	p.allow("409")
	p.visit("/runs/" + run.String())
	p.says("gate", "9 items continue")
	p.click("gate-approve")
	p.says("gate-dialog", "9 items continue")

	service.well.Store(true)
	s.post("/runs/"+run.String()+"/rerun", "application/json", `{"failed":true}`)
	s.until("the gate waits again", `SELECT count(*) FROM run_step JOIN batchrun r ON r.id = run_id
		WHERE r.generation = 2 AND gate_since IS NOT NULL`)
	p.hear()
	p.click("confirm-yes")
	p.lacks("gate-dialog")
	p.heard("was not approved")
	p.says("gate-news", "items that continue: 9 → 10")
	p.says("gate-news", "compose: failed: 1 → 0")
	p.says("gate", "10 items continue")
	p.accessible("a gate that changed")
	testenv.Same(s, s.number(`SELECT count(*) FROM audit_log WHERE action = 'approve'`), 0,
		"approvals of what no one has seen")
	p.click("gate-approve")
	p.says("gate-dialog", "10 items continue")
	p.says("gate-dialog", "9 → 10")
	p.click("confirm-yes")
	s.ended(run)
	p.lacks("gate")
}

// Who comes too late with their word is told whose it was, in the dialog that stands and by the page.
func aGateThatSomebodyElsePassed(s *stack, p *page) {
	service := &bills{gate: make(chan struct{}, 1), codes: func(string) (string, string) { return "", "" }}
	service.gate <- struct{}{} // for compose; what is sent stays out
	s.listen(service)
	run := s.load(gated("year"), 10, plainItem)
	p.allow("409")
	p.visit("/runs/" + run.String())
	p.click("gate-approve")
	p.has("gate-dialog")
	s.post("/runs/"+run.String()+"/approve", "application/json", `{"step":"send"}`)
	p.click("confirm-yes")
	p.says("gate-dialog", "bob has approved")
	p.click("confirm-no")
	p.says("gate", "By bob")
	p.lacks("gate-approve")
}

// A page outlives its server: it says that it is cut off, comes back by itself, and then shows what happened meanwhile.
func serverRestarts(s *stack, p *page) {
	service := &bills{codes: threeBad, gate: make(chan struct{}, 1000)}
	s.listen(service)
	req := request("long", "statement")
	req.Steps[0].Chunk = 10
	run := s.load(req, 100, plainItem)
	p.visit("/runs/" + run.String())
	p.until("it is live", `document.querySelector('`+at("live")+`')?.dataset.state === "live"`)
	p.run(`window.__before = true`)
	for range 3 {
		service.gate <- struct{}{}
	}
	p.until("a part is done", `/\b(2[789]|30)\b/.test(document.querySelector('`+at("legend-5")+`')?.innerText)`)

	// What fails meanwhile is what cannot be reached, and nothing else.
	p.allow("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE",
		"response 503", "status of 503")
	s.stop()
	p.until("it says so", `document.querySelector('`+at("live")+`')?.dataset.state !== "live"`)
	close(service.gate)
	s.ended(run)
	s.serve()
	p.until("it is live again", `document.querySelector('`+at("live")+`')?.dataset.state === "live"`)
	p.until("it has caught up", `document.querySelector('h1 [data-state]')?.dataset.state === "completed" &&
	document.querySelector('`+at("legend-5")+`')?.innerText.includes("97") &&
	document.querySelector('`+at("legend-6")+`')?.innerText.includes("3")`)
	if !eval[bool](p, `window.__before === true`) {
		s.Error("the page was loaded again")
	}
}

// A schedule's page says why its due times have no run yet. No leader starts them in this test.
func whyNothingStarts(s *stack, p *page) {
	const text = "name: night\ncron: 0 3 * * *\nzone: Asia/Kolkata\nplan: nothing\nitems: {file: a.csv}\n"
	s.post("/schedules", "application/yaml", text)
	testenv.Must(s.Pool.Exec(s.Context(), `
INSERT INTO schedule_occurrence (schedule, due_at, kind, version, state, start_at, reason, began_at, attempts,
    session_id, epoch)
SELECT 'night', t.now - n * interval '1 h', 'due', 1, state, t.now + wait * interval '1 h', reason, t.now, n,
    gen_random_uuid(), 1
FROM (SELECT tranche_now() AS now) t, (VALUES (0, 'due', 8, ''), (1, 'due', 9, 'its window is shut'),
    (2, 'starting', 0, ''), (3, 'due', 0, 'its turn has not come')) v(n, state, wait, reason)`))(s)
	p.visit("/schedules?name=night")
	for choice, want := range map[string]string{"zone-schedule": "GMT+5:30", "zone-utc": "UTC"} {
		p.click("times-menu")
		p.click(choice)
		p.says("occurrences", want)
	}
	for _, want := range []string{"(window or jitter)", "its window is shut", "being loaded since", ", attempt 2",
		"its turn has not come"} {
		p.says("occurrences", want)
	}
	for pattern, want := range map[string]int{`starts \d{4}-\d\d-\d\d \d\d:\d\d:\d\d`: 1, `not before \d{4}`: 1} {
		text := `document.querySelector('[data-test="occurrences"]').innerText`
		testenv.Same(s, eval[int](p, text+`.match(/`+pattern+`/g)?.length || 0`), want, "how often there is %s", pattern)
	}
}
