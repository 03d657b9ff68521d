package workqueue_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

const (
	endpoint   = "statement"
	sessionTTL = time.Hour
	leaseTTL   = time.Hour
	plenty     = 1000 // slices of a claim that takes all there are
)

// bench is a store on a database of its own, as the role that serves, and a session that claims. The pool is of the
// superuser, who may look at everything and change it.
type bench struct {
	*testing.T
	pool    *pgxpool.Pool
	store   *database.DB
	session workqueue.SessionID
}

func setup(t *testing.T) *bench {
	t.Helper()
	url := testenv.Database(t)
	b := &bench{T: t, pool: testenv.Connect(t, url), store: database.New(testenv.Connect(t, testenv.Serving(t, url)))}
	b.session = b.open()
	return b
}

// open starts a session.
func (b *bench) open() workqueue.SessionID {
	b.Helper()
	id, err := session.New(b.store).StartSession(b.Context(), session.NodeInfo{Host: "test", PID: 1, Version: "test"},
		sessionTTL)
	if err != nil {
		b.Fatal(err)
	}
	return id
}

// expire makes a session one that has not been heard of for too long.
func (b *bench) expire(id workqueue.SessionID) {
	b.Helper()
	b.exec(`UPDATE node_session SET expires_at = clock_timestamp() WHERE id = $1`, id)
}

// pass makes the deadlines of slices pass.
func (b *bench) pass(ids ...workqueue.SliceID) {
	b.Helper()
	b.exec(`UPDATE work_slice SET deadline = clock_timestamp() WHERE id = ANY($1)`, ids)
}

// stretch fails the test unless one row waits for a time in a column that is at least so long after since. It puts that
// time off by an hour, so that it does not pass by itself.
func (b *bench) stretch(table, column string, since time.Time, least time.Duration) {
	b.Helper()
	n := b.number(fmt.Sprintf(`WITH put AS (UPDATE %s SET %[2]s = %[2]s + interval '1 hour' WHERE %[2]s >= $1
		RETURNING 1) SELECT count(*) FROM put`, table, column), since.Add(least))
	if n != 1 {
		b.Errorf("%s is %s after what set it, or more, in %d rows of %s; want 1", column, least, n, table)
	}
}

func (b *bench) exec(sql string, args ...any) {
	b.Helper()
	if _, err := b.pool.Exec(b.Context(), sql, args...); err != nil {
		b.Fatal(err)
	}
}

// number runs a query that returns one.
func (b *bench) number(sql string, args ...any) (n int) {
	b.Helper()
	if err := b.pool.QueryRow(b.Context(), sql, args...).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// lead takes the lease.
func (b *bench) lead() workqueue.Lease {
	b.Helper()
	lease, err := session.New(b.store).Lead(b.Context(), b.session, leaseTTL)
	if err != nil {
		b.Fatal(err)
	}
	return lease
}

// request is a run of chunks of 4 with three attempts and no pause between them.
func request() start.LoadRequest {
	return start.LoadRequest{Plan: "test", CreatedBy: "test", Steps: []workqueue.StepSpec{{
		Name: "only", Endpoint: endpoint, StepSettings: workqueue.StepSettings{Chunk: 4, InFlight: 100, MaxAttempts: 3,
			Timeout: time.Minute},
	}}}
}

// chunked is request with another chunk.
func chunked(chunk int) start.LoadRequest {
	req := request()
	req.Steps[0].Chunk = chunk
	return req
}

// keys yields items with the keys given; line 1 is a heading.
func keys(keys ...string) func(*start.LoadItem) error {
	i := 0
	return func(item *start.LoadItem) error {
		if i == len(keys) {
			return io.EOF
		}
		item.Key, item.Payload, item.Line = keys[i], []byte(`{}`), i+2
		i++
		return nil
	}
}

// names returns C0, C1, ….
func names(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = "C" + strconv.Itoa(i)
	}
	return all
}

func (b *bench) load(req start.LoadRequest, n int) workqueue.RunID {
	b.Helper()
	return b.loadKeys(req, names(n)...)
}

func (b *bench) loadKeys(req start.LoadRequest, all ...string) workqueue.RunID {
	b.Helper()
	req.Session = b.session
	loaded, err := start.New(b.store).Load(b.Context(), req, keys(all...))
	if err != nil {
		b.Fatal(err)
	}
	if loaded.Items != int64(len(all)) {
		b.Fatalf("loaded %d items of %d", loaded.Items, len(all))
	}
	return loaded.Run
}

func (b *bench) claim(run workqueue.RunID, most int) []workqueue.Slice {
	b.Helper()
	claimed, err := dispatch.New(b.store).Claim(b.Context(), b.claimRequest(run, most))
	if err != nil {
		b.Fatal(err)
	}
	return claimed.Slices
}

func (b *bench) claimRequest(run workqueue.RunID, most int) dispatch.ClaimRequest {
	return dispatch.ClaimRequest{Session: b.session, Run: run, MaxSlices: most, MaxBytes: 1 << 20}
}

// one claims a single slice.
func (b *bench) one(run workqueue.RunID) workqueue.Slice {
	b.Helper()
	claimed := b.claim(run, 1)
	if len(claimed) != 1 {
		b.Fatalf("claimed %d slices, want 1: %s", len(claimed), b.dump(run))
	}
	return claimed[0]
}

// send marks slices as sent through the first epoch of the streams.
func (b *bench) send(claimed ...workqueue.Slice) {
	b.Helper()
	var sent []workqueue.Sent
	for i, s := range claimed {
		sent = append(sent, workqueue.Sent{ID: s.ID, StreamSeq: int64(i + 1), StreamsEpoch: 1})
	}
	if _, err := settle.New(b.store).MarkSent(b.Context(), sent); err != nil {
		b.Fatal(err)
	}
}

