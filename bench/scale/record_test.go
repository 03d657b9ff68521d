package scale

import "testing"

// The simulation with the costs on record says what runs on a quiet machine of two cores took (docs/benchmarks.md), to
// a quarter. Of the first one the costs have their sum of processor time; of the others they have nothing.
func TestRunsOnRecord(t *testing.T) {
	t.Parallel()
	costs, err := OnRecord()
	if err != nil {
		t.Fatal(err)
	}
	twoCores := Site{Databases: 1, Nodes: 1, OneMachine: 2, Connections: 100, Disk: 1000, Network: 1000, Replicas: 1,
		Fsync: 0.08}
	for _, run := range []struct {
		name         string
		items, steps int
		seconds, wal float64
	}{
		{"a million items", 1e6, 1, 5.93, 604},
		{"ten million items", 1e7, 1, 66.66, 603},
		{"a million items in three steps", 1e6, 3, 17.85, 1172},
	} {
		job := Job{Items: run.items, Steps: run.steps, Bytes: 81, Chunk: 500, InFlight: 64}
		r, err := Simulate(costs, twoCores, job, 1)
		if err != nil {
			t.Fatal(err)
		}
		wal := costs.WALIntake.of(1, 81) + float64(run.steps)*(costs.WALWork.each(1, 81)+costs.WALWork.Chunk/500)
		t.Logf("%s: %.2f s, simulated %.2f (%+.0f%%); WAL %.0f bytes an item, calculated %.0f (%+.0f%%)", run.name,
			run.seconds, r.Seconds, 100*(r.Seconds/run.seconds-1), run.wal, wal, 100*(wal/run.wal-1))
		if off := r.Seconds/run.seconds - 1; off > 0.25 || off < -0.25 {
			t.Errorf("%s took %.2f s; simulated %.2f", run.name, run.seconds, r.Seconds)
		}
		if off := wal/run.wal - 1; off > 0.25 || off < -0.25 {
			t.Errorf("%s had %.0f bytes of WAL an item; calculated %.0f", run.name, run.wal, wal)
		}
	}
}
