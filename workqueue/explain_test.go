package workqueue_test

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

// told is what a test expects of a group.
type told struct {
	state  string
	reason health.Kind
	owner  health.Owner
	items  int64
}

func tell(groups []health.MissingGroup) []told {
	all := []told{}
	for i := range groups {
		g := &groups[i]
		all = append(all, told{state: g.State, reason: g.Reason, owner: g.Owner, items: g.Items})
	}
	return all
}

// complete fails the test when a group leaves a question open.
func complete(t *testing.T, groups []health.MissingGroup) {
	t.Helper()
	for i := range groups {
		g := &groups[i]
		if g.Owner == "" || g.Reason == "" || g.Who == "" || g.Why == "" || g.Next == "" || g.Since == nil ||
			g.Step == "" || g.Endpoint == "" {
			t.Errorf("the group leaves a question open: %+v", *g)
		}
		if g.Owner == health.OwnerTimer && g.When == nil {
			t.Errorf("a timer has no time: %+v", *g)
		}
		if g.Owner == health.OwnerOperator && len(g.Advice) == 0 {
			t.Errorf("an operator is not told what to do: %+v", *g)
		}
	}
}

// explain explains a run, of which the groups must leave no question open.
func (b *bench) explain(run workqueue.RunID) *health.Explanation {
	b.Helper()
	e := testenv.Must(health.New(b.Store).Explain(b.Context(), run))(b)
	complete(b.T, e.Groups)
	var sum int64
	for i := range e.Groups {
		sum += e.Groups[i].Items
	}
	if sum != e.Missing || e.Missing != e.Items-e.Done-e.Failed {
		b.Errorf("the groups have %d items, %d are missing", sum, e.Missing)
	}
	if e.Summary == "" || e.Last == nil || e.At.IsZero() || strings.Contains(strings.ToLower(e.Summary), "unknown") {
		b.Errorf("the explanation is %+v", *e)
	}
	return e
}

func (b *bench) wantTold(run workqueue.RunID, want ...told) *health.Explanation {
	b.Helper()
	e := b.explain(run)
	if want == nil {
		want = []told{}
	}
	testenv.SameList(b, tell(e.Groups), want, "told, %s", e.Summary)
	b.Log(e.Summary)
	return e
}

// limited is a run of chunks of 4 with at most one request out.
func limited() start.LoadRequest {
	req := storetest.Request()
	req.Steps[0].InFlight = 1
	return req
}

