package modeltest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/order"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/redo"
	sessionstore "github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

const (
	stormRuns   = 6 // of one step, and of several by turns
	stormBudget = 5
)

// storm is many nodes, operators and a leader at work together on a few runs of one endpoint, while transactions are
// interrupted at any point, by their clients and by the server.
type storm struct {
	*bench
	url     string
	release func() // of the store
	runs    []workqueue.RunID
	lease   workqueue.Lease
	over    chan struct{}
	wg      sync.WaitGroup
	broken  atomic.Int64 // transactions that were
	did     sync.Map     // how often something worked, by name
}

func newStorm(t *testing.T) *storm {
	t.Helper()
	url := testenv.Database(t)
	b := &bench{Bench: &storetest.Bench{T: t, Pool: testenv.Connect(t, url)}}
	s := &storm{bench: b, url: url, over: make(chan struct{})}
	s.connect()
	s.Session = s.Open()
	s.lease = s.Lead()
	return s
}

// connect opens the store, as a node does when it starts: a busy machine may not answer in time.
func (s *storm) connect() {
	s.Helper()
	s.Until("the store is open", func() bool {
		store, release, err := database.Open(s.Context(), s.url, database.PoolConfig{MaxConns: 24})
		if _, coming := database.Coming(err); coming {
			return false
		}
		testenv.NoError(s, err)
		s.Cleanup(release)
		s.Store, s.release = store, release
		return true
	})
}

