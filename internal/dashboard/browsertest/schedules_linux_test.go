package browsertest_test

import "testing"

// A schedule's page says why its due times have no run yet. No leader starts them in this test.
func whyNothingStarts(b *browser) func(*testing.T) {
	return func(t *testing.T) {
		t.Parallel()
		s := newStack(t, stackConfig{})
		const text = "name: night\ncron: 0 3 * * *\nplan: nothing\nitems: {file: a.csv}\n"
		s.post("/schedules", "application/yaml", text)
		_, err := s.pool.Exec(t.Context(), `
INSERT INTO schedule_fire (schedule, due_at, kind, version, state, start_at, reason, began_at, attempts, session_id,
    epoch)
SELECT 'night', t.now - n * interval '1 h', 'due', 1, state, t.now + wait * interval '1 h', reason, t.now, n,
    gen_random_uuid(), 1
FROM (SELECT tranche_now() AS now) t, (VALUES (0, 'due', 8, ''), (1, 'due', 9, 'its window is shut'),
    (2, 'starting', 0, ''), (3, 'due', 0, 'its turn has not come')) v(n, state, wait, reason)`)
		if err != nil {
			t.Fatal(err)
		}
		p := b.open(t, s.url)
		p.visit("/schedules?name=night")
		for _, want := range []string{"(window or jitter)", "its window is shut", "being loaded since", ", attempt 2",
			"its turn has not come"} {
			p.says("fires", want)
		}
		for pattern, want := range map[string]int{`starts \d{4}-\d\d-\d\d \d\d:\d\d:\d\d`: 1, `not before \d{4}`: 1} {
			text := `document.querySelector('[data-test="fires"]').innerText`
			if n := eval[int](p, text+`.match(/`+pattern+`/g)?.length || 0`); n != want {
				t.Errorf("%d times %s; want %d", n, pattern, want)
			}
		}
	}
}
