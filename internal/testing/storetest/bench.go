// Package storetest has what tests of the store share: a store on its own database ([Setup]), with helpers that load,
// claim, answer and count. It is for tests only.
package storetest

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/testenv"
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
	// Endpoint is the endpoint of [Request].
	Endpoint = "statement"
	// SessionTTL is longer than any time that passes in a test.
	SessionTTL = 1000 * time.Hour
	// LeaseTTL is the life of [Bench.Lead]'s lease.
	LeaseTTL = SessionTTL
	// Plenty is the limit of a claim that takes all slices.
	Plenty = 1000
)

// Bench is a store on its own database, with the rights of the role that serves, and a session that claims. Pool has
// the superuser's rights.
type Bench struct {
	*testing.T
	Pool    *pgxpool.Pool
	Store   *database.DB
	Session workqueue.SessionID
}

// Setup returns a store on its own database, and a session.
func Setup(t *testing.T) *Bench {
	t.Helper()
	admin, serving := testenv.Pools(t)
	b := &Bench{T: t, Pool: admin, Store: database.New(serving)}
	b.Session = b.Open()
	return b
}

func (b *Bench) Open() workqueue.SessionID {
	b.Helper()
	id, err := session.New(b.Store).StartSession(b.Context(), session.NodeInfo{Host: "test", PID: 1, Version: "test"},
		SessionTTL)
	testenv.NoError(b, err)
	return id
}

func (b *Bench) Expire(id workqueue.SessionID) {
	b.Helper()
	b.Exec(`UPDATE node_session SET expires_at = tranche_now() WHERE id = $1`, id)
}

func (b *Bench) Pass(ids ...workqueue.SliceID) {
	b.Helper()
	b.Exec(`UPDATE work_slice SET deadline = tranche_now() WHERE id = ANY($1)`, ids)
}

// Stretch fails the test unless one row has a time in a column that is at least this long after since. It postpones
// that time by an hour, so that it does not pass meanwhile.
func (b *Bench) Stretch(table, column string, since time.Time, least time.Duration) {
	b.Helper()
	n := b.Number(fmt.Sprintf(`WITH put AS (UPDATE %s SET %[2]s = %[2]s + interval '1 hour' WHERE %[2]s >= $1
		RETURNING 1) SELECT count(*) FROM put`, pgx.Identifier{table}.Sanitize(), pgx.Identifier{column}.Sanitize()),
		since.Add(least))
	testenv.Same(b, n, 1, "rows of %s in which %s is %s after what set it, or more", table, column, least)
}

// Exec runs a statement as the superuser.
func (b *Bench) Exec(sql string, args ...any) {
	b.Helper()
	testenv.Must(b.Pool.Exec(b.Context(), sql, args...))(b)
}

func (b *Bench) Number(sql string, args ...any) int {
	b.Helper()
	return testenv.Number(b, b.Pool, sql, args...)
}

func (b *Bench) Lead() workqueue.Lease {
	b.Helper()
	return testenv.Must(session.New(b.Store).Lead(b.Context(), b.Session, LeaseTTL))(b)
}

// Request returns a run in chunks of 4, with three attempts without a pause.
func Request() start.LoadRequest {
	return start.LoadRequest{Plan: "test", CreatedBy: "test", Steps: []workqueue.StepSpec{{
		Name: "only", Endpoint: Endpoint, StepSettings: workqueue.StepSettings{Chunk: 4, InFlight: 100, MaxAttempts: 3,
			Timeout: time.Minute},
	}}}
}

func Chunked(chunk int) start.LoadRequest {
	req := Request()
	req.Steps[0].Chunk = chunk
	return req
}

// Keys yields items with the given keys; line 1 is a header.
func Keys(keys ...string) func(*start.LoadItem) error {
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

func Names(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = "C" + strconv.Itoa(i)
	}
	return all
}

// Load loads a run of n items, C0, C1, ….
func (b *Bench) Load(req start.LoadRequest, n int) workqueue.RunID {
	b.Helper()
	return b.LoadKeys(req, Names(n)...)
}

func (b *Bench) LoadKeys(req start.LoadRequest, all ...string) workqueue.RunID {
	b.Helper()
	req.Session = b.Session
	loaded := testenv.Must(start.New(b.Store).Load(b.Context(), req, Keys(all...)))(b)
	testenv.MustSame(b, loaded.Items, int64(len(all)), "items")
	return loaded.Run
}

func (b *Bench) Claim(run workqueue.RunID, most int) []workqueue.Slice {
	b.Helper()
	return testenv.Must(dispatch.New(b.Store).Claim(b.Context(), b.ClaimRequest(run, most)))(b).Slices
}

func (b *Bench) ClaimRequest(run workqueue.RunID, most int) dispatch.ClaimRequest {
	return dispatch.ClaimRequest{Session: b.Session, Run: run, MaxSlices: most, MaxBytes: 1 << 20}
}

func (b *Bench) One(run workqueue.RunID) workqueue.Slice {
	b.Helper()
	claimed := b.Claim(run, 1)
	testenv.MustSame(b, len(claimed), 1, "claimed slices")
	return claimed[0]
}

