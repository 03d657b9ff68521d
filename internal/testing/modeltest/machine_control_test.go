package modeltest_test

import (
	"errors"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// elsewhere is where re-runs may send items.
const elsewhere = "elsewhere"

// calm takes away what earlier stories left at the endpoints, and draws their budgets.
func (m *machine) calm(t *rapid.T) {
	// a failed story's
	if _, err := control.New(m.Store).Cancel(m.Context(), control.Control{All: true, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	m.Exec(`DELETE FROM endpoint_pace`)
	for _, name := range []string{storetest.Endpoint, elsewhere} {
		m.budget(name, rapid.SampledFrom([]int{0, 0, 1, 3, 6}).Draw(t, "budget"))
	}
}

func (m *machine) budget(name string, n int) {
	_, err := pacestore.New(m.Store).ChangeEndpoint(m.Context(), pacestore.EndpointChange{Endpoint: name, MaxInFlight: &n},
		"ann")
	if err != nil {
		m.Fatal(err)
	}
	m.budgets[name] = n
}

// refused checks that an operation was refused just when the oracle says so, and reports whether it was.
func (m *machine) refused(t *rapid.T, what string, want bool, err error) bool {
	_, state := errors.AsType[*workqueue.StateError](err)
	if state != want || !want && err != nil {
		t.Fatalf("%s: %v; want it refused: %v (hold %q, canary %q)", what, err, want, m.pausedBy, m.canary)
	}
	return state
}

func (m *machine) Pause(t *rapid.T) {
	if rapid.IntRange(0, 2).Draw(t, "seldom") != 0 {
		return
	}
	_, err := control.New(m.Store).Pause(m.Context(), m.wish(t))
	if !m.refused(t, "pause", m.over() || m.pausedBy != "", err) {
		m.pausedBy = control.HoldOperator
	}
}

func (m *machine) Resume(t *rapid.T) {
	var maxFailed *string
	if rapid.IntRange(0, 3).Draw(t, "allow all") == 0 {
		all := "100%"
		maxFailed = &all
	}
	c := control.Control{Run: m.run, Actor: "test"}
	out, err := control.New(m.Store).Resume(m.Context(), c, maxFailed)
	limited := maxFailed == nil && m.limited && int64(m.count(isFailed)) > m.failedLimit
	canary := m.pausedBy == control.HoldCanary
	want := m.completed() || m.pausedBy != "" && !canary && limited
	if !m.cancelled {
		want = want || m.pausedBy == "" || canary
	}
	if m.refused(t, "resume", want, err) {
		return
	}
	if left := len(m.items) - m.count(isDone, isFailed); m.cancelled && out.Items != int64(left) {
		t.Fatalf("a cancelled run goes on with %d items; want %d", out.Items, left)
	}
	if m.revive(); !canary {
		m.pausedBy = ""
		if maxFailed != nil {
			m.setLimit("100%")
		}
	}
}

// wish is about this run, or about all: others of the test have ended.
func (m *machine) wish(t *rapid.T) control.Control {
	if m.over() || m.pausedBy != "" || rapid.Bool().Draw(t, "one run") {
		return control.Control{Run: m.run, Actor: "test"}
	}
	return control.Control{All: true, Actor: "test"}
}

func (m *machine) Approve(t *rapid.T) {
	out, err := control.New(m.Store).Approve(m.Context(), control.Control{Run: m.run, Actor: "test"})
	if m.refused(t, "approve", m.over() || m.canary != "waiting", err) {
		return
	}
	if n := m.release(); out.Items != int64(n) {
		t.Fatalf("%d items were released; want %d", out.Items, n)
	}
}

func (m *machine) CheckCanary(t *rapid.T) {
	got, err := control.New(m.Store).CheckCanary(m.Context(), m.run)
	if err != nil {
		t.Fatal(err)
	}
	if want := m.judgeCanary(); got != want {
		t.Fatalf("the verdict on the sample is %q; want %q: %s", got, want, m.Dump(m.run))
	}
}

func (m *machine) CheckThreshold(t *rapid.T) {
	held, err := control.New(m.Store).CheckThreshold(m.Context(), m.run)
	if err != nil {
		t.Fatal(err)
	}
	if want := m.judgeThreshold(); held != want {
		t.Fatalf("held for its threshold: %v; want %v", held, want)
	}
}

func (m *machine) CheckGuard(t *rapid.T) {
	held, err := control.New(m.Store).CheckGuard(m.Context(), m.run)
	if err != nil {
		t.Fatal(err)
	}
	if want := m.holdForGuard(); held != want {
		t.Fatalf("held for its guard: %v; want %v: %s", held, want, m.Dump(m.run))
	}
}

func (m *machine) SetThreshold(t *rapid.T) {
	text := rapid.SampledFrom([]string{"", "0", "3", "10%", "100%"}).Draw(t, "max failed")
	_, err := control.New(m.Store).SetRun(m.Context(), control.RunChange{Run: m.run, MaxFailed: &text, Actor: "test"})
	if !m.refused(t, "set", m.cancelled, err) {
		m.setLimit(text)
	}
}

func (m *machine) SetChunk(t *rapid.T) {
	chunk, limit := rapid.IntRange(1, 9).Draw(t, "chunk"), rapid.IntRange(1, 12).Draw(t, "in flight")
	if !m.small {
		chunk *= 500
	}
	_, err := control.New(m.Store).SetRun(m.Context(), control.RunChange{Run: m.run, Actor: "test",
		Settings: storetest.Chunking(chunk, limit)})
	if !m.refused(t, "set", m.cancelled, err) {
		m.chunk, m.limit = chunk, limit
	}
}

func (m *machine) SetBudget(t *rapid.T) {
	m.budget(rapid.SampledFrom([]string{storetest.Endpoint, elsewhere}).Draw(t, "endpoint"),
		rapid.SampledFrom([]int{0, 1, 3, 6}).Draw(t, "budget"))
}

// Cap has chunks of the endpoint held to a size, as if larger ones had failed.
func (m *machine) Cap(t *rapid.T) {
	n := rapid.IntRange(1, m.chunk).Draw(t, "cap")
	m.Exec(`UPDATE endpoint_pace SET chunk_cap = $2, chunk_cap_until = tranche_now() + $3::interval
		WHERE endpoint = $1`, m.at, n, rapid.SampledFrom([]time.Duration{-time.Second, time.Hour}).Draw(t, "until"))
}

// Break opens the breaker of the endpoint, or has it look at its probe, or closes it.
func (m *machine) Break(t *rapid.T) {
	switch rapid.IntRange(0, 3).Draw(t, "breaker") {
	case 0:
		m.Exec(`UPDATE endpoint_pace SET breaker = 'open', breaker_since = tranche_now(), probes = 0,
			probe_slice = NULL, probe_at = tranche_now() WHERE endpoint = $1`, m.at)
	case 1:
		m.Exec(`UPDATE endpoint_pace SET probe_at = tranche_now() WHERE endpoint = $1 AND breaker = 'open'`, m.at)
	case 2:
		if _, err := pacestore.New(m.Store).CheckBreaker(m.Context(), m.at); err != nil {
			t.Fatal(err)
		}
	default:
		m.mend()
	}
}

func (m *machine) mend() {
	m.Exec(`UPDATE endpoint_pace SET breaker = 'closed', probe_at = NULL, probe_slice = NULL WHERE breaker = 'open'`)
}

// pace is what a claim has to keep to at the endpoint.
type pace struct {
	down, probing bool // probing: no probe may be sent now
	limit         int  // of items, by a cap; 0: none
}

// pace has a probe that is not due wait until Break has its time come.
func (m *machine) pace() (p pace) {
	m.Exec(`UPDATE endpoint_pace SET probe_at = tranche_now() + interval '1 hour'
		WHERE endpoint = $1 AND breaker = 'open' AND probe_at > tranche_now()`, m.at)
	err := m.Pool.QueryRow(m.Context(), `
		SELECT p.breaker = 'open', p.breaker = 'open' AND (p.probe_at > tranche_now() OR EXISTS (
		           SELECT FROM work_slice s WHERE s.id = p.probe_slice AND s.state IN ('claimed', 'sent'))),
		       CASE WHEN p.chunk_cap_until > tranche_now() THEN p.chunk_cap ELSE 0 END
		FROM endpoint_pace p WHERE endpoint = $1
		UNION ALL SELECT false, false, 0 LIMIT 1`, m.at).Scan(&p.down, &p.probing, &p.limit)
	if err != nil {
		m.Fatal(err)
	}
	return p
}

// free is how many slices a claim may take at the most.
func (m *machine) free(most int, p pace) int {
	n := min(most, m.limit-m.inFlight())
	if budget := m.budgets[m.at]; budget > 0 {
		n = min(n, budget-m.inFlightAt(m.at))
	}
	if p.down {
		n = min(n, 1)
	}
	if m.pausedBy != "" || m.over() || p.probing {
		n = 0
	}
	return max(n, 0)
}

// Postpone gives back a slice that could not be published.
func (m *machine) Postpone(t *rapid.T) {
	for _, h := range m.pick(t, 2) {
		if err := settle.New(m.Store).Postpone(m.Context(), m.Session, h.ID, 0, errors.New("no stream")); err != nil {
			t.Fatal(err)
		}
		if h.state == "claimed" {
			m.schedule(h, h.remaining, h.Failures)
			h.state = "scheduled"
		}
	}
}

// OldNode makes slices look as if a node of the version before had made them, which knew neither endpoints nor roots.
func (m *machine) OldNode(*rapid.T) {
	m.Exec(`UPDATE work_slice SET endpoint = NULL, root = NULL
		WHERE run_id = $1 AND state IN ('scheduled', 'claimed', 'sent') AND endpoint = $2`, m.run, m.at)
}

// wantHolds compares what holds the run.
func (m *machine) wantHolds(t *rapid.T) {
	var hold, canary string
	err := m.Pool.QueryRow(m.Context(), `SELECT coalesce(hold, ''), coalesce(canary_state, '') FROM batchrun
		WHERE id = $1`, m.run).Scan(&hold, &canary)
	if err != nil {
		t.Fatal(err)
	}
	if hold != string(m.pausedBy) || canary != m.canary {
		t.Fatalf("hold %q, canary %q; want %q, %q", hold, canary, m.pausedBy, m.canary)
	}
}

// letGo takes everything out of the way of a run that is to end.
func (m *machine) letGo(t *rapid.T) {
	m.mend()
	m.Exec(`UPDATE endpoint_pace SET chunk_cap = NULL, chunk_cap_until = NULL`)
	for _, name := range []string{storetest.Endpoint, elsewhere} {
		m.budget(name, 0)
	}
	none := ""
	if _, err := control.New(m.Store).SetRun(m.Context(), control.RunChange{Run: m.run, MaxFailed: &none}); err != nil {
		t.Fatal(err)
	}
	m.setLimit(none)
	m.guard, m.tripped = workqueue.GuardRule{}, false
	m.Exec(`DELETE FROM run_guard WHERE run_id = $1`, m.run)
	if slices.Contains([]control.Hold{control.HoldOperator, control.HoldThreshold, control.HoldGuard}, m.pausedBy) {
		m.Resume(t)
	}
}

// finishAll answers all that is let go.
func (m *machine) finishAll() {
	m.Finish(m.run)
	for i := range m.items {
		if p := m.items[i].place; p != isFailed && p != isHeldBack {
			m.items[i] = item{place: isDone}
		}
	}
}

// letSampleGo has a sample that has ended judged, and approves it.
func (m *machine) letSampleGo(t *rapid.T) {
	if m.canary == "sampling" {
		verdict, err := control.New(m.Store).CheckCanary(m.Context(), m.run)
		if err != nil || verdict == control.CanaryUndecided {
			t.Fatalf("the verdict on the sample is %q, %v", verdict, err)
		}
		if verdict == control.CanaryPassed {
			m.release()
			return
		}
		m.pausedBy, m.canary = control.HoldCanary, "waiting"
	}
	m.Approve(t)
}
