package dispatch_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

// What partitions cost, beside plain tables on the same server, in turns, call by call; and, to see what such a ratio
// is worth, what plain tables cost beside plain tables:
// TRANCHE_PARTITION_BLOCKS=10 go test ./workqueue/dispatch -run TestWhatPartitionsCost -v.
func TestWhatPartitionsCost(t *testing.T) {
	t.Parallel()
	blocks, runs := 1, 1
	_, err := fmt.Sscan(os.Getenv("TRANCHE_PARTITION_BLOCKS"), &blocks)
	if err == nil {
		runs = 12
	}
	with, plain, again := newSide(t, ``), newSide(t, plainTables), newSide(t, plainTables)
	w := turns{with, plain, again}
	w.run() // so that plans are made
	rates, spent := map[string][]float64{}, map[string][]time.Duration{}
	for range blocks {
		for _, s := range w {
			s.cpu, s.clock = map[string][]time.Duration{}, map[string][]time.Duration{}
		}
		for range runs {
			w.run()
		}
		for _, deed := range deeds {
			note := func(name string, other, plain []time.Duration) {
				rates[deed+name] = append(rates[deed+name], ratio(other, plain))
			}
			note("partitions, cpu", with.cpu[deed], plain.cpu[deed])
			note("partitions, time", with.clock[deed], plain.clock[deed])
			note("none, cpu", again.cpu[deed], plain.cpu[deed])
			note("none, time", again.clock[deed], plain.clock[deed])
			spent[deed] = append(spent[deed], with.cpu[deed]...)
		}
	}
	for _, deed := range deeds {
		t.Logf("%s: %d calls of %s of PostgreSQL's processor", deed, len(spent[deed]), median(spent[deed]))
		for _, name := range []string{"partitions, cpu", "none, cpu", "partitions, time", "none, time"} {
			r := rates[deed+name]
			t.Logf("    %-17s %.3f (%.3f to %.3f)", name, median(r), slices.Min(r), slices.Max(r))
		}
	}
	if r := median(rates["claimpartitions, cpu"]); err == nil && r < 0.98 {
		t.Errorf("claims are made at %.3f of the rate without partitions; want 0.98", r)
	}
}

// ratio is the rate of calls to that of plain tables: the median of those that were made in the same turn.
func ratio(calls, plain []time.Duration) float64 {
	each := make([]float64, len(calls))
	for i := range calls {
		each[i] = float64(plain[i]) / float64(calls[i])
	}
	return median(each)
}

// plainTables puts tables without partitions in the place of those that have them, the same but for that.
const plainTables = `
CREATE TABLE plain_queue (LIKE work_queue INCLUDING ALL) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE TABLE plain_part (LIKE work_part INCLUDING ALL) WITH (autovacuum_vacuum_scale_factor = 0.05);
DROP TABLE work_queue, work_part CASCADE;
ALTER TABLE plain_queue RENAME TO work_queue;
ALTER TABLE plain_part RENAME TO work_part`

// What a node has done with a run: it is loaded, claimed of, its items are read to be sent, what was sent is marked,
// and replies are recorded.
var deeds = []string{"load", "claim", "read", "mark", "record", "run"}

// side is a store on one of the databases. It has one connection, whose processor time is read.
type side struct {
	*storetest.Bench
	stat  string // where the kernel says how long PostgreSQL's process has run, in nanoseconds
	ran   time.Duration
	last  string                     // what was done last, to which belongs what it has run since
	cpu   map[string][]time.Duration // of each call, in this block
	clock map[string][]time.Duration // the same by the clock
	whole [2]time.Duration           // both, of all that was done with the run
	of    workqueue.RunID
	cuts  []workqueue.Slice
	reply []settle.Answer
}

func newSide(t *testing.T, prepare string) *side {
	t.Helper()
	url := testenv.Database(t)
	s := &side{Bench: &storetest.Bench{T: t, Pool: testenv.Connect(t, url)}, cpu: map[string][]time.Duration{},
		clock: map[string][]time.Duration{}}
	s.Exec(prepare)
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
	s.Store = database.New(pool)
	s.Session = s.Open()
	var pid int
	if err := pool.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	s.stat = fmt.Sprintf("/proc/%d/schedstat", pid)
	s.tick("")
	return s
}

// tick adds what the process has run to what was done last, which may end a moment after its answer.
func (s *side) tick(deed string) {
	s.Helper()
	text, err := os.ReadFile(s.stat)
	var ran time.Duration
	if err == nil {
		_, err = fmt.Sscan(string(text), &ran)
	}
	if err != nil {
		s.Fatal(err)
	}
	if s.last != "" {
		s.cpu[s.last] = append(s.cpu[s.last], ran-s.ran)
		s.whole[0] += ran - s.ran
	}
	s.ran, s.last = ran, deed
}

// turns has the same done on each side, in any order.
type turns []*side

func (w turns) do(deed string, f func(*side)) {
	for _, i := range rand.Perm(len(w)) {
		s := w[i]
		s.tick(deed)
		begun := time.Now()
		f(s)
		took := time.Since(begun)
		s.clock[deed] = append(s.clock[deed], took)
		s.whole[1] += took
	}
}

// run does a run of three blocks, which are loaded at once. A claim takes few slices, and a commit records as many
// replies as it may.
func (w turns) run() {
	const items, claims, replies = 3 * 8192, 4, 16
	w.do("load", func(s *side) { s.of, s.cuts = s.load(items), nil })
	first := w[0]
	for more := true; more; {
		had := len(first.cuts)
		w.do("claim", func(s *side) { s.cuts = append(s.cuts, s.Claim(s.of, claims)...) })
		more = len(first.cuts) > had
	}
	for n := range first.cuts {
		w.do("read", func(s *side) { s.read(&s.cuts[n]) })
	}
	for some := range slices.Chunk(first.cuts, replies) {
		for _, s := range w {
			s.reply = s.reply[:0]
			for _, cut := range s.cuts[:len(some)] {
				s.reply = append(s.reply, storetest.Whole(cut))
			}
		}
		w.do("mark", func(s *side) { s.Send(s.cuts[:len(some)]...) })
		w.do("record", func(s *side) { s.Record(s.reply...); s.cuts = s.cuts[len(some):] })
	}
	for _, s := range w {
		s.tick("")
		s.cpu["run"], s.clock["run"] = append(s.cpu["run"], s.whole[0]), append(s.clock["run"], s.whole[1])
		s.whole = [2]time.Duration{}
		s.WantTally(s.of, storetest.Tally{Done: items})
	}
}

func (s *side) load(items int) workqueue.RunID {
	s.Helper()
	req, n, payload := storetest.Chunked(500), 0, []byte(`{"name":"`+strings.Repeat("x", 70)+`"}`)
	req.Session = s.Session
	loaded, err := start.New(s.Store).Load(s.Context(), req, func(item *start.LoadItem) error {
		if n == items {
			return io.EOF
		}
		n++
		item.Key, item.Payload, item.Line = fmt.Sprintf("C-%09d", n), payload, n
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	return loaded.Run
}

func (s *side) read(cut *workqueue.Slice) {
	s.Helper()
	err := dispatch.New(s.Store).EachInput(s.Context(),
		dispatch.InputRequest{Run: cut.Run, Block: cut.Block, Mask: &cut.Mask}, func(dispatch.Input) bool { return true })
	if err != nil {
		s.Fatal(err)
	}
}

func median[T float64 | time.Duration](of []T) T {
	return slices.Sorted(slices.Values(of))[len(of)/2]
}
