package workqueue_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	trackers "github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/workqueue/doctor"
	trackerstore "github.com/tranchehq/tranche/workqueue/tracker"
)

// TestDoctorChecksTrackers breaks trackers in each way that the doctor looks for. Before that it finds nothing.
func TestDoctorChecksTrackers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	open := func() uuid.UUID {
		opened, err := trackerstore.New(b.Store).OpenTracker(ctx, trackers.OpenRequest{Owner: "o"}, "ann")
		if err == nil {
			_, err = trackerstore.New(b.Store).AddToTracker(ctx, opened.ID, bitfield.Size+100, "")
		}
		if err == nil {
			_, err = trackerstore.New(b.Store).AckTrackers(ctx, []trackers.BatchAck{{
				Batch: opened.ID, Items: []tracker.Ack{{Group: 1, Mask: bitfield.Full(50)}}, Code: "E",
			}})
		}
		if err != nil {
			t.Fatal(err)
		}
		return opened.ID
	}
	diagnose := func() doctor.Report {
		report, err := doctor.New(b.Store).Doctor(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return report
	}
	ways := map[string]string{
		"groups that the batch":     `UPDATE tracker_batch SET groups = groups + 1 WHERE id = $1`,
		"groups with pending items": `UPDATE tracker_batch SET open_groups = 1 WHERE id = $1`,
		"items that the batch":      `UPDATE tracker_batch SET items = items - 1 WHERE id = $1`,
		"failed more than once": `INSERT INTO tracker_failed SELECT batch_id, grp, 'F', mask FROM tracker_failed
			WHERE batch_id = $1`,
		"failed and are pending": `UPDATE tracker_failed SET mask = ~B'0'::bit(8192) >> 50 WHERE batch_id = $1`,
		"past the end": `UPDATE tracker_failed SET mask = mask | set_bit(B'0'::bit(8192), 100, 1)
			WHERE batch_id = $1`,
		"nothing is pending": `UPDATE tracker_batch SET state = 'sealed', open_groups = 0 WHERE id = $1`,
		"without an event":   `UPDATE tracker_service SET event_id = gen_random_uuid() WHERE batch_id = $1`,
		"events too many": `INSERT INTO run_event (id, run_id, generation, kind, payload)
			SELECT gen_random_uuid(), $1, 1, 'tracker.completed', '{}' FROM generate_series(1, 2)`,
	}
	broken := map[string]uuid.UUID{}
	for name := range ways {
		broken[name] = open()
	}
	if report := diagnose(); !report.OK() {
		t.Fatalf("it found %v in what is whole", report.Violations)
	}
	for name, sql := range ways {
		b.Exec(sql, broken[name])
	}
	report := diagnose()
	for name, id := range broken {
		said := false
		for _, v := range report.Violations {
			said = said || strings.Contains(v.What, id.String()) && strings.Contains(v.What, name)
		}
		if !said {
			t.Errorf("it does not see %q: %v", name, report.Violations)
		}
	}
}