func TestExplain(t *testing.T) {
	t.Parallel()
	retryable := workqueue.SlotError{Code: "BUSY", Message: "come again", Retry: true}
	final := workqueue.SlotError{Code: "BAD", Message: "no such thing"}
	const (
		service, node, timer = health.OwnerService, health.OwnerNode, health.OwnerTimer
		operator, nobody     = health.OwnerOperator, health.OwnerNobody
	)
	slow := storetest.Request()
	slow.Steps[0].RetryBackoff = time.Hour
	for name, c := range map[string]struct {
		make func(b *bench) workqueue.RunID
		want []told
		says string // in the reason, the summary or an advice
	}{
		"next": {
			make: func(b *bench) workqueue.RunID { return b.Load(storetest.Request(), 10) },
			want: []told{{state: "ready", reason: health.ReasonNext, owner: node, items: 10}}, says: "node test (pid 1)",
		},
		"done": {
			make: func(b *bench) workqueue.RunID { run := b.Load(storetest.Request(), 10); b.Finish(run); return run },
			want: []told{}, says: "all 10 items are done",
		},
		"some failed": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Chunked(10), 10)
				b.Record(storetest.Faulty(b.One(run), final))
				return run
			},
			want: []told{}, says: "--failed",
		},
		"cancelled": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 10)
				b.Send(b.One(run))
				testenv.Must(control.New(b.Store).Cancel(b.Context(), control.Control{Run: run, Actor: "bob"}))(b)
				return run
			},
			want: []told{{state: "waiting", reason: health.ReasonCancelled, owner: nobody, items: 10}},
			says: "--state cancelled",
		},
		"paused": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(limited(), 10)
				b.Send(b.One(run))
				b.PauseRun(run)
				return run
			},
			want: []told{{state: "ready", reason: health.RunHeld, owner: operator, items: 6},
				{state: "sent", reason: health.ReasonQueued, owner: service, items: 4}},
			says: "tranche run resume",
		},
		"threshold": {
			make: func(b *bench) workqueue.RunID {
				req := storetest.Request()
				req.MaxFailed = "1"
				run := b.Load(req, 10)
				b.Exec(`UPDATE batchrun SET failed_limit = 1 WHERE id = $1`, run)
				b.Record(storetest.Faulty(b.One(run), final))
				if held, err := control.New(b.Store).CheckThreshold(b.Context(), run); err != nil || !held {
					b.Fatal(held, err)
				}
				return run
			},
			want: []told{{state: "ready", reason: health.RunOverLimit, owner: operator,
				items: 6}}, says: "4 of 10 items failed; the limit is 1",
		},
		"fail_fast": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(failFast(4, 4, 8), 10)
				b.Record(storetest.Faulty(b.One(run), final))
				return run
			},
			want: []told{{state: "ready", reason: health.RunFailFast, owner: operator, items: 6}},
			says: "4 of the first 4 outcomes of step only failed with BAD",
		},
		"gate": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Planned(storetest.Need("compose"), gate(workqueue.ApproveOther, storetest.Need("send", 0))),
					10)
				b.RecordStep(run, 0)
				b.checkBarriers(run)
				return run
			},
			want: []told{{state: "ready", reason: health.RunGate, owner: operator, items: 10}},
			says: "--step send",
		},
		"sampling": {
			make: func(b *bench) workqueue.RunID { return b.sampled(8) },
			want: []told{{state: "held", reason: health.ReasonSampling, owner: node, items: 6},
				{state: "ready", reason: health.ReasonNext, owner: node, items: 2}},
			says: "waits for approval",
		},
		"canary waits": {
			make: func(b *bench) workqueue.RunID {
				run := b.sampled(8)
				b.Finish(run)
				testenv.Must(control.New(b.Store).CheckCanary(b.Context(), run))(b)
				return run
			},
			want: []told{{state: "held", reason: health.RunApproval, owner: operator, items: 6}}, says: "tranche run approve",
		},
		"no node": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 10)
				b.One(run)
				b.Expire(b.Session)
				return run
			},
			want: []told{{state: "ready", reason: health.ReasonNoNode, owner: operator, items: 6},
				{state: "claimed", reason: health.ReasonClaimLost, owner: operator, items: 4}},
			says: "tranche serve",
		},
		"step limit": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(limited(), 10)
				b.One(run)
				return run
			},
			want: []told{{state: "ready", reason: health.ReasonStepLimit, owner: service, items: 6},
				{state: "claimed", reason: health.ReasonPublishing, owner: node, items: 4}},
			says: "--in-flight N",
		},
		"budget": {
			make: func(b *bench) workqueue.RunID {
				b.Exec(`INSERT INTO endpoint_setting (endpoint, max_in_flight) VALUES ($1, 1)`, storetest.Endpoint)
				b.One(b.Load(storetest.Request(), 4))
				return b.Load(storetest.Request(), 10)
			},
			want: []told{{state: "ready", reason: health.ReasonBudget, owner: service, items: 10}}, says: "1 of 1 are in flight",
		},
		"quota of a namespace": {
			make: func(b *bench) workqueue.RunID {
				b.Exec(`UPDATE namespace SET max_in_flight = 1`)
				b.One(b.Load(storetest.Request(), 4))
				return b.Load(storetest.Request(), 10)
			},
			want: []told{{state: "ready", reason: health.ReasonQuota, owner: service, items: 10}},
			says: "1 of 1 are in flight, which is the quota of namespace default",
		},
		"behind priority": {
			make: func(b *bench) workqueue.RunID {
				b.Exec(`INSERT INTO endpoint_setting (endpoint, max_in_flight) VALUES ($1, 1)`, storetest.Endpoint)
				urgent := storetest.Request()
				urgent.Priority = 7
				b.One(b.Load(urgent, 10))
				return b.Load(storetest.Request(), 10)
			},
			want: []told{{state: "ready", reason: health.ReasonPriority, owner: service, items: 10}}, says: "--priority 7",
		},
		"adaptive limit": {
			make: func(b *bench) workqueue.RunID {
				b.Exec(`INSERT INTO endpoint_pace (endpoint, in_flight) VALUES ($1, 1)`, storetest.Endpoint)
				b.Exec(`INSERT INTO endpoint_change (endpoint, what, reason) VALUES ($1, 'in_flight', 'it got slow')`,
					storetest.Endpoint)
				run := b.Load(storetest.Request(), 10)
				b.Exec(`UPDATE run_step SET in_flight_auto = true`)
				b.One(run)
				return run
			},
			want: []told{{state: "ready", reason: health.ReasonAdaptive, owner: service, items: 6},
				{state: "claimed", reason: health.ReasonPublishing, owner: node, items: 4}},
			says: "it got slow",
		},
		"share": {
			make: func(b *bench) workqueue.RunID {
				b.Exec(`INSERT INTO endpoint_setting (endpoint, max_in_flight) VALUES ($1, 4)`, storetest.Endpoint)
				run := b.Load(storetest.Request(), 20)
				b.One(run)
				b.One(run)
				b.Load(storetest.Request(), 20)
				return run
			},
			want: []told{{state: "ready", reason: health.ReasonShare, owner: service, items: 12},
				{state: "claimed", reason: health.ReasonPublishing, owner: node, items: 8}},
			says: "the run's share of the 4 that endpoint statement takes: another run has work",
		},
		"rate": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 10)
				b.Exec(`UPDATE run_step SET rate = 2, tokens = -100, tokens_at = tranche_now()`)
				return run
			},
			want: []told{{state: "ready", reason: health.ReasonRate, owner: timer, items: 10}}, says: "--rate N",
		},
		"breaker": {
			make: func(b *bench) workqueue.RunID {
				b.openBreaker()
				return b.Load(storetest.Request(), 10)
			},
			want: []told{{state: "ready", reason: health.BreakerOpen, owner: timer, items: 10}}, says: "9 of 10 failed",
		},
		"probe due": {
			make: func(b *bench) workqueue.RunID {
				b.openBreaker()
				b.Exec(`UPDATE endpoint_pace SET probe_at = tranche_now()`)
				return b.Load(storetest.Request(), 10)
			},
			want: []told{{state: "ready", reason: health.BreakerOpen, owner: node,
				items: 10}}, says: "sends one item as a probe",
		},
		"probe out": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 10)
				probe := b.One(run)
				b.Send(probe)
				b.openBreaker()
				b.Exec(`UPDATE endpoint_pace SET probe_slice = $1`, probe.ID)
				return run
			},
			want: []told{{state: "ready", reason: health.ReasonProbing, owner: service, items: 6},
				{state: "sent", reason: health.ReasonQueued, owner: service, items: 4}},
			says: "a probe is in flight",
		},
		"backoff": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(slow, 4)
				b.Record(storetest.Faulty(b.One(run), retryable))
				return run
			},
			want: []told{{state: "scheduled", reason: health.ReasonBackoff, owner: timer, items: 4}}, says: "BUSY: come again",
		},
		"backoff for two reasons": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(slow, 7)
				b.Record(storetest.Faulty(b.One(run), retryable))
				b.Record(settle.Answer{Slice: b.One(run).ID, Endpoint: storetest.Endpoint, Service: "test", Failure: &retryable})
				return run
			},
			want: []told{{state: "scheduled", reason: health.ReasonBackoff, owner: timer, items: 7}},
			says: "(4 items); the service failed their entire request; that was failure 1 of at most 3 (3 items)",
		},
		"no NATS": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 7)
				b.One(run)
				rests := testenv.Must(session.New(b.Store).Heartbeat(b.Context(), b.Session, time.Minute,
					map[string]bool{"nats": false}))(b)
				testenv.Same(b, rests, false, "during a run the installation does not rest")
				return run
			},
			want: []told{{state: "claimed", reason: health.ReasonNATSUnreachable, owner: node, items: 4},
				{state: "ready", reason: health.ReasonNATSUnreachable, owner: node, items: 3}},
			says: "node test (pid 1) cannot reach NATS, so it sends nothing",
		},
		"no quorum": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 7)
				b.One(run)
				testenv.Must(session.New(b.Store).Heartbeat(b.Context(), b.Session, time.Minute,
					map[string]any{"nats": true, "stalled": map[string]any{"seconds": 60, "why": "stream X: no answer"}}))(b)
				return run
			},
			want: []told{{state: "claimed", reason: health.ReasonNATSStalled, owner: health.OwnerNATS, items: 4},
				{state: "ready", reason: health.ReasonNATSStalled, owner: health.OwnerNATS, items: 3}},
			says: "JetStream does not answer (stream X: no answer)",
		},
		"halves": {
			make: func(b *bench) workqueue.RunID {
				req := storetest.Request()
				req.Steps[0].MaxAttempts = 1
				run := b.Load(req, 4)
				whole := b.One(run)
				b.Record(settle.Answer{Slice: whole.ID, Endpoint: storetest.Endpoint, Service: "test", Answered: 0,
					Failure: &retryable})
				return run
			},
			want: []told{{state: "scheduled", reason: health.ReasonNext, owner: node,
				items: 4}}, says: "half of a request that failed entirely",
		},
		"handed back": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 4)
				b.One(run)
				testenv.Must(settle.New(b.Store).EndSession(b.Context(), b.Session))(b)
				b.Session = b.Open()
				return run
			},
			want: []told{{state: "scheduled", reason: health.ReasonNext, owner: node, items: 4}}, says: "stopped cleanly",
		},
		"postponed": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 4)
				testenv.NoError(b, settle.New(b.Store).Postpone(b.Context(), b.Session, b.One(run).ID, time.Hour,
					errors.New("nats: permission denied")))
				return run
			},
			want: []told{{state: "scheduled", reason: health.ReasonPostponed, owner: timer, items: 4}},
			says: "could not be published: nats: permission denied",
		},
		"claimed for too long": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 4)
				b.Pass(b.One(run).ID)
				return run
			},
			want: []told{{state: "claimed", reason: health.ReasonClaimLost, owner: node, items: 4}}, says: "did not publish",
		},
		"claimed by a dead node": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 4)
				b.One(run)
				b.Expire(b.Session)
				b.Open()
				return run
			},
			want: []told{{state: "claimed", reason: health.ReasonClaimLost, owner: node, items: 4}},
			says: "its session ended",
		},
		"with a service": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 4)
				b.hand(b.One(run))
				return run
			},
			want: []told{{state: "sent", reason: health.ReasonWorking, owner: service,
				items: 4}}, says: "a service has taken them",
		},
		"answered in part": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 4)
				s := b.One(run)
				b.hand(s)
				part := storetest.Answer(s, storetest.Ordinals(s)[:1]...)
				part.Answered = -1
				b.Record(part)
				return run
			},
			want: []told{{state: "sent", reason: health.ReasonPartly, owner: service,
				items: 3}}, says: "answered 1 item of the same requests",
		},
		"quarantined": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 4)
				s := b.One(run)
				b.hand(s)
				q := deadletter.Quarantined{Reason: "malformed", Run: uuid.UUID(run), Slice: uuid.UUID(s.ID)}
				testenv.NoError(b, deadletter.New(b.Store).Quarantine(b.Context(), q))
				return run
			},
			want: []told{{state: "sent", reason: health.ReasonQuarantine, owner: service, items: 4}}, says: "malformed",
		},
		"overdue": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 4)
				s := b.One(run)
				b.hand(s)
				b.Pass(s.ID)
				return run
			},
			want: []told{{state: "sent", reason: health.ReasonOverdue, owner: node,
				items: 4}}, says: "no reply came before the deadline",
		},
		"lost with a stream": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 4)
				b.Send(b.One(run))
				b.Exec(`INSERT INTO stream_epoch (name, epoch, work_created, reply_created)
					VALUES ('streams', 2, tranche_now(), tranche_now())`)
				return run
			},
			want: []told{{state: "sent", reason: health.ReasonStreamLost, owner: node, items: 4}}, says: "streams",
		},
		"in no plane": {
			make: func(b *bench) workqueue.RunID {
				run := b.Load(storetest.Request(), 4)
				b.Exec(`UPDATE work_block SET ready = B'0'::bit(8192)`)
				return run
			},
			want: []told{{state: "waiting", reason: health.ReasonStray, owner: operator, items: 4}}, says: "tranche doctor",
		},
	} {
		subtest(t, name, func(b *bench) {
			run := c.make(b)
			e := b.wantTold(run, c.want...)
			testenv.Has(b, everything(e), c.says, "the explanation")
			if e.Failed == 0 && strings.Contains(everything(e), "tranche run errors") {
				b.Errorf("nothing has failed, and it tells how to see why: %s", everything(e))
			}
			for _, a := range e.Advice {
				if strings.Count(everything(e), a.Command) > 1 {
					b.Errorf("%q is told twice: %s", a.Command, everything(e))
				}
			}
			b.sameByKey(run, e)
		})
	}
}

