package autotune

import "testing"

// While the streams elect a leader nothing is answered, and what waited comes all at once afterwards. That says nothing
// about services: the limit is soon what it was, and so is the rate.
func TestAnElectionTeachesNothing(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]serviceModel{
		"quick, 8 at once":        {instances: 2, concurrency: 4, took: constant(0.2)},
		"quick, 64 at once":       {instances: 2, concurrency: 32, took: constant(0.3)},
		"a second, 16 at once":    {instances: 2, concurrency: 8, took: constant(1)},
		"two seconds, 8 at once":  {instances: 2, concurrency: 4, took: constant(2)},
		"places are not known":    {instances: 2, concurrency: 16, took: constant(0.3), hidden: true},
		"slower the more at once": together(12, 0.01, 0.00025),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(5) {
				for _, lasts := range []float64{3, 5, 8, 12} {
					m.away = [2]float64{100.4, 100.4 + lasts}
					c := New(Settings{Chunk: 100}, nil)
					s := newSimulation(m, c.Settings(), seed)
					changes := s.run(c, 200)
					before, after := s.rate(50, 100), s.rate(120+lasts, 200)
					if during := s.rate(102, 100+lasts); during > before/100 {
						t.Fatalf("seed %d: %.0f items/s while there is no leader", seed, during)
					}
					if soon := s.rate(105+lasts, 120+lasts); after < 0.95*before || soon < 0.85*before {
						t.Errorf("seed %d, %.0f s: %.0f items/s before, %.0f from 5 s after the election on, %.0f from 20 s on",
							seed, lasts, before, soon, after)
						for _, change := range changes {
							t.Log(change)
						}
						return
					}
				}
			}
		})
	}
}