// reconnect leaves behind the connections that were killed after their last commit, and waits for what PostgreSQL still
// does for clients that have given up.
func (s *storm) reconnect() {
	s.Helper()
	s.release()
	s.Pool.Reset()
	s.Until("the connections of the storm are gone", func() bool {
		return s.Number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND backend_type = 'client backend' AND pid <> pg_backend_pid()`) == 0
	})
	s.connect()
}

// rage lets the storm last for a while, or as long as TRANCHE_SOAK says, and returns how often what has worked. On a
// busy machine it continues until all has worked that is to. The store is another one then.
func (s *storm) rage(lasts time.Duration) map[string]int64 {
	if d, err := time.ParseDuration(os.Getenv("TRANCHE_SOAK")); err == nil {
		lasts = d
	}
	<-time.After(lasts)
	for since := time.Now(); !s.allWorked() && time.Since(since) < time.Minute; {
		_ = pauseFor(s.Context(), 100*time.Millisecond)
	}
	close(s.over)
	s.wg.Wait()
	s.reconnect()
	did := map[string]int64{}
	s.did.Range(func(name, n any) bool { did[name.(string)] = n.(*atomic.Int64).Load(); return true })
	return did
}

// allWorked reports whether everything has worked once; kills need not.
func (s *storm) allWorked() bool {
	all := true
	s.did.Range(func(name, n any) bool {
		all = n.(*atomic.Int64).Load() > 0 || strings.HasPrefix(name.(string), "kill")
		return all
	})
	return all
}

// keep does something repeatedly until the storm ends; what is refused or interrupted does not matter.
func (s *storm) keep(name string, seed uint64, do func(ctx context.Context, r *rand.Rand) error) {
	r := rand.New(rand.NewPCG(seed, 0))
	worked := new(atomic.Int64)
	s.did.Store(name, worked)
	s.wg.Go(func() {
		for {
			select {
			case <-s.over:
				return
			default:
			}
			ctx, cancel := context.WithTimeout(s.Context(), 10*time.Second)
			if r.IntN(8) == 0 {
				cancel()
				ctx, cancel = context.WithTimeout(s.Context(), time.Duration(r.IntN(20_000))*time.Microsecond)
			}
			if err := do(ctx, r); err == nil {
				worked.Add(1)
			} else if ctx.Err() == nil {
				s.judge(name, err)
			}
			cancel()
			if name != "node" {
				_ = pauseFor(s.Context(), 2*time.Millisecond)
			}
		}
	})
}

// judge fails the test for what must not happen, whatever breaks.
func (s *storm) judge(name string, err error) {
	var state *workqueue.StateError
	var nothing *workqueue.ConflictError
	switch {
	case errors.As(err, &state), errors.As(err, &nothing), errors.Is(err, workqueue.ErrBusy),
		errors.Is(err, workqueue.ErrSessionLost), isBroken(err):
		s.broken.Add(1)
	default:
		s.Errorf("%s: %v", name, err)
	}
}

func (s *storm) one(r *rand.Rand) workqueue.RunID { return s.runs[r.IntN(len(s.runs))] }

// simple and joint draw a run of one step, and of several.
func (s *storm) simple(r *rand.Rand) workqueue.RunID { return s.runs[r.IntN(len(s.runs)/2)*2] }
func (s *storm) joint(r *rand.Rand) workqueue.RunID  { return s.runs[r.IntN(len(s.runs)/2)*2+1] }

// node claims, and answers most of what it has in time, some of it never.
func (s *storm) node(ctx context.Context, r *rand.Rand, session *workqueue.SessionID, out *[]workqueue.Slice) error {
	if *session == (workqueue.SessionID{}) || r.IntN(40) == 0 {
		id, err := sessionstore.New(s.Store).StartSession(ctx, sessionstore.NodeInfo{Host: "storm"}, time.Second)
		if err != nil {
			return err
		}
		*session = id
	}
	if _, err := sessionstore.New(s.Store).Heartbeat(ctx, *session, time.Second, struct{}{}); err != nil {
		*session = workqueue.SessionID{}
		return err
	}
	var reqs []dispatch.ClaimRequest // of one run, or of several in one transaction
	for i := r.IntN(len(s.runs)); i < len(s.runs); i++ {
		req := dispatch.ClaimRequest{Session: *session, Run: s.runs[i], MaxSlices: 1 + r.IntN(4), MaxBytes: 1 << 20,
			TTL: 200 * time.Millisecond}
		if i%2 == 1 {
			req.Step = workqueue.Step(r.IntN(len(storetest.StepNames())))
		}
		reqs = append(reqs, req)
	}
	claimed, err := dispatch.New(s.Store).ClaimAll(ctx, reqs, 4)
	for _, c := range claimed {
		*out = append(*out, c.Slices...)
	}
	if err != nil || len(*out) == 0 {
		return err
	}
	r.Shuffle(len(*out), func(i, j int) { (*out)[i], (*out)[j] = (*out)[j], (*out)[i] })
	n := min(len(*out), 3)
	some := (*out)[:n]
	*out = (*out)[n:]
	return s.settle(ctx, r, *session, some)
}

func (s *storm) settle(ctx context.Context, r *rand.Rand, session workqueue.SessionID, some []workqueue.Slice) error {
	var answers []settle.Answer
	for _, slice := range some {
		a := storetest.Whole(slice)
		switch r.IntN(12) {
		case 0:
			if _, err := settle.New(s.Store).Split(ctx, session, slice.ID, slice.Mask.Split(1), time.Second, "cut"); err != nil {
				return err
			}
		case 1:
			if err := settle.New(s.Store).Postpone(ctx, session, slice.ID, time.Millisecond, errors.New("storm")); err != nil {
				return err
			}
			continue
		case 2:
			a = storetest.Faulty(slice, workqueue.SlotError{Code: "bad", Message: "m", Retry: r.IntN(2) == 0})
		case 3:
			a.Slots, a.Answered = nil, 0
			a.Failure = &workqueue.SlotError{Code: "crash", Message: "m", Retry: true}
		case 4:
			continue // never answered
		}
		answers = append(answers, a)
	}
	_, err := settle.New(s.Store).Record(ctx, answers)
	return err
}

func (s *storm) operators() {
	settings := func(r *rand.Rand) control.StepChange {
		c := storetest.Chunking(1+r.IntN(6), 1+r.IntN(8))
		if r.IntN(3) == 0 {
			c.Endpoint = []string{storetest.Endpoint, elsewhere}[r.IntN(2)]
		}
		return c
	}
	about := func(r *rand.Rand) control.Control {
		if r.IntN(3) == 0 {
			return control.Control{All: true, Actor: "ann"}
		}
		return control.Control{Run: s.one(r), Actor: "ann"}
	}
	s.keep("pause", 11, func(ctx context.Context, r *rand.Rand) error {
		_, err := control.New(s.Store).Pause(ctx, about(r))
		return errors.Join(err, pauseFor(ctx, 20*time.Millisecond))
	})
	s.keep("resume", 12, func(ctx context.Context, r *rand.Rand) error {
		_, err := control.New(s.Store).Resume(ctx, about(r), nil)
		return errors.Join(err, pauseFor(ctx, 5*time.Millisecond))
	})
	s.keep("approve", 13, func(ctx context.Context, r *rand.Rand) error {
		_, err := control.New(s.Store).Approve(ctx, about(r))
		return err
	})
	s.keep("rerun", 14, func(ctx context.Context, r *rand.Rand) error {
		req := redo.RerunRequest{Run: s.joint(r), Select: redo.Selection{Failed: true}, Actor: "ann", DryRun: r.IntN(3) == 0}
		if r.IntN(3) == 0 {
			_, err := redo.New(s.Store).Rerun(ctx, req)
			return err
		}
		req.Run, req.Settings = s.simple(r), settings(r)
		if r.IntN(2) == 0 {
			req.Select = redo.Selection{Keys: storetest.Names(40)[r.IntN(20):]}
		}
		if r.IntN(2) == 0 {
			req.Canary, req.CanaryAutoApprove = 5, r.IntN(2) == 0
		}
		_, err := redo.New(s.Store).Rerun(ctx, req)
		return err
	})
	s.keep("set", 15, func(ctx context.Context, r *rand.Rand) error {
		limit := []string{"", "0", "5", "50%"}[r.IntN(4)]
		_, err := control.New(s.Store).SetRun(ctx, control.RunChange{Run: s.simple(r), Settings: settings(r),
			MaxFailed: &limit, Actor: "ann"})
		return err
	})
	s.keep("reset", 17, func(ctx context.Context, r *rand.Rand) error {
		sel := redo.Selection{Step: storetest.StepNames()[r.IntN(len(storetest.StepNames()))]}
		if sel.Keys = storetest.Names(40)[r.IntN(35):][:5]; r.IntN(6) == 0 {
			sel.All, sel.Keys = true, nil
		}
		_, err := redo.New(s.Store).Reset(ctx, redo.ResetRequest{Run: s.joint(r), Actor: "ann", Select: sel,
			Cascade: r.IntN(4) == 0, DryRun: r.IntN(6) == 0})
		return errors.Join(err, pauseFor(ctx, 20*time.Millisecond))
	})
	s.keep("endpoint", 16, s.setEndpoint)
}

// setEndpoint gives the endpoint its budget, and a rate or none.
func (s *storm) setEndpoint(ctx context.Context, r *rand.Rand) error {
	rate, budget := float64(r.IntN(2)*5000), stormBudget
	_, err := pacestore.New(s.Store).ChangeEndpoint(ctx, pacestore.EndpointChange{Endpoint: storetest.Endpoint,
		Rate: &rate, MaxInFlight: &budget, ChunkCap: new(int)}, "ann")
	return err
}

func (s *storm) leader() {
	s.keep("sweep", 21, func(ctx context.Context, _ *rand.Rand) error {
		_, err := settle.New(s.Store).ReleaseDeadSessions(ctx, s.lease)
		return err
	})
	s.keep("overdue", 22, s.expireOverdue)
	s.keep("holds", 23, func(ctx context.Context, _ *rand.Rand) error {
		due, err := control.New(s.Store).DueHolds(ctx)
		for _, d := range due {
			_, one := control.New(s.Store).CheckThreshold(ctx, d.Run)
			_, two := control.New(s.Store).CheckCanary(ctx, d.Run)
			err = errors.Join(err, one, two)
		}
		return err
	})
	s.keep("canary", 26, func(ctx context.Context, r *rand.Rand) error {
		_, err := control.New(s.Store).CheckCanary(ctx, s.one(r))
		return err
	})
	s.keep("pace", 24, func(ctx context.Context, r *rand.Rand) error {
		return pacestore.New(s.Store).SavePace(ctx, s.lease, storetest.Endpoint,
			pacestore.LearnedPace{InFlight: 1 + r.IntN(64),
				Learned: []byte(`{}`)}, []pacestore.Change{{What: "in_flight", Reason: "storm"}})
	})
	s.keep("watch", 25, func(ctx context.Context, _ *rand.Rand) error {
		_, err := pacestore.New(s.Store).CheckBreaker(ctx, storetest.Endpoint)
		_, also := pacestore.New(s.Store).CheckTooBig(ctx, storetest.Endpoint)
		return errors.Join(err, also)
	})
}

func (s *storm) expireOverdue(ctx context.Context, _ *rand.Rand) error {
	late, err := settle.New(s.Store).OverdueSlices(ctx, 100)
	if err != nil {
		return err
	}
	var ids []workqueue.SliceID
	for _, o := range late {
		ids = append(ids, o.ID)
	}
	_, err = settle.New(s.Store).Expire(ctx, s.lease, ids)
	return err
}

// nature opens and closes the breaker, kills connections, and counts what is out.
func (s *storm) nature() {
	s.keep("breaker", 31, func(ctx context.Context, _ *rand.Rand) error {
		_, err := s.Pool.Exec(ctx, `UPDATE endpoint_pace SET breaker = 'open', breaker_since = tranche_now(), probes = 0,
			probe_slice = NULL, probe_at = tranche_now() WHERE endpoint = $1`, storetest.Endpoint)
		err = errors.Join(err, pauseFor(ctx, 30*time.Millisecond))
		_, also := s.Pool.Exec(ctx, `UPDATE endpoint_pace SET breaker = 'closed', probe_at = NULL, probe_slice = NULL
			WHERE endpoint = $1`, storetest.Endpoint)
		return errors.Join(err, also, pauseFor(ctx, 100*time.Millisecond))
	})
	s.keep("kill", 32, func(ctx context.Context, _ *rand.Rand) error { // a connection within a transaction
		_, err := s.Pool.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'idle in transaction'
			ORDER BY random() LIMIT 1`)
		return errors.Join(err, pauseFor(ctx, 200*time.Millisecond))
	})
	s.keep("budget", 33, func(ctx context.Context, _ *rand.Rand) error {
		var out int
		err := s.Pool.QueryRow(ctx, `SELECT count(*) FROM work_slice WHERE endpoint = $1 AND state IN ('claimed', 'sent')`,
			storetest.Endpoint).Scan(&out)
		if out > stormBudget {
			s.Errorf("%d requests are out concurrently; the budget is %d", out, stormBudget)
		}
		return err
	})
}