func everything(e *health.Explanation) string {
	text := e.Summary
	for i := range e.Groups {
		g := &e.Groups[i]
		text += "\n" + g.Who + "; " + g.Why + "; " + g.Next
		if g.Last != nil {
			text += "; " + g.Last.What
		}
		for _, a := range g.Advice {
			text += "; " + a.Do + "; " + a.Command
		}
	}
	for _, a := range e.Advice {
		text += "; " + a.Command
	}
	return text
}

// sameByKey fails the test when items by themselves are not explained as all together are.
func (b *bench) sameByKey(run workqueue.RunID, e *health.Explanation) {
	b.Helper()
	sums := map[told]int64{}
	for _, key := range storetest.Names(int(e.Items)) {
		one := testenv.Must(health.New(b.Store).ExplainKey(b.Context(), run, key))(b)
		complete(b.T, one.Groups)
		if one.Items != 1 || int64(len(one.Groups)) != one.Missing || len(one.Of) != 1 || one.Summary == "" {
			b.Errorf("item %s is explained as %+v", key, *one)
		}
		for _, g := range tell(one.Groups) {
			g.items = 0
			sums[g]++
		}
	}
	for _, g := range tell(e.Groups) {
		n := g.items
		g.items = 0
		testenv.Same(b, sums[g], n, "items that are %+v one by one", g)
	}
}

