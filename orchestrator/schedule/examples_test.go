package schedule_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/schedule"
)

// Who changes what a schedule's fields mean changes the examples, too.
func TestExamplesAreSchedules(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../examples/schedules/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	now := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	for _, file := range files {
		text := testenv.Must(os.ReadFile(file))(t)
		spec, err := schedule.Parse(file, text)
		if err != nil {
			t.Error(err)
			continue
		}
		if name := strings.TrimSuffix(filepath.Base(file), ".yaml"); spec.Name != name {
			t.Errorf("%s is schedule %s", file, spec.Name)
		}
		if due, ok := spec.Next(now); !ok || len(spec.Warnings(now)) > 0 {
			t.Errorf("%s is due %s, %v, with %v", file, due, ok, spec.Warnings(now))
		}
	}
}
