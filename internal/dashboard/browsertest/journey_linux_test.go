package browsertest_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/workqueue"
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
func fromAFileToItsEnd(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		service := &bills{codes: threeBad, gate: make(chan struct{}, 1000)}
		s.listen(service)
		p := b.open(t, s.url)
		p.visit("/runs")
		p.click("start")
		p.has("start-page")
		p.click("what-endpoint")
		p.fill("endpoint", "statement")

		var csv strings.Builder
		csv.WriteString("customer,name\n")
		for i := range 100 {
			fmt.Fprintf(&csv, "C%d,Person %d\n", i, i)
		}
		p.drop("drop", "customers.csv", csv.String())
		p.says("preview", "Person 1")
		p.fill("name", "October")
		p.fill("chunk", "10")

		p.click("dry-run")
		p.says("findings", "100")
		if n := s.number(`SELECT count(*) FROM batchrun`); n != 0 {
			t.Fatalf("a dry run stored %d runs", n)
		}
		p.click("go")
		p.until("the page of the run", `/^\/runs\/[0-9a-f-]{36}$/.test(location.pathname)`)
		p.has("run-page")
		run := runOf(p)

		// It is followed live: as the service goes on, the page says so.
		p.until("it runs", `document.querySelector('h1 [data-state]')?.dataset.state === "running"`)
		for range 5 {
			service.gate <- struct{}{}
		}
		p.until("half of it is done", `/\b(4[789]|50)\b/.test(document.querySelector('`+at("numbers")+`')?.innerText)`)
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
		s.ended(runID(t, run))

		p.visit("/runs/" + run + "/errors")
		service.well.Store(true)
		p.click("rerun-failed")
		p.has("rerun-dialog")
		p.click("rerun-go")
		p.has("rerun-follow")
		s.ended(runID(t, run))
		p.visit("/runs/" + run + "/errors")
		p.has("no-errors")
		if n := s.number(`SELECT failed FROM batchrun`); n != 0 {
			t.Errorf("%d items have failed", n)
		}
	}
}

// runOf is the run of the page.
func runOf(p *page) string {
	p.Helper()
	return strings.Split(eval[string](p, `location.pathname`), "/")[2]
}

func runID(t *testing.T, text string) workqueue.RunID {
	t.Helper()
	id, err := uuid.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return workqueue.RunID(id)
}

// number runs a query that returns one.
func (s *stack) number(query string, args ...any) (n int) {
	s.Helper()
	if err := s.pool.QueryRow(s.Context(), query, args...).Scan(&n); err != nil {
		s.Fatal(err)
	}
	return n
}

// drop drops a file with a text on an element.
func (p *page) drop(test, name, text string) {
	p.Helper()
	p.has(test)
	body, err := json.Marshal(text)
	if err != nil {
		p.Fatal(err)
	}
	p.run(fmt.Sprintf(`(() => {
		const files = new DataTransfer();
		files.items.add(new File([%s], %q, {type: "text/csv"}));
		const on = document.querySelector('%s');
		for (const kind of ["dragenter", "dragover", "drop"]) {
			on.dispatchEvent(new DragEvent(kind, {dataTransfer: files, bubbles: true, cancelable: true}));
		}
	})()`, body, name, at(test)))
}

// A range on the map is selected with the mouse, and its parts are made again; a part of one item on its page.
func aPartIsMadeAgain(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		s.listen(&bills{codes: threeBad})
		run := s.load(request("again", "statement"), 500, plainItem)
		s.ended(run)
		p := b.open(t, s.url)
		p.visit("/runs/" + run.String())
		p.has("map")
		p.until("the map is drawn", `document.querySelector('`+at("legend-5")+`')?.innerText.includes("497")`)
		p.drag(0.1, 0.5, 0.6, 0.5)
		p.has("selection")
		p.click("reset")
		p.has("reset-dialog")
		p.says("reset-tried", "would be made again")
		p.click("reset-go")
		p.lacks("reset-dialog")
		s.until("parts are made again", `SELECT count(*) FROM work_part WHERE generation = 2`)
		s.ended(run)

		p.visit("/runs/" + run.String() + "/item?key=C3")
		p.has("item-page")
		p.click("reset-part")
		p.has("reset-dialog")
		p.click("reset-go")
		s.until("the part is made again", `SELECT count(*) FROM work_part WHERE ordinal = 3 AND generation =
		(SELECT max(generation) FROM batchrun) AND generation > 2`)
	}
}

// until waits for a count that is not 0.
func (s *stack) until(what, query string) {
	s.Helper()
	p := poll(s.T, what)
	for p.again() {
		if s.number(query) > 0 {
			return
		}
	}
}

func plainItem(i int) (key, payload string) {
	return fmt.Sprint("C", i), fmt.Sprintf(`{"name":"Person %d"}`, i)
}