// sampled loads a run of which two items are a sample and the rest is held back.
func (b *bench) sampled(n int) workqueue.RunID {
	b.Helper()
	run := b.Load(storetest.Chunked(1), n)
	b.Exec(`UPDATE batchrun SET canary = 2, canary_state = 'sampling' WHERE id = $1`, run)
	b.Exec(`UPDATE work_block SET held = ready & ~(B'11'::bit(8192)), ready = B'11'::bit(8192) WHERE run_id = $1`, run)
	return run
}

func (b *bench) openBreaker() {
	b.Helper()
	b.Exec(`INSERT INTO endpoint_pace (endpoint, breaker, breaker_reason, breaker_since, probe_at)
		VALUES ($1, 'open', '9 of 10 failed', tranche_now(), tranche_now() + interval '1 minute')
		ON CONFLICT (endpoint) DO UPDATE SET breaker = excluded.breaker, breaker_reason = excluded.breaker_reason,
			breaker_since = excluded.breaker_since, probe_at = excluded.probe_at`, storetest.Endpoint)
}

func TestExplainARunThatLoads(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Request()
	req.Session = b.Session
	gate := make(chan error)
	l := b.goLoad(req, gated(heavy(20), 20, gate))
	<-gate
	run := testenv.Must(inspect.New(b.Store).Resolve(t.Context(), inspect.LastRun))(t)
	e := b.wantTold(run)
	if !strings.Contains(e.Summary, "still loading") || e.State != "loading" || !e.Unsealed {
		t.Errorf("the explanation is %+v", *e)
	}
	b.Expire(b.Session)
	if e = b.wantTold(run); !strings.Contains(e.Summary, "interrupted") || !strings.Contains(e.Summary, "tranche serve") {
		t.Errorf("the explanation is %+v", *e)
	}
	gate <- io.ErrUnexpectedEOF
	_, err := l.wait()
	testenv.Fails(t, err, "the load did not fail")
}

