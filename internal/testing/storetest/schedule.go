package storetest

import (
	"encoding/json"
	"time"

	"github.com/tranchehq/tranche/workqueue/schedule"
)

// Hourly is the rule of the schedules of these tests: whole hours.
func Hourly(_ json.RawMessage, after time.Time) (next time.Time, ok bool, err error) {
	return after.UTC().Truncate(time.Hour).Add(time.Hour), true, nil
}

// ApplySchedule applies a schedule.
func (b *Bench) ApplySchedule(name, spec string) schedule.AppliedSchedule {
	b.Helper()
	applied, err := schedule.New(b.Store).ApplySchedule(b.Context(), schedule.Text{
		Name: name, Spec: json.RawMessage(spec), Source: spec, Zone: "UTC", Next: Hourly,
	}, "ann")
	if err != nil {
		b.Fatal(err)
	}
	return applied
}