func (s *storm) end() {
	s.Exec(`UPDATE node_session SET expires_at = tranche_now() WHERE host = 'storm'`)
	testenv.Must(settle.New(s.Store).ReleaseDeadSessions(s.Context(), s.lease))(s)
	s.Check()
	s.Exec(`UPDATE work_slice SET not_before = tranche_now() WHERE state = 'scheduled'`)
	s.Exec(`UPDATE endpoint_pace SET breaker = 'closed', probe_at = NULL, probe_slice = NULL`)
	s.Exec(`UPDATE endpoint_setting SET rate = 0, max_in_flight = 0`)
	s.Exec(`UPDATE run_step SET in_flight = 100`)
	all := control.Control{All: true, Actor: "ann"}
	for _, run := range s.runs {
		none := ""
		testenv.Must(control.New(s.Store).SetRun(s.Context(), control.RunChange{Run: run, MaxFailed: &none}))(s)
	}
	for range 3 {
		testenv.Must(control.New(s.Store).Resume(s.Context(), all, nil))(s)
		for i, run := range s.runs {
			s.Finish(run)
			for n := 1; i%2 == 1 && n > 0; {
				n = 0
				for step := range storetest.StepNames() {
					n += s.RecordStep(run, workqueue.Step(step))
				}
			}
			testenv.Must(control.New(s.Store).CheckCanary(s.Context(), run))(s)
		}
		testenv.Must(control.New(s.Store).Approve(s.Context(), all))(s)
	}
	for _, run := range s.runs {
		if state, _ := s.State(run); state != "completed" {
			s.Errorf("run %s is %s: %s", run, state, s.Dump(run))
		}
	}
	s.Check()
}

