package workqueue_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

// The three structs of settings have the same ones, and what their tags say can be read.
func TestSettingsAreSaidOnce(t *testing.T) {
	t.Parallel()
	settings, view := reflect.TypeFor[workqueue.StepSettings](), reflect.TypeFor[workqueue.SettingsView]()
	for field := range settings.Fields() {
		shown, ok := view.FieldByName(field.Name)
		if !ok || !field.Type.ConvertibleTo(shown.Type) {
			t.Errorf("the view does not have %s", field.Name)
		}
	}
	for field := range reflect.TypeFor[workqueue.StepOverrides]().Fields() {
		of, ok := settings.FieldByName(field.Name)
		if shown, _ := view.FieldByName(field.Name); !ok || tagName(shown) != tagName(field) {
			t.Errorf("%s is called %s to override and %s to see", field.Name, tagName(field), tagName(shown))
		}
		if bounds, bounded := of.Tag.Lookup("bounds"); bounded == (field.Type.Kind() == reflect.Slice) {
			t.Errorf("%s has the bounds %q", field.Name, bounds)
		}
	}
	if settings.NumField() != view.NumField() ||
		settings.NumField() != reflect.TypeFor[workqueue.StepOverrides]().NumField()+2 {
		t.Error("they have not the same number of settings")
	}
}

func tagName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}

// Each bound is allowed, and what lies beyond is refused by its name, in settings and in overrides of them.
func TestSettingsHaveBounds(t *testing.T) {
	t.Parallel()
	within := workqueue.StepSettings{Chunk: 8192, ChunkBytes: 1 << 10, ChunkTime: time.Hour,
		InFlight: workqueue.MaxInFlight,
		Rate:     0.001, MaxAttempts: 100, Timeout: time.Millisecond, MaxBackoff: 24 * time.Hour}
	name, problem := within.Check()
	testenv.Same(t, name, "", "%s", problem)
	for want, set := range map[string]func(*workqueue.StepSettings){
		"chunk: 8193 is not within 1 to 8192": func(s *workqueue.StepSettings) { s.Chunk++ },
		"chunk_bytes: 1023 is not within 1KiB to 64MiB; 0 leaves it to the node": func(s *workqueue.StepSettings) {
			s.ChunkBytes--
		},
		"chunk_time: 1h0m0.000000001s is not within 10ms to 1h": func(s *workqueue.StepSettings) { s.ChunkTime++ },
		"in_flight: 10001 is not within 1 to 10000":             func(s *workqueue.StepSettings) { s.InFlight++ },
		"rate: 1e+09 is not within 0.001 to 10000000 items a second; 0 is no limit": func(s *workqueue.StepSettings) {
			s.Rate = 1e9
		},
		"max_attempts: 0 is not within 1 to 100":      func(s *workqueue.StepSettings) { s.MaxAttempts = 0 },
		"timeout: 0s is not within 1ms to 24h":        func(s *workqueue.StepSettings) { s.Timeout = 0 },
		"retry_backoff: -1ns is not within 0s to 24h": func(s *workqueue.StepSettings) { s.RetryBackoff-- },
		"max_backoff: 24h0m0.000000001s is not within 1ms to 24h": func(s *workqueue.StepSettings) {
			s.MaxBackoff++
		},
	} {
		s := within
		set(&s)
		name, problem := s.Check()
		testenv.Same(t, name+": "+problem, want, "alone")
		over := workqueue.StepOverrides{Chunk: &workqueue.Adaptive{Value: s.Chunk},
			ChunkBytes: (*workqueue.Bytes)(&s.ChunkBytes), ChunkTime: (*workqueue.Duration)(&s.ChunkTime),
			InFlight: &workqueue.Adaptive{Value: s.InFlight}, Rate: &s.Rate, MaxAttempts: &s.MaxAttempts,
			Timeout: (*workqueue.Duration)(&s.Timeout), RetryBackoff: (*workqueue.Duration)(&s.RetryBackoff),
			MaxBackoff: (*workqueue.Duration)(&s.MaxBackoff)}
		name, problem = over.Check()
		testenv.Same(t, name+": "+problem, want, "to override")
		v := s.View()
		if back := v.Settings(); !reflect.DeepEqual(back, s) {
			t.Errorf("the view of %+v is that of %+v", s, back)
		}
	}
}

