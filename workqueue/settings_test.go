package workqueue_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue"
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
	if name, problem := within.Check(); name != "" {
		t.Errorf("%s: %s", name, problem)
	}
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
		if name, problem := s.Check(); name+": "+problem != want {
			t.Errorf("got %s: %s; want %s", name, problem, want)
		}
		over := overriding(&s)
		if name, problem := over.Check(); name+": "+problem != want {
			t.Errorf("to override: got %s: %s; want %s", name, problem, want)
		}
		v := s.View()
		if back := v.Settings(); !reflect.DeepEqual(back, s) {
			t.Errorf("the view of %+v is that of %+v", s, back)
		}
	}
}

func overriding(s *workqueue.StepSettings) *workqueue.StepOverrides {
	return &workqueue.StepOverrides{Chunk: &workqueue.Adaptive{Value: s.Chunk},
		ChunkBytes: (*workqueue.Bytes)(&s.ChunkBytes),
		ChunkTime:  (*workqueue.Duration)(&s.ChunkTime), InFlight: &workqueue.Adaptive{Value: s.InFlight}, Rate: &s.Rate,
		MaxAttempts: &s.MaxAttempts, Timeout: (*workqueue.Duration)(&s.Timeout),
		RetryBackoff: (*workqueue.Duration)(&s.RetryBackoff), MaxBackoff: (*workqueue.Duration)(&s.MaxBackoff)}
}

func TestOverridesLieOverSettings(t *testing.T) {
	t.Parallel()
	s := workqueue.StepSettings{Chunk: 500, InFlight: 4, Timeout: 3 * time.Second, RetryBackoff: time.Second,
		MaxBackoff: time.Minute, RetryCodes: []string{"BUSY"}}
	if same := s.Over(&workqueue.StepOverrides{}); !reflect.DeepEqual(same, s) {
		t.Errorf("nothing laid over it made %+v", same)
	}
	found := s.Over(&workqueue.StepOverrides{Chunk: &workqueue.Adaptive{Auto: true},
		RetryBackoff: new(workqueue.Duration(time.Hour)), RetryCodes: []string{"none"}})
	if found.Chunk != workqueue.AutoChunk || !found.ChunkAuto || found.ChunkTime != s.Timeout ||
		found.MaxBackoff != time.Hour ||
		len(found.RetryCodes) != 0 {
		t.Errorf("got %+v", found)
	}
	fixed := found.Over(&workqueue.StepOverrides{Chunk: &workqueue.Adaptive{Value: 7}})
	if fixed.Chunk != 7 || fixed.ChunkAuto || fixed.ChunkTime != 0 {
		t.Errorf("got %+v", fixed)
	}
	if long := (workqueue.StepSettings{RetryBackoff: time.Hour, MaxBackoff: time.Second}).Over(
		&workqueue.StepOverrides{Rate: new(7.0)}); long.MaxBackoff != time.Second {
		t.Errorf("a rate made the longest backoff %s", long.MaxBackoff)
	}
	var told []string
	for name, value := range found.All() {
		told = append(told, fmt.Sprint(name, "=", value))
	}
	if !slices.Contains(told, "chunk=auto, at most 8192") || !slices.Contains(told, "retry_backoff=1h0m0s") {
		t.Errorf("people read %q", told)
	}
}
