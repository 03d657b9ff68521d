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
	slow, once, few := storetest.Request(), storetest.Request(), storetest.Request()
	slow.Steps[0].RetryBackoff, once.Steps[0].MaxAttempts, few.MaxFailed = time.Hour, 1, "1"
	for name, c := range map[string]struct {
		before func(b *bench)
		load   start.LoadRequest // without a plan: storetest.Request()
		items  int
		then   func(b *bench, run workqueue.RunID)
		want   []told
		says   string // in the reason, the summary or an advice
	}{
		"next": {
			items: 10,
			want:  []told{{state: "ready", reason: health.ReasonNext, owner: node, items: 10}}, says: "node test (pid 1)",
		},
		"done": {
			items: 10, then: func(b *bench, run workqueue.RunID) { b.Finish(run) },
			want: []told{}, says: "all 10 items are done",
		},
		"some failed": {
			load: storetest.Chunked(10), items: 10, then: func(b *bench, run workqueue.RunID) {
				b.Record(storetest.Faulty(b.One(run), final))
			},
			want: []told{}, says: "--failed",
		},
		"cancelled": {
			items: 10, then: func(b *bench, run workqueue.RunID) {
				b.Send(b.One(run))
				testenv.Must(control.New(b.Store).Cancel(b.Context(), control.Control{Run: run, Actor: "bob"}))(b)
			},
			want: []told{{state: "waiting", reason: health.ReasonCancelled, owner: nobody, items: 10}},
			says: "--state cancelled",
		},
		"paused": {
			load: limited(), items: 10, then: func(b *bench, run workqueue.RunID) {
				b.Send(b.One(run))
				b.PauseRun(run)
			},
			want: []told{{state: "ready", reason: health.RunHeld, owner: operator, items: 6},
				{state: "sent", reason: health.ReasonQueued, owner: service, items: 4}},
			says: "tranche run resume",
		},
		"threshold": {
			load: few, items: 10, then: func(b *bench, run workqueue.RunID) {
				b.Exec(`UPDATE batchrun SET failed_limit = 1 WHERE id = $1`, run)
				b.Record(storetest.Faulty(b.One(run), final))
				if held, err := control.New(b.Store).CheckThreshold(b.Context(), run); err != nil || !held {
					b.Fatal(held, err)
				}
			},
			want: []told{{state: "ready", reason: health.RunOverLimit, owner: operator,
				items: 6}}, says: "4 of 10 items failed; the limit is 1",
		},
		"fail_fast": {
			load: failFast(4, 4, 8), items: 10, then: func(b *bench, run workqueue.RunID) {
				b.Record(storetest.Faulty(b.One(run), final))
			},
			want: []told{{state: "ready", reason: health.RunFailFast, owner: operator, items: 6}},
			says: "4 of the first 4 outcomes of step only failed with BAD",
		},
		"gate": {
			load:  storetest.Planned(storetest.Need("compose"), gate(workqueue.ApproveOther, storetest.Need("send", 0))),
			items: 10, then: func(b *bench, run workqueue.RunID) {
				b.RecordStep(run, 0)
				b.checkBarriers(run)
			},
			want: []told{{state: "ready", reason: health.RunGate, owner: operator, items: 10}},
			says: "--step send",
		},
		"sampling": {
			load: storetest.Chunked(1), items: 8, then: (*bench).sample,
			want: []told{{state: "held", reason: health.ReasonSampling, owner: node, items: 6},
				{state: "ready", reason: health.ReasonNext, owner: node, items: 2}},
			says: "waits for approval",
		},
		"canary waits": {
			load: storetest.Chunked(1), items: 8, then: func(b *bench, run workqueue.RunID) {
				b.sample(run)
				b.Finish(run)
				testenv.Must(control.New(b.Store).CheckCanary(b.Context(), run))(b)
			},
			want: []told{{state: "held", reason: health.RunApproval, owner: operator, items: 6}}, says: "tranche run approve",
		},
		"no node": {
			items: 10, then: func(b *bench, run workqueue.RunID) {
				b.One(run)
				b.Expire(b.Session)
			},
			want: []told{{state: "ready", reason: health.ReasonNoNode, owner: operator, items: 6},
				{state: "claimed", reason: health.ReasonClaimLost, owner: operator, items: 4}},
			says: "tranche serve",
		},
		"step limit": {
			load: limited(), items: 10, then: func(b *bench, run workqueue.RunID) {
				b.One(run)
			},
			want: []told{{state: "ready", reason: health.ReasonStepLimit, owner: service, items: 6},
				{state: "claimed", reason: health.ReasonPublishing, owner: node, items: 4}},
			says: "--in-flight N",
		},
		"budget": {
			items: 10, before: func(b *bench) {
				b.Exec(`INSERT INTO endpoint_setting (endpoint, max_in_flight, canary, canary_share, canary_has_listeners,
					canary_since) VALUES ($1, 1, 'canary', 99.9999, true, tranche_now())`, storetest.Endpoint)
				b.One(b.Load(storetest.Request(), 4)) // goes to the canary
			},
			want: []told{{state: "ready", reason: health.ReasonBudget, owner: service, items: 10}}, says: "1 of 1 are in flight",
		},
		"quota of a namespace": {
			items: 10, before: func(b *bench) {
				b.Exec(`UPDATE namespace SET max_in_flight = 1`)
				b.One(b.Load(storetest.Request(), 4))
			},
			want: []told{{state: "ready", reason: health.ReasonQuota, owner: service, items: 10}},
			says: "1 of 1 are in flight, which is the quota of namespace default",
		},
		"behind priority": {
			items: 10, before: func(b *bench) {
				b.Exec(`INSERT INTO endpoint_setting (endpoint, max_in_flight) VALUES ($1, 1)`, storetest.Endpoint)
				urgent := storetest.Request()
				urgent.Priority = 7
				b.One(b.Load(urgent, 10))
			},
			want: []told{{state: "ready", reason: health.ReasonPriority, owner: service, items: 10}}, says: "--priority 7",
		},
		"adaptive limit": {
			before: func(b *bench) {
				b.Exec(`INSERT INTO endpoint_pace (endpoint, in_flight) VALUES ($1, 1)`, storetest.Endpoint)
				b.Exec(`INSERT INTO endpoint_change (endpoint, what, reason) VALUES ($1, 'in_flight', 'it got slow')`,
					storetest.Endpoint)
			},
			items: 10, then: func(b *bench, run workqueue.RunID) {
				b.Exec(`UPDATE run_step SET in_flight_auto = true`)
				b.One(run)
			},
			want: []told{{state: "ready", reason: health.ReasonAdaptive, owner: service, items: 6},
				{state: "claimed", reason: health.ReasonPublishing, owner: node, items: 4}},
			says: "it got slow",
		},
		"share": {
			items: 20, then: func(b *bench, run workqueue.RunID) {
				b.Exec(`INSERT INTO endpoint_setting (endpoint, max_in_flight) VALUES ($1, 4)`, storetest.Endpoint)
				b.One(run)
				b.One(run)
				b.Load(storetest.Request(), 20)
			},
			want: []told{{state: "ready", reason: health.ReasonShare, owner: service, items: 12},
				{state: "claimed", reason: health.ReasonPublishing, owner: node, items: 8}},
			says: "the run's share of the 4 that endpoint statement takes: another run has work",
		},
		"rate": {
			items: 10, then: func(b *bench, _ workqueue.RunID) {
				b.Exec(`UPDATE run_step SET rate = 2, tokens = -100, tokens_at = tranche_now()`)
			},
			want: []told{{state: "ready", reason: health.ReasonRate, owner: timer, items: 10}}, says: "--rate N",
		},
		"breaker": {
			before: (*bench).openBreaker, items: 10,
			want: []told{{state: "ready", reason: health.BreakerOpen, owner: timer, items: 10}}, says: "9 of 10 failed",
		},
		"probe due": {
			items: 10, before: func(b *bench) {
				b.openBreaker()
				b.Exec(`UPDATE endpoint_pace SET probe_at = tranche_now(), endpoint = 'canary'`)
				b.Exec(`INSERT INTO endpoint_setting (endpoint, canary, canary_share, canary_since)
					VALUES ($1, 'canary', 100, tranche_now())`, storetest.Endpoint)
			},
			want: []told{{state: "ready", reason: health.BreakerOpen, owner: node,
				items: 10}}, says: "sends one item as a probe",
		},
		"probe out": {
			items: 10, then: func(b *bench, run workqueue.RunID) {
				probe := b.One(run)
				b.Send(probe)
				b.openBreaker()
				b.Exec(`UPDATE endpoint_pace SET probe_slice = $1`, probe.ID)
			},
			want: []told{{state: "ready", reason: health.ReasonProbing, owner: service, items: 6},
				{state: "sent", reason: health.ReasonQueued, owner: service, items: 4}},
			says: "a probe is in flight",
		},
		"backoff": {
			load: slow, items: 4, then: func(b *bench, run workqueue.RunID) {
				b.Record(storetest.Faulty(b.One(run), retryable))
			},
			want: []told{{state: "scheduled", reason: health.ReasonBackoff, owner: timer, items: 4}}, says: "BUSY: come again",
		},
		"backoff for two reasons": {
			load: slow, items: 7, then: func(b *bench, run workqueue.RunID) {
				b.Record(storetest.Faulty(b.One(run), retryable))
				b.Record(settle.Answer{Slice: b.One(run).ID, Endpoint: storetest.Endpoint, Service: "test", Failure: &retryable})
			},
			want: []told{{state: "scheduled", reason: health.ReasonBackoff, owner: timer, items: 7}},
			says: "(4 items); the service failed their entire request; that was failure 1 of at most 3 (3 items)",
		},
		"no NATS": {
			items: 7, then: func(b *bench, run workqueue.RunID) {
				b.One(run)
				rests := testenv.Must(session.New(b.Store).Heartbeat(b.Context(), b.Session, time.Minute,
					map[string]bool{"nats": false}))(b)
				testenv.Same(b, rests, false, "during a run the installation does not rest")
			},
			want: []told{{state: "claimed", reason: health.ReasonNATSUnreachable, owner: node, items: 4},
				{state: "ready", reason: health.ReasonNATSUnreachable, owner: node, items: 3}},
			says: "node test (pid 1) cannot reach NATS, so it sends nothing",
		},
		"no quorum": {
			items: 7, then: func(b *bench, run workqueue.RunID) {
				b.One(run)
				testenv.Must(session.New(b.Store).Heartbeat(b.Context(), b.Session, time.Minute,
					map[string]any{"nats": true, "stalled": map[string]any{"seconds": 60, "why": "stream X: no answer"}}))(b)
			},
			want: []told{{state: "claimed", reason: health.ReasonNATSStalled, owner: health.OwnerNATS, items: 4},
				{state: "ready", reason: health.ReasonNATSStalled, owner: health.OwnerNATS, items: 3}},
			says: "JetStream does not answer (stream X: no answer)",
		},
		"halves": {
			load: once, items: 4, then: func(b *bench, run workqueue.RunID) {
				b.Record(settle.Answer{Slice: b.One(run).ID, Endpoint: storetest.Endpoint, Service: "test", Failure: &retryable})
			},
			want: []told{{state: "scheduled", reason: health.ReasonNext, owner: node,
				items: 4}}, says: "half of a request that failed entirely",
		},
		"handed back": {
			items: 4, then: func(b *bench, run workqueue.RunID) {
				b.One(run)
				testenv.Must(settle.New(b.Store).EndSession(b.Context(), b.Session))(b)
				b.Session = b.Open()
			},
			want: []told{{state: "scheduled", reason: health.ReasonNext, owner: node, items: 4}}, says: "stopped cleanly",
		},
		"postponed": {
			items: 4, then: func(b *bench, run workqueue.RunID) {
				testenv.NoError(b, settle.New(b.Store).Postpone(b.Context(), b.Session, b.One(run).ID, time.Hour,
					errors.New("nats: permission denied")))
			},
			want: []told{{state: "scheduled", reason: health.ReasonPostponed, owner: timer, items: 4}},
			says: "could not be published: nats: permission denied",
		},
		"claimed for too long": {
			items: 4, then: func(b *bench, run workqueue.RunID) {
				b.Pass(b.One(run).ID)
			},
			want: []told{{state: "claimed", reason: health.ReasonClaimLost, owner: node, items: 4}}, says: "did not publish",
		},
		"claimed by a dead node": {
			items: 4, then: func(b *bench, run workqueue.RunID) {
				b.One(run)
				b.Expire(b.Session)
				b.Open()
			},
			want: []told{{state: "claimed", reason: health.ReasonClaimLost, owner: node, items: 4}},
			says: "its session ended",
		},
		"with a service": {
			items: 4, then: func(b *bench, run workqueue.RunID) {
				b.hand(b.One(run))
			},
			want: []told{{state: "sent", reason: health.ReasonWorking, owner: service,
				items: 4}}, says: "a service has taken them",
		},
		"answered in part": {
			items: 4, then: func(b *bench, run workqueue.RunID) {
				s := b.One(run)
				b.hand(s)
				part := storetest.Answer(s, storetest.Ordinals(s)[:1]...)
				part.Answered = -1
				b.Record(part)
			},
			want: []told{{state: "sent", reason: health.ReasonPartly, owner: service,
				items: 3}}, says: "answered 1 item of the same requests",
		},
		"quarantined": {
			items: 4, then: func(b *bench, run workqueue.RunID) {
				s := b.One(run)
				b.hand(s)
				q := deadletter.Quarantined{Reason: "malformed", Run: uuid.UUID(run), Slice: uuid.UUID(s.ID)}
				testenv.NoError(b, deadletter.New(b.Store).Quarantine(b.Context(), q))
			},
			want: []told{{state: "sent", reason: health.ReasonQuarantine, owner: service, items: 4}}, says: "malformed",
		},
		"overdue": {
			items: 4, then: func(b *bench, run workqueue.RunID) {
				s := b.One(run)
				b.hand(s)
				b.Pass(s.ID)
			},
			want: []told{{state: "sent", reason: health.ReasonOverdue, owner: node,
				items: 4}}, says: "no reply came before the deadline",
		},
		"lost with a stream": {
			items: 4, then: func(b *bench, run workqueue.RunID) {
				b.Send(b.One(run))
				b.Exec(`INSERT INTO stream_epoch (name, epoch, work_created, reply_created)
					VALUES ('streams', 2, tranche_now(), tranche_now())`)
			},
			want: []told{{state: "sent", reason: health.ReasonStreamLost, owner: node, items: 4}}, says: "streams",
		},
		"in no plane": {
			items: 4, then: func(b *bench, _ workqueue.RunID) {
				b.Exec(`UPDATE work_block SET ready = B'0'::bit(8192)`)
			},
			want: []told{{state: "waiting", reason: health.ReasonStray, owner: operator, items: 4}}, says: "tranche doctor",
		},
	} {
		subtest(t, name, func(b *bench) {
			if c.before != nil {
				c.before(b)
			}
			if c.load.Plan == "" {
				c.load = storetest.Request()
			}
			run := b.Load(c.load, c.items)
			if c.then != nil {
				c.then(b, run)
			}
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

// sample makes two items of a run its sample, and holds the rest back.
func (b *bench) sample(run workqueue.RunID) {
	b.Helper()
	b.Exec(`UPDATE batchrun SET canary = 2, canary_state = 'sampling' WHERE id = $1`, run)
	b.Exec(`UPDATE work_block SET held = ready & ~(B'11'::bit(8192)), ready = B'11'::bit(8192) WHERE run_id = $1`, run)
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
	testenv.NoError(b, <-gate)
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
	other := storetest.Request()
	other.Steps[0].Endpoint = "other"
	b.Load(other, 5)
	e := testenv.Must(health.New(b.Store).ExplainEndpoint(t.Context(), storetest.Endpoint))(t)
	complete(t, e.Groups)
	want := []told{{state: "sent", reason: health.ReasonQueued, owner: health.OwnerService, items: 8},
		{state: "ready", reason: health.ReasonStepLimit, owner: health.OwnerService, items: 22}}
	if got := tell(e.Groups); !slices.Equal(got, want) || e.Missing != 30 || e.Runs != 2 || e.Groups[0].Runs != 2 {
		t.Errorf("told %+v of %+v; want %+v", got, *e, want)
	}
}