// The first of all says what the streams are like; later ones, and no one's change of nothing, leave no trace.
func TestStreamSettings(t *testing.T) {
	t.Parallel()
	b := setup(t)
	audits := func() int { return b.Number(`SELECT count(*) FROM audit_log WHERE action LIKE 'streams_%'`) }
	first := session.StreamValues{WorkBytes: 64 << 20}
	_, err := session.New(b.Store).ChangeStreams(t.Context(), session.StreamChanges{}, "ann")
	_ = testenv.As[*workqueue.SettingError](t, err, "a change before there is anything")
	set, err := session.New(b.Store).StreamSettings(t.Context(), first)
	if err != nil || set.StreamValues != first || set.Revision != 1 {
		t.Fatal(set, err)
	}
	if set, err := session.New(b.Store).StreamSettings(t.Context(), session.StreamValues{Replicas: 5}); err != nil ||
		set.StreamValues != first || audits() != 1 {
		t.Errorf("the second changed it: %+v, %v", set, err)
	}
	lease := b.Lead()
	set = testenv.Must(session.New(b.Store).StreamsSet(t.Context()))(t)
	testenv.NoError(t, session.New(b.Store).StreamsRefused(t.Context(), lease, &set, "no room", time.Minute))
	facts, err := health.New(b.Store).Health(t.Context(), health.Limits{})
	if err != nil || !slices.ContainsFunc(facts.Conditions, func(c health.Condition) bool {
		return c.Kind == health.StreamSettings && strings.HasPrefix(c.Detail, "no room (tried 1 time; ")
	}) {
		t.Errorf("health knows %+v, %v", facts, err)
	}
	testenv.NoError(t, session.New(b.Store).StreamsApplied(t.Context(), lease, &set))
	three, age := 3, workqueue.Duration(48*time.Hour)
	now, err := session.New(b.Store).ChangeStreams(t.Context(), session.StreamChanges{Replicas: &three, EventAge: &age},
		"ann")
	if err != nil || now.Replicas != 3 || now.WorkBytes != 64<<20 || now.Revision != 2 || now.ChangedBy != "ann" ||
		now.Applied == nil || *now.Applied != first || now.AppliedRevision != 1 {
		t.Errorf("%+v, %v", now, err)
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM audit_log WHERE actor = 'ann'
		AND before = '{"replicas": "auto", "event_age": "0s"}'
		AND after = '{"replicas": 3, "event_age": "48h0m0s"}'`), 1, "audits of the old and the new values")
	testenv.NoError(t, session.New(b.Store).StreamsApplied(t.Context(), lease, &set))
	now = testenv.Must(session.New(b.Store).StreamsSet(t.Context()))(t)
	testenv.Same(t, now.AppliedRevision, 1, "applied, when an old revision was")
	again, err := session.New(b.Store).ChangeStreams(t.Context(), session.StreamChanges{Replicas: &three}, "ann")
	if err != nil || again.Revision != 2 || audits() != 2 {
		t.Errorf("a change of nothing: %+v, %v", again, err)
	}
	if taken, err := session.New(b.Store).UnsetStreams(t.Context()); taken || err != nil {
		t.Errorf("settings that were brought about were undone: %v", err)
	}
	stale := lease
	stale.Epoch--
	testenv.Is(t, session.New(b.Store).StreamsApplied(t.Context(), stale, &now), workqueue.ErrNotLeader,
		"without the lease")
}

func TestAdaptive(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]workqueue.Adaptive{
		`500`: {Value: 500}, `"500"`: {Value: 500}, `"auto"`: {Auto: true}, `-1`: {Value: -1},
	} {
		var got workqueue.Adaptive
		testenv.NoError(t, json.Unmarshal([]byte(text), &got))
		testenv.Same(t, got, want, "%s", text)
		back, err := json.Marshal(got)
		var again workqueue.Adaptive
		if err != nil || json.Unmarshal(back, &again) != nil || again != want {
			t.Errorf("%s comes back as %s, %v", text, back, err)
		}
	}
	for _, text := range []string{`"Auto"`, `""`, `1.5`, `"0x1"`, `true`, `[]`, `" 5"`, `"+5"`, `1e3`} {
		testenv.Fails(t, json.Unmarshal([]byte(text), &workqueue.Adaptive{}), "%s is taken", text)
	}
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]workqueue.Bytes{
		"0": 0, "1000": 1000, "512KiB": 512 << 10, "512 KiB": 512 << 10, "2MiB": 2 << 20, "1GiB": 1 << 30,
	} {
		var got, again workqueue.Bytes
		testenv.NoError(t, got.UnmarshalText([]byte(text)))
		testenv.Same(t, got, want, "%s", text)
		testenv.NoError(t, again.UnmarshalText([]byte(got.String())))
		testenv.Same(t, again, want, "%s comes back from %s", text, got)
	}
	for _, text := range []string{"", "KiB", "-1", "1KB", "1kib", "1.5MiB", "99999999999GiB", "1 K", "0x1", "1  KiB"} {
		testenv.Fails(t, new(workqueue.Bytes).UnmarshalText([]byte(text)), "%q is taken", text)
	}
}

// What a clock shows twice counts when it shows it first; instead of what it skips, the next moment counts.
func TestDoneByIsByTheClockOfItsZone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, from, want string }{
		{"06:00 Europe/Berlin", "2026-01-31T12:00:00Z", "2026-02-01T05:00:00Z"},
		{"06:00 Europe/Berlin", "2026-01-31T05:00:00Z", "2026-02-01T05:00:00Z"},
		{"02:30 Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z"},    // skipped
		{"02:30 Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"},    // shown twice
		{"02:30 Europe/Berlin", "2026-10-25T00:45:00Z", "2026-10-26T01:30:00Z"},    // between both
		{"02:30 America/New_York", "2026-03-07T12:00:00Z", "2026-03-08T07:00:00Z"}, // skipped
		{"01:30 America/New_York", "2026-10-31T12:00:00Z", "2026-11-01T05:30:00Z"}, // shown twice
		{"2026-01-31T06:00:00+01:00", "2026-03-28T12:00:00Z", "2026-01-31T05:00:00Z"},
	} {
		from := testenv.Must(time.Parse(time.RFC3339, c.from))(t)
		testenv.Same(t, testenv.Must(workqueue.DoneBy(c.text, from))(t).UTC().Format(time.RFC3339), c.want, "%s after %s",
			c.text, c.from)
	}
	for _, text := range []string{"06:00", "6:00 UTC", "06:00 ", "06:00 Local", "06:00 Nowhere/City", "noon UTC"} {
		got, err := workqueue.ParseDoneBy(text)
		testenv.Fails(t, err, "%q is taken as %q", text, got)
	}
}

func TestParseMaxFailed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", "none": "", "0": "0", "500": "500", "1%": "1%", "0%": "0%", "100%": "100%", "0.50%": "0.5%",
		"100.000%": "100%", "12.345%": "12.345%", "0.0001%": "0.0001%",
	} {
		got := testenv.Must(workqueue.ParseMaxFailed(text))(t)
		testenv.Same(t, got, want, "%q", text)
		testenv.Same(t, testenv.Must(workqueue.ParseMaxFailed(got))(t), got, "%q as it is written", got)
	}
	for _, text := range []string{
		"-1", "01", "1.5", "%", "101%", "100.1%", "1.%", ".5%", "-1%", "1e1%", "0.12345%", "1 %", "1%%", "9999999999", "٣%",
	} {
		got, err := workqueue.ParseMaxFailed(text)
		testenv.Fails(t, err, "%q is taken as %q", text, got)
	}
}

func FuzzValues(f *testing.F) {
	for _, text := range []string{"auto", "500", "512KiB", "1%", "0.5%", "none", "1h"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var a, a2 workqueue.Adaptive
		if a.UnmarshalText([]byte(text)) == nil && (a2.UnmarshalText([]byte(a.String())) != nil || a2 != a) {
			t.Errorf("%q is %+v, then %+v", text, a, a2)
		}
		var n, n2 workqueue.Bytes
		if n.UnmarshalText([]byte(text)) == nil && (n < 0 || n2.UnmarshalText([]byte(n.String())) != nil || n2 != n) {
			t.Errorf("%q is %d, then %d", text, n, n2)
		}
		if m, err := workqueue.ParseMaxFailed(text); err == nil {
			testenv.Same(t, testenv.Must(workqueue.ParseMaxFailed(m))(t), m, "%q", text)
		}
	})
}

func planOf(name, text string) workqueue.Document {
	spec := fmt.Sprintf(`{"name":%q,"steps":[{"name":"make","endpoint":%q}]}`, name, text)
	return workqueue.Document{Name: name, Spec: json.RawMessage(spec), Source: "# " + text}
}

func (b *bench) apply(plan workqueue.Document) workqueue.AppliedDocument {
	b.Helper()
	return testenv.Must(start.New(b.Store).ApplyPlan(b.Context(), plan, "ann"))(b)
}

func TestADeletedPlanKeepsItsNumbers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.apply(planOf("p", "one"))
	b.apply(planOf("p", "two"))
	testenv.Same(t, testenv.Must(start.New(b.Store).DeletePlan(t.Context(), "p", "bob"))(t).Version, 2, "deleted")
	if got := b.apply(planOf("p", "two")); got.Version != 3 || got.Unchanged || got.Previous != 0 {
		t.Errorf("the same after the deletion: %+v", got)
	}
	_, err := inspect.New(b.Store).Plan(t.Context(), "p", 2)
	testenv.Is(t, err, workqueue.ErrNotFound, "a version from before the deletion")
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
	testenv.Is(t, err, workqueue.ErrNotFound, "the versions of a deleted plan")
}

// However many save plans concurrently, each version is there once, and the numbers have no gaps.
func TestPlansAppliedAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const people, each = 4, 5
	var wg sync.WaitGroup
	for i := range people {
		wg.Go(func() {
			for n := range each {
				_, err := start.New(b.Store).ApplyPlan(t.Context(), planOf("p", fmt.Sprintf("e%d-%d", i, n)), "ann")
				testenv.Same(t, err, nil, "a plan")
			}
		})
	}
	wg.Wait()
	testenv.Same(t, b.Number(`SELECT max(version) FROM plan WHERE name = 'p'`), people*each, "versions")
	same := planOf("q", "same")
	for range people {
		wg.Go(func() {
			_, err := start.New(b.Store).ApplyPlan(t.Context(), same, "ann")
			testenv.Same(t, err, nil, "the same plan")
		})
	}
	wg.Wait()
	testenv.Same(t, b.Number(`SELECT count(*) FROM plan WHERE name = 'q'`), 1, "versions of the same plan")
}