// ordinals lists the items of a slice.
func ordinals(s workqueue.Slice) []workqueue.Ordinal {
	var all []workqueue.Ordinal
	for bit := range s.Mask.All() {
		all = append(all, s.Block.Ordinal(bit))
	}
	return all
}

// answer is a final reply to a slice with results for the items given.
func answer(s workqueue.Slice, items ...workqueue.Ordinal) settle.Answer {
	a := settle.Answer{Slice: s.ID, Endpoint: s.Endpoint, Service: "test", Answered: len(items)}
	for _, o := range items {
		a.Slots = append(a.Slots, settle.Slot{Ordinal: o, Result: fmt.Appendf(nil, `{"of":%d}`, o)})
	}
	return a
}

// whole is a final reply with a result for every item.
func whole(s workqueue.Slice) settle.Answer { return answer(s, ordinals(s)...) }

// faulty is a final reply with the same error for every item.
func faulty(s workqueue.Slice, e workqueue.SlotError) settle.Answer {
	a := whole(s)
	for i := range a.Slots {
		a.Slots[i].Result, a.Slots[i].Err = nil, &e
	}
	return a
}

func (b *bench) record(answers ...settle.Answer) settle.Recorded {
	b.Helper()
	recorded, err := settle.New(b.store).Record(b.Context(), answers)
	if err != nil {
		b.Fatal(err)
	}
	return recorded
}

// finish claims and answers until nothing is left to claim.
func (b *bench) finish(run workqueue.RunID) {
	b.Helper()
	for {
		claimed := b.claim(run, plenty)
		if len(claimed) == 0 {
			return
		}
		for _, s := range claimed {
			b.record(whole(s))
		}
	}
}

// tally is where the items of a run are, by its planes and slices.
type tally struct{ ready, live, done, failed int }

func (b *bench) tally(run workqueue.RunID) (n tally) {
	b.Helper()
	err := b.pool.QueryRow(b.Context(), `
		SELECT sum(bit_count(ready)), sum(bit_count(done)), sum(bit_count(failed)),
		       (SELECT coalesce(sum(bit_count(remaining)), 0) FROM work_slice
		        WHERE run_id = $1 AND state IN ('scheduled', 'claimed', 'sent'))
		FROM work_block WHERE run_id = $1`, run).Scan(&n.ready, &n.done, &n.failed, &n.live)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

func (b *bench) wantTally(run workqueue.RunID, want tally) {
	b.Helper()
	if got := b.tally(run); got != want {
		b.Errorf("the items are %+v; want %+v: %s", got, want, b.dump(run))
	}
}

// state returns a run's state and generation.
func (b *bench) state(run workqueue.RunID) (state string, generation int) {
	b.Helper()
	err := b.pool.QueryRow(b.Context(), `SELECT state, generation FROM batchrun WHERE id = $1`, run).
		Scan(&state, &generation)
	if err != nil {
		b.Fatal(err)
	}
	return state, generation
}

func (b *bench) wantState(run workqueue.RunID, state string, generation int) {
	b.Helper()
	if s, g := b.state(run); s != state || g != generation {
		b.Errorf("the run is %s in generation %d; want %s in %d: %s", s, g, state, generation, b.dump(run))
	}
}

// completions lists the generations of which a completion event tells.
func (b *bench) completions(run workqueue.RunID) []int {
	b.Helper()
	var generations []int
	err := b.pool.QueryRow(b.Context(), `SELECT coalesce(array_agg(generation ORDER BY generation), '{}')
		FROM run_event WHERE run_id = $1 AND kind = 'completed'`, run).Scan(&generations)
	if err != nil {
		b.Fatal(err)
	}
	return generations
}

func (b *bench) wantCompletions(run workqueue.RunID, want ...int) {
	b.Helper()
	if got := b.completions(run); !slices.Equal(got, want) {
		b.Errorf("completion events of generations %v; want %v", got, want)
	}
}

// dump tells the slices of a run.
func (b *bench) dump(run workqueue.RunID) (text string) {
	b.Helper()
	err := b.pool.QueryRow(context.Background(), `
		SELECT coalesce(string_agg(format('%s of %s attempt %s/%s left %s', state, cause, attempt, failures,
		       bit_count(remaining)), '; ' ORDER BY created_at), 'no slices')
		FROM work_slice WHERE run_id = $1`, run).Scan(&text)
	if err != nil {
		b.Fatal(err)
	}
	return text
}

// check fails the test when an invariant does not hold.
func (b *bench) check() {
	b.Helper()
	report, err := doctor.New(b.store).Doctor(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	for _, v := range report.Violations {
		b.Errorf("invariant: %v", v)
	}
}

// disjoint fails the test when two slices hold the same item, and returns how many items they hold.
func (b *bench) disjoint(all []workqueue.Slice) int {
	b.Helper()
	seen := map[workqueue.Block]bitfield.Set{}
	items := 0
	for _, s := range all {
		twice := seen[s.Block].And(s.Mask)
		if !twice.Empty() {
			b.Fatalf("%d items of block %d were claimed twice", twice.Count(), s.Block)
		}
		seen[s.Block] = seen[s.Block].Or(s.Mask)
		items += s.Mask.Count()
	}
	return items
}

// chunking sets the chunk and the limit in flight; 0 leaves it.
func chunking(chunk, inFlight int) (c control.StepChange) {
	if chunk != 0 {
		c.Chunk = &workqueue.Adaptive{Value: chunk}
	}
	if inFlight != 0 {
		c.InFlight = &workqueue.Adaptive{Value: inFlight}
	}
	return c
}