// Whatever happens together, and is interrupted wherever: budgets hold at each moment, nothing is lost or done twice,
// and all runs come to their end. TRANCHE_SOAK=20s has it last longer.
func TestEverythingAtOnce(t *testing.T) {
	t.Parallel()
	s := newStorm(t)
	req, joint := storetest.Request(), storetest.Collecting()
	req.Steps[0].Timeout = 200 * time.Millisecond
	req.Canary, req.CanaryAutoApprove = 10, true
	for i := range joint.Steps {
		joint.Steps[i].MaxAttempts, joint.Steps[i].Timeout = 3, 300*time.Millisecond
	}
	for i := range stormRuns / 2 {
		if joint.Order = nil; i > 0 {
			joint.Order = &workqueue.RunOrder{Rule: order.Rule{By: "v"}}
		}
		next, n := storetest.Keys(storetest.Names(40)...), 0
		loaded := testenv.Must(s.TryLoad(joint, func(item *start.LoadItem) error {
			err := next(item)
			item.Payload, n = fmt.Appendf(nil, `{"v":%d}`, n%9), n+1
			return err
		}))(t)
		s.runs = append(s.runs, s.Load(req, 40), loaded.Run)
	}
	if err := s.setEndpoint(t.Context(), rand.New(rand.NewPCG(0, 0))); err != nil { // before anything is claimed
		t.Fatal(err)
	}
	for i := range 4 {
		var session workqueue.SessionID
		var out []workqueue.Slice
		s.keep("node", uint64(i), func(ctx context.Context, r *rand.Rand) error { return s.node(ctx, r, &session, &out) })
	}
	s.operators()
	s.leader()
	s.nature()
	for name, n := range s.rage(3 * time.Second) {
		t.Logf("%v: %d", name, n)
	}
	t.Logf("%d were refused or interrupted", s.broken.Load())
	s.end()
}

func pauseFor(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// isBroken reports whether the server or the network ended a transaction.
func isBroken(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return slices.Contains([]string{"57P01", "55P03", "57014", "40P01", "25P03"}, pg.Code)
	}
	return pgconn.SafeToRetry(err) || pgconn.Timeout(err) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, io.EOF) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, net.ErrClosed) || strings.Contains(err.Error(), "conn closed") ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
