package dispatch_test

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/internal/storetest"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

// plainTables puts tables without partitions in the place of those that have them, the same but for that.
const plainTables = `
CREATE TABLE plain_queue (LIKE work_queue INCLUDING ALL) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE TABLE plain_part (LIKE work_part INCLUDING ALL) WITH (autovacuum_vacuum_scale_factor = 0.05);
DROP TABLE work_queue, work_part CASCADE;
ALTER TABLE plain_queue RENAME TO work_queue;
ALTER TABLE plain_part RENAME TO work_part`

// What is done to a run, as a node does it.
var deeds = []string{"load", "claim", "read", "mark", "record"}

// side is a store on one of the databases that are compared. It has one connection, whose processor time is read.
type side struct {
	*storetest.Bench
	stat   string // where the kernel says how long PostgreSQL's process of the connection has run
	ran    time.Duration
	last   string                     // what was done last, to which belongs what it ran since then
	cpu    map[string]time.Duration   // by what was done, in this block
	took   map[string][]time.Duration // the same, of each call
	run    workqueue.RunID
	slices []workqueue.Slice
}

func newSide(t *testing.T, prepare string) *side {
	t.Helper()
	url := testenv.Database(t)
	b := &storetest.Bench{T: t, Pool: testenv.Connect(t, url)}
	b.Exec(prepare)
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b.Store = database.New(pool)
	b.Session = b.Open()
	s := &side{Bench: b}
	var pid int
	if err := pool.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	s.stat = fmt.Sprintf("/proc/%d/schedstat", pid)
	s.begin()
	return s
}

// begin begins a block.
func (s *side) begin() {
	s.tick("")
	s.cpu, s.took = map[string]time.Duration{}, map[string][]time.Duration{}
}

// tick adds what the process has run to what was done last: it may end a moment after its answer.
func (s *side) tick(deed string) {
	s.Helper()
	text, err := os.ReadFile(s.stat)
	if err != nil {
		s.Fatal(err)
	}
	var ran time.Duration
	if _, err := fmt.Sscan(string(text), &ran); err != nil {
		s.Fatal(err)
	}
	if s.last != "" {
		s.cpu[s.last] += ran - s.ran
	}
	s.ran, s.last = ran, deed
}

// inTurns does the same on each side, each time in another order.
func inTurns(sides []*side, turn *int, deed string, do func(*side)) {
	*turn++
	order := slices.Clone(sides)
	if *turn%2 == 0 {
		slices.Reverse(order)
	}
	for i := range order {
		s := order[(i+*turn/2)%len(order)]
		s.tick(deed)
		begun := time.Now()
		do(s)
		s.took[deed] = append(s.took[deed], time.Since(begun))
	}
}

const (
	partitionItems = 3 * 8192 // of a run, which are loaded at once
	claimSlices    = 4        // of a claim
	recordAnswers  = 16       // of a commit, as nodes have it
)

// work does a run from its load to its end.
func work(sides []*side, turn *int) {
	payload := []byte(`{"name":"` + strings.Repeat("x", 80) + `"}`)
	inTurns(sides, turn, "load", func(s *side) {
		req, n, key := storetest.Chunked(500), 0, []byte(nil)
		req.Session = s.Session
		loaded, err := start.New(s.Store).Load(s.Context(), req, func(item *start.LoadItem) error {
			if n == partitionItems {
				return io.EOF
			}
			key = fmt.Appendf(key[:0], "C-%08d", n)
			item.Key, item.Payload, item.Line = string(key), payload, n+1
			n++
			return nil
		})
		if err != nil {
			s.Fatal(err)
		}
		s.run, s.slices = loaded.Run, nil
	})
	for more := true; more; {
		before := len(sides[0].slices)
		inTurns(sides, turn, "claim", func(s *side) { s.slices = append(s.slices, s.Claim(s.run, claimSlices)...) })
		more = len(sides[0].slices) > before
	}
	for i := range sides[0].slices {
		inTurns(sides, turn, "read", func(s *side) {
			slice := &s.slices[i]
			err := dispatch.New(s.Store).EachInput(s.Context(), dispatch.InputRequest{Run: slice.Run, Block: slice.Block,
				Mask: &slice.Mask}, func(dispatch.Input) bool { return true })
			if err != nil {
				s.Fatal(err)
			}
		})
	}
	for some := range slices.Chunk(sides[0].slices, recordAnswers) {
		n := len(some)
		answers := map[*side][]settle.Answer{}
		for _, s := range sides {
			for _, slice := range s.slices[:n] {
				answers[s] = append(answers[s], storetest.Whole(slice))
			}
		}
		inTurns(sides, turn, "mark", func(s *side) { s.Send(s.slices[:n]...) })
		inTurns(sides, turn, "record", func(s *side) { s.Record(answers[s]...) })
		for _, s := range sides {
			s.slices = s.slices[n:]
		}
	}
	for _, s := range sides {
		s.WantTally(s.run, storetest.Tally{Done: partitionItems})
	}
}

// What the partitions of work_queue and work_part cost, beside plain tables on the same server, in turns, call by call:
// the ratio of rates, by PostgreSQL's processor time and by the clock, and that of two databases with plain tables:
// TRANCHE_PARTITION_BLOCKS=10 go test ./workqueue/dispatch -run TestWhatPartitionsCost -v.
func TestWhatPartitionsCost(t *testing.T) {
	blocks, runs, turn := 1, 1, 0
	if _, err := fmt.Sscan(os.Getenv("TRANCHE_PARTITION_BLOCKS"), &blocks); err == nil {
		runs = 12
	}
	sides := []*side{newSide(t, ``), newSide(t, plainTables), newSide(t, plainTables)}
	work(sides, &turn) // plans are made
	ratios := map[string][]float64{}
	calls, cpu := map[string]int{}, map[string]time.Duration{}
	for range blocks {
		for _, s := range sides {
			s.begin()
		}
		for range runs {
			work(sides, &turn)
		}
		for _, s := range sides {
			s.tick("")
		}
		for _, deed := range deeds {
			calls[deed] += len(sides[0].took[deed])
			cpu[deed] += sides[0].cpu[deed]
			for n, name := range []string{"partitions", "plain again"} {
				one, plain := sides[2*n], sides[1]
				var each []float64
				for i := range one.took[deed] {
					each = append(each, float64(plain.took[deed][i])/float64(one.took[deed][i]))
				}
				at := deed + ", " + name
				ratios[at+", processor"] = append(ratios[at+", processor"],
					float64(plain.cpu[deed])/float64(one.cpu[deed]))
				slices.Sort(each)
				ratios[at+", time"] = append(ratios[at+", time"], each[len(each)/2])
			}
		}
	}
	for _, deed := range deeds {
		t.Logf("%s: %d calls, %s of processor each", deed, calls[deed], cpu[deed]/time.Duration(max(calls[deed], 1)))
		for _, name := range []string{"partitions", "plain again"} {
			for _, of := range []string{"processor", "time"} {
				r := ratios[deed+", "+name+", "+of]
				slices.Sort(r)
				t.Logf("%s, %s, %s: %.3f (%.3f to %.3f)", deed, name, of, r[len(r)/2], r[0], r[len(r)-1])
			}
		}
	}
}
