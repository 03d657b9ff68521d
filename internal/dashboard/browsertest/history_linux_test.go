package browsertest_test

import (
	"testing"

	"github.com/chromedp/chromedp/kb"
)

// What happened to a run stands on the axis of its charts, and in words; people add notes.
func whatHappened(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		s.listen(&bills{codes: threeBad})
		run := s.load(request("October", "statement"), 100, plainItem)
		s.ended(run)
		p := b.open(t, s.url)
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
}

const gathering = `
name: gathering
steps:
  - {name: accounts, endpoint: accounts}
  - {name: movements, endpoint: movements}
  - {name: statement, endpoint: statement, needs: [accounts, movements]}
`

// Steps that go side by side stand side by side, behind one another those that need one another.
func parallelSteps(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		p := b.open(t, s.url)
		p.visit("/plans")
		p.run("window.__plan = `" + gathering + "`")
		if status := eval[int](p, `fetch("/api/v1/plans", {method: "POST", body: window.__plan,
			headers: {"Content-Type": "application/yaml"}}).then((r) => r.status)`); status >= 300 {
			t.Fatalf("the plan is answered with %d", status)
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
	}
}

// Whoever goes to another page is at its heading, which is read out, however he went there.
func focusFollows(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		s.listen(&bills{codes: threeBad})
		s.ended(s.load(request("October", "statement"), 100, plainItem))
		p := b.open(t, s.url)
		at := func(heading string) {
			t.Helper()
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
		p.until("Tab goes on from there",
			`document.activeElement?.closest("#main") && document.activeElement.tagName !== "H1"`)
	}
}
