package workqueue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/start"
)

// planOf is a plan with a text of its own.
func planOf(name, text string) workqueue.Document {
	spec := fmt.Sprintf(`{"name":%q,"steps":[{"name":"make","endpoint":%q}]}`, name, text)
	return workqueue.Document{Name: name, Spec: json.RawMessage(spec), Source: "# " + text}
}

func (b *bench) apply(plan workqueue.Document) workqueue.AppliedDocument {
	b.Helper()
	applied := testenv.Must(start.New(b.Store).ApplyPlan(b.Context(), plan, "ann"))(b)
	return applied
}

func TestADeletedPlanKeepsItsNumbers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(planOf("p", "one"))
	b.apply(planOf("p", "two"))
	if gone, err := start.New(b.Store).DeletePlan(t.Context(), "p", "bob"); err != nil || gone.Version != 2 {
		t.Errorf("deleted %+v, %v", gone, err)
	}
	if got := b.apply(planOf("p", "two")); got.Version != 3 || got.Unchanged || got.Previous != 0 {
		t.Errorf("the same after the deletion: %+v", got)
	}
	if _, err := inspect.New(b.Store).Plan(t.Context(), "p", 2); !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("a version from before the deletion: %v", err)
	}
}

func TestPlansAreListed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, name := range []string{"c", "a", "b", "a", "gone"} {
		b.apply(planOf(name, fmt.Sprint("e", b.Number(`SELECT count(*) FROM plan`))))
	}
	testenv.Must(start.New(b.Store).DeletePlan(t.Context(), "gone", "ann"))(t)
	for version, runs := range map[int]int{1: 2, 2: 1} {
		for range runs {
			req := storetest.Request()
			req.Plan, req.PlanVersion = "a", version
			b.Load(req, 1)
		}
	}
	byFile := storetest.Request()
	byFile.Plan = "a"
	b.Finish(b.Load(byFile, 1)) // of the name, but not of the registry
	list := func(f inspect.PlanFilter, wantMore bool, want ...string) {
		t.Helper()
		plans, more, err := inspect.New(b.Store).Plans(t.Context(), f)
		var got []string
		for _, p := range plans {
			got = append(got, fmt.Sprintf("%s@%d %d/%d", p.Name, p.Version, p.Running, p.Runs))
		}
		if err != nil || more != wantMore || !slices.Equal(got, want) {
			t.Errorf("%+v: %v, %v, %v; want %v", f, got, more, err, want)
		}
	}
	list(inspect.PlanFilter{}, false, "a@2 3/3", "b@1 0/0", "c@1 0/0")
	list(inspect.PlanFilter{Limit: 2}, true, "a@2 3/3", "b@1 0/0")
	list(inspect.PlanFilter{Limit: 2, After: "b"}, false, "c@1 0/0")
	list(inspect.PlanFilter{Name: "a"}, false, "a@2 1/1", "a@1 2/2")
	list(inspect.PlanFilter{Name: "a", Limit: 1}, true, "a@2 1/1")
	list(inspect.PlanFilter{Name: "a", Before: 2}, false, "a@1 2/2")
	_, _, err := inspect.New(b.Store).Plans(t.Context(), inspect.PlanFilter{Name: "gone"})
	if !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("the versions of a deleted plan: %v", err)
	}
}

// However many put plans on record at once, each version is there once, and the numbers have no gaps.
func TestPlansAppliedAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const people, each = 4, 5
	var wg sync.WaitGroup
	for i := range people {
		wg.Go(func() {
			for n := range each {
				if _, err := start.New(b.Store).ApplyPlan(t.Context(), planOf("p", fmt.Sprintf("e%d-%d", i, n)),
					"ann"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := b.Number(`SELECT max(version) FROM plan WHERE name = 'p'`); n != people*each {
		t.Errorf("%d versions; want %d", n, people*each)
	}
	same := planOf("q", "same")
	for range people {
		wg.Go(func() {
			if _, err := start.New(b.Store).ApplyPlan(t.Context(), same, "ann"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := b.Number(`SELECT count(*) FROM plan WHERE name = 'q'`); n != 1 {
		t.Errorf("the same plan has %d versions", n)
	}
}