func TestExplainWhatIsNotThere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := health.New(b.Store).Explain(t.Context(), workqueue.NewRunID())
	testenv.Is(t, err, workqueue.ErrNotFound, "an unknown run")
	run := b.Load(storetest.Request(), 1)
	_, err = health.New(b.Store).ExplainKey(t.Context(), run, "nobody")
	testenv.Is(t, err, workqueue.ErrNotFound, "an unknown key")
	e, err := health.New(b.Store).ExplainEndpoint(t.Context(), "nobody")
	if err != nil || e.Missing != 0 || len(e.Groups) != 0 || e.Summary == "" {
		t.Errorf("an unknown endpoint: %+v, %v", e, err)
	}
}

func TestExplainAnEndpoint(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.Load(limited(), 10), b.Load(limited(), 20)
	b.Send(b.One(first), b.One(second))
	b.Finish(b.Load(storetest.Request(), 5))
	b.Load(func() start.LoadRequest {
		req := storetest.Request()
		req.Steps[0].Endpoint = "other"
		return req
	}(), 5)
	e := testenv.Must(health.New(b.Store).ExplainEndpoint(t.Context(), storetest.Endpoint))(t)
	complete(t, e.Groups)
	want := []told{{state: "sent", reason: health.ReasonQueued, owner: health.OwnerService, items: 8},
		{state: "ready", reason: health.ReasonStepLimit, owner: health.OwnerService, items: 22}}
	if got := tell(e.Groups); !slices.Equal(got, want) || e.Missing != 30 || e.Runs != 2 || e.Groups[0].Runs != 2 {
		t.Errorf("told %+v of %+v; want %+v", got, *e, want)
	}
	t.Log(e.Summary)
}