// Send marks slices as sent in the first epoch of the streams.
func (b *Bench) Send(claimed ...workqueue.Slice) {
	b.Helper()
	var sent []workqueue.Sent
	for i, s := range claimed {
		sent = append(sent, workqueue.Sent{ID: s.ID, StreamSeq: int64(i + 1), StreamsEpoch: 1})
	}
	testenv.Must(settle.New(b.Store).MarkSent(b.Context(), sent))(b)
}

func Ordinals(s workqueue.Slice) []workqueue.Ordinal {
	var all []workqueue.Ordinal
	for bit := range s.Mask.All() {
		all = append(all, s.Block.Ordinal(bit))
	}
	return all
}

// Answer returns a final reply to a slice with results for the given items.
func Answer(s workqueue.Slice, items ...workqueue.Ordinal) settle.Answer {
	a := settle.Answer{Slice: s.ID, Endpoint: s.Endpoint, Service: "test", Answered: len(items)}
	for _, o := range items {
		a.Slots = append(a.Slots, settle.Slot{Ordinal: o, Result: fmt.Appendf(nil, `{"of":%d}`, o)})
	}
	return a
}

// Whole returns a final reply with a result for every item.
func Whole(s workqueue.Slice) settle.Answer { return Answer(s, Ordinals(s)...) }

// Wholes returns a whole reply to each slice.
func Wholes(claimed []workqueue.Slice) (all []settle.Answer) {
	for _, s := range claimed {
		all = append(all, Whole(s))
	}
	return all
}

// Faulty returns a final reply with the same error for every item.
func Faulty(s workqueue.Slice, e workqueue.SlotError) settle.Answer {
	a := Whole(s)
	for i := range a.Slots {
		a.Slots[i].Result, a.Slots[i].Err = nil, &e
	}
	return a
}

func (b *Bench) Record(answers ...settle.Answer) settle.Recorded {
	b.Helper()
	return testenv.Must(settle.New(b.Store).Record(b.Context(), answers))(b)
}

// Finish claims and answers until nothing is ready.
func (b *Bench) Finish(run workqueue.RunID) {
	b.Helper()
	b.RecordStep(run, 0)
}

type Tally struct{ Ready, Live, Done, Failed int }

func (b *Bench) Tally(run workqueue.RunID) (n Tally) {
	b.Helper()
	testenv.NoError(b, b.Pool.QueryRow(b.Context(), `
		SELECT sum(bit_count(ready)), sum(bit_count(done)), sum(bit_count(failed)),
		       (SELECT coalesce(sum(bit_count(remaining)), 0) FROM work_slice
		        WHERE run_id = $1 AND state IN ('scheduled', 'claimed', 'sent'))
		FROM work_block WHERE run_id = $1`, run).Scan(&n.Ready, &n.Done, &n.Failed, &n.Live))
	return n
}

func (b *Bench) WantTally(run workqueue.RunID, want Tally) {
	b.Helper()
	if got := b.Tally(run); got != want {
		b.Errorf("the items are %+v; want %+v: %s", got, want, b.Dump(run))
	}
}

func (b *Bench) State(run workqueue.RunID) (state string, generation int) {
	b.Helper()
	testenv.NoError(b, b.Pool.QueryRow(b.Context(), `SELECT state, generation FROM batchrun WHERE id = $1`, run).
		Scan(&state, &generation))
	return state, generation
}

func (b *Bench) WantState(run workqueue.RunID, state string, generation int) {
	b.Helper()
	if s, g := b.State(run); s != state || g != generation {
		b.Errorf("the run is %s in generation %d; want %s in %d: %s", s, g, state, generation, b.Dump(run))
	}
}

func (b *Bench) Completions(run workqueue.RunID) []int {
	b.Helper()
	var generations []int
	testenv.NoError(b, b.Pool.QueryRow(b.Context(), `SELECT coalesce(array_agg(generation ORDER BY generation), '{}')
		FROM run_event WHERE run_id = $1 AND kind = 'completed'`, run).Scan(&generations))
	return generations
}

func (b *Bench) WantCompletions(run workqueue.RunID, want ...int) {
	b.Helper()
	testenv.SameList(b, b.Completions(run), want, "generations with completion events")
}

func (b *Bench) Dump(run workqueue.RunID) (text string) {
	b.Helper()
	testenv.NoError(b, b.Pool.QueryRow(context.Background(), `
		SELECT coalesce(string_agg(format('%s of %s attempt %s/%s left %s', state, cause, attempt, failures,
		       bit_count(remaining)), '; ' ORDER BY created_at), 'no slices')
		FROM work_slice WHERE run_id = $1`, run).Scan(&text))
	return text
}

// Check fails the test if an invariant is violated, except that of the schema: tests add triggers.
func (b *Bench) Check() {
	b.Helper()
	report := testenv.Must(doctor.New(b.Store).Recount(context.Background()))(b)
	for _, v := range report.Violations {
		b.Errorf("invariant: %v", v)
	}
}

// Disjoint fails the test if two slices contain the same item, and returns their number of items.
func (b *Bench) Disjoint(all []workqueue.Slice) int {
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

// Chunking sets the chunk size and the limit in flight; 0 keeps it.
func Chunking(chunk, inFlight int) (c control.StepChange) {
	if chunk != 0 {
		c.Chunk = &workqueue.Adaptive{Value: chunk}
	}
	if inFlight != 0 {
		c.InFlight = &workqueue.Adaptive{Value: inFlight}
	}
	return c
}
