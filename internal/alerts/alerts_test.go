package alerts_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/alert"
	store "github.com/tranchehq/tranche/workqueue/health"
)

// A condition is reported when it begins, when it gets worse and when it ends, and not again while nothing has changed.
func TestAConditionIsToldOnce(t *testing.T) {
	t.Parallel()
	b, host, d, lease := withRule(t, "when: {health: warning}\n")
	round := func(conditions ...store.Condition) {
		b.says(conditions...)
		for range 3 {
			b.turn(d, lease)
		}
	}
	round(condition("quiet", store.Info)) // not of its severity
	round(condition("e", store.Warning))
	round(condition("e", store.Critical))
	round(condition("e", store.Warning)) // better, which is no news
	round()
	round()
	told := host.told(t)
	var got []string
	for i := range told {
		got = append(got, fmt.Sprintf("%s %s: %s", told[i].Status, told[i].Severity, told[i].Title))
	}
	want := []string{
		"begun warning: No service listens on endpoint e", "worse critical: No service listens on endpoint e",
		"over warning: Over: No service listens on endpoint e",
	}
	testenv.MustSame(t, fmt.Sprint(got), fmt.Sprint(want), "it was reported")
	for _, part := range []string{
		"2 running runs have work", "Since 20", "Waiting on: the service's: e.", "`tranche endpoints show e`",
		"https://tranche.bank.example/endpoint?name=e",
	} {
		testenv.Has(t, told[0].Text, part, "the text")
	}
}

// Two conditions of one kind and subject are reported as one, as the worse of them.
func TestAConditionThatIsSaidTwice(t *testing.T) {
	t.Parallel()
	b, host, d, lease := withRule(t, "when: {health: warning}\n")
	b.says(condition("e", store.Warning), condition("e", store.Critical), condition("e", store.Warning))
	for range 2 {
		b.turn(d, lease)
	}
	told := host.told(t)
	if len(told) != 1 || told[0].BegunAll != 1 || told[0].Severity != store.Critical ||
		told[0].Begun[0].Severity != store.Critical {
		t.Errorf("%+v", told)
	}
}

// What ends before it has held for as long as the rule says is not told at all.
func TestWhatPassesIsNotTold(t *testing.T) {
	t.Parallel()
	b, host, d, lease := withRule(t, "when: {health: warning}\nwait: 1h\n")
	b.says(condition("e", store.Critical))
	b.look(d, lease)
	b.says()
	b.look(d, lease)
	b.says(condition("e", store.Critical))
	b.look(d, lease)
	testenv.MustSame(t, len(b.messages("r")), 0, "messages of a paused rule")
	b.exec(`UPDATE alert_condition SET noted_at = noted_at - interval '1 hour'`)
	b.turn(d, lease)
	testenv.Same(t, host.count(), 1, "how often it was reported")
}

// A rule with a longer wait goes to the next receiver, unless an operator acknowledged the condition in time.
func TestWhatIsAcknowledgedIsNotEscalated(t *testing.T) {
	t.Parallel()
	b, host, d, lease := withRule(t, "when: {health: warning, unacknowledged: true}\nwait: 15m\n")
	c := condition("e", store.Critical)
	b.says(c)
	b.look(d, lease)
	b.exec(`UPDATE alert_condition SET noted_at = noted_at - interval '15 minutes'`)
	taken := c
	taken.Mark = &store.Mark{State: store.Acknowledged}
	b.says(taken)
	b.turn(d, lease)
	testenv.Same(t, host.count(), 0, "how often what an operator took was reported")
	b.says(c)
	b.look(d, lease)
	b.exec(`UPDATE alert_condition SET noted_at = noted_at - interval '15 minutes'`)
	b.turn(d, lease)
	testenv.Same(t, host.count(), 1, "how often it was reported")
	b.says(taken)
	b.look(d, lease)
	b.exec(`UPDATE alert_condition SET ended_at = ended_at - interval '1 hour'`)
	b.turn(d, lease)
	testenv.Same(t, host.count(), 1, "how often it was reported after an operator took it: it is not over")
}

// Two thousand conditions together are one message, whose text is bounded; what changes while it waits is the next one.
func TestManyAreOneMessage(t *testing.T) {
	t.Parallel()
	b, host := withReceiver(t)
	b.exec(`INSERT INTO batchrun (id, name, plan, spec, state, items, sealed_at, hold, hold_detail, held_at, held_by)
		SELECT gen_random_uuid(), 'run ' || n, 'p', '{}', 'running', 10, tranche_now(), 'threshold', repeat('why ', 150),
			tranche_now(), 'x'
		FROM generate_series(1, 2000) n`)
	b.apply("r", "when: {runs: [paused], health: warning}\n"+host.rule())
	d, lease := b.task(), b.lease()
	b.look(d, lease)
	b.look(d, lease)
	b.exec(`UPDATE batchrun SET hold = NULL, held_at = NULL WHERE name <> 'run 7'`)
	b.look(d, lease)
	testenv.MustSame(t, len(b.messages("r")), 1, "messages wait")
	b.sendUntil(d, lease, "it was reported", func() bool { return host.count() == 1 })
	b.look(d, lease)
	b.sendUntil(d, lease, "it was reported that it is over", func() bool { return host.count() == 2 })
	told := host.told(t)
	if told[0].Title != "2000 runs are paused" || told[0].BegunAll != 2000 || len(told[0].Text) > 8000 ||
		len(told[0].Begun) > alert.MaxListed || len(host.bodies[0]) > 64<<10 ||
		!strings.Contains(told[0].Text, " more like these. https://tranche.bank.example/runs\n") {
		t.Errorf("%d bytes: %s\n%s", len(host.bodies[0]), told[0].Title, told[0].Text)
	}
	if told[1].Title != "Over: 1999 runs are paused" || told[1].Holding != 1 {
		t.Errorf("%+v", told[1])
	}
}

// Between two messages of a group there is a time, but not for what is critical.
func TestTheIntervalOfAGroup(t *testing.T) {
	t.Parallel()
	b, host, d, lease := withRule(t, "when: {health: warning}\ninterval: 1h\n")
	all := []store.Condition{}
	round := func(c store.Condition, want int) {
		t.Helper()
		all = append(all, c)
		b.says(all...)
		b.turn(d, lease)
		testenv.Same(t, host.count(), want, "with %s it was reported", c.Subject)
	}
	round(condition("a", store.Warning), 1)
	round(condition("b", store.Warning), 1)
	round(condition("c", store.Critical), 2)
	b.exec(`UPDATE alert_message SET made_at = made_at - interval '1 hour'`)
	round(condition("d", store.Warning), 3)
	if told := host.told(t); told[1].BegunAll != 2 || told[1].Title != "2 endpoints have no listening service (3 in all)" {
		t.Errorf("%+v", told[1])
	}
}

// dying is the store of a leader that is stopped between sending and recording.
type dying struct {
	alerts.Store

	fired atomic.Int32
	die   func()
}

func (s *dying) Delivered(
	ctx context.Context, lease workqueue.Lease, a *alert.Attempt, but string,
) (bool, error) {
	if s.fired.Add(1) == 1 {
		s.die()
	}
	return s.Store.Delivered(ctx, lease, a, but)
}

// A leader is stopped after a message was sent and before that was recorded: the next one sends it again, under the
// same id, and it is recorded once.
func TestALeaderDiesBetweenSendingAndRecording(t *testing.T) {
	t.Parallel()
	b, host := withReceiver(t)
	b.apply("r", "when: {health: warning}\n"+host.rule())
	first := b.lease()
	dies := &dying{Store: b.store}
	dies.die = func() { testenv.Same(t, b.sessions.Resign(t.Context(), first), nil, "the end of the lease") }
	d := b.task(func(_ *alerts.Config, c *alerts.TaskConfig) { c.Store = dies })
	b.says(condition("e", store.Critical))
	b.look(d, first)
	if _, err := d.Send(t.Context(), first); !errors.Is(err, workqueue.ErrNotLeader) || dies.fired.Load() != 1 {
		t.Fatalf("the fault fired %d times, and sending returned %v", dies.fired.Load(), err)
	}
	if got := b.messages("r"); len(got) != 1 || got[0].State != alert.MessageWaiting || host.count() != 1 {
		t.Fatalf("%+v; told %d times", got, host.count())
	}
	next, second := b.task(), b.lease()
	b.look(next, second)
	b.send(next, second) // the first attempt may be in progress still
	testenv.MustSame(t, host.count(), 1, "times it was reported while the first attempt could be in progress")
	b.exec(`UPDATE alert SET next_at = next_at - interval '1 hour'`)
	b.sendUntil(next, second, "it was reported again", func() bool { return host.count() == 2 })
	told := host.told(t)
	if told[0].ID != told[1].ID || string(host.bodies[0]) != string(host.bodies[1]) {
		t.Errorf("it was reported\n%s\nand then\n%s", host.bodies[0], host.bodies[1])
	}
	b.turn(next, second)
	if got := b.messages("r"); len(got) != 1 || got[0].State != alert.MessageDelivered || got[0].Attempts != 2 {
		t.Errorf("%+v", got)
	}
}

// Of two nodes that both believe that they lead one does; and of two leader tasks under one lease one sends.
func TestTwoNodesThatBelieveTheyLead(t *testing.T) {
	t.Parallel()
	b, host := withReceiver(t)
	b.apply("r", "when: {health: warning}\n"+host.rule())
	old := b.lease()
	testenv.NoError(t, b.sessions.Resign(t.Context(), old))
	zombie, now := b.task(), b.lease()
	b.says(condition("e", store.Critical))
	_, err := zombie.Look(t.Context(), old)
	testenv.Is(t, err, workqueue.ErrNotLeader, "a node that does not lead looks")
	leader, twin := b.task(), b.task()
	b.look(leader, now)
	b.look(twin, now)
	if _, err := zombie.Send(t.Context(), old); !errors.Is(err, workqueue.ErrNotLeader) || host.count() != 0 {
		t.Errorf("a node that does not lead tells: %v, %d", err, host.count())
	}
	var both sync.WaitGroup
	for _, d := range []*alerts.LeaderTask{leader, twin} {
		both.Go(func() { b.send(d, now) })
	}
	both.Wait()
	if got := b.messages("r"); host.count() != 1 || len(got) != 1 || got[0].Attempts != 1 {
		t.Errorf("it was reported %d times: %+v", host.count(), got)
	}
}

// While messages wait, a rule may be paused, changed, or deleted.
func TestARuleChangesWhileMessagesWait(t *testing.T) {
	t.Parallel()
	old, host := newReceiver(t, 500), newReceiver(t)
	b := setup(t)
	b.operator("", old.URL, host.URL)
	const when = "when: {health: warning}\n"
	b.apply("r", when+old.rule())
	d, lease := b.task(func(_ *alerts.Config, c *alerts.TaskConfig) { c.FirstRetry = time.Hour }), b.lease()
	b.says(condition("e", store.Warning))
	b.look(d, lease)
	b.sendUntil(d, lease, "it was tried", func() bool { return old.count() == 1 })
	testenv.Must(b.store.Set(t.Context(), "r", workqueue.DocumentPaused, "ann"))(t)
	b.says(condition("e", store.Warning), condition("f", store.Warning))
	b.turn(d, lease)
	if got := b.messages("r"); len(got) != 1 || old.count() != 1 {
		t.Fatalf("while it is paused: %+v; tried %d times", got, old.count())
	}
	b.apply("r", when+host.rule()) // it stays paused
	testenv.MustSame(t, testenv.Must(b.store.Set(t.Context(), "r", workqueue.DocumentActive, "ann"))(t).Waiting, 1,
		"messages that wait for an active rule")
	b.sendUntil(d, lease, "the new receiver was notified", func() bool { return host.count() == 1 })
	b.look(d, lease)
	b.sendUntil(d, lease, "what came in the pause was reported", func() bool { return host.count() == 2 })
	told := host.told(t)
	if told[0].Begun[0].Subject != "e" || told[1].Begun[0].Subject != "f" || old.count() != 1 {
		t.Errorf("%+v; the old receiver was tried %d times", told, old.count())
	}
	// What the rule does not speak of any more is not over.
	b.apply("r", "when: {health: critical}\n"+host.rule())
	b.turn(d, lease)
	testenv.Same(t, host.count(), 2, "it was reported %+v", host.told(t)[2:])
	b.says(condition("e", store.Critical))
	b.look(d, lease)
	testenv.MustSame(t, testenv.Must(b.store.Set(t.Context(), "r", workqueue.DocumentDeleted, "ann"))(t).Waiting, 1,
		"messages that wait for a deleted rule")
	b.turn(d, lease)
	if got := b.messages("r"); host.count() != 2 || got[0].State != alert.MessageDropped {
		t.Errorf("it was reported %d times; %+v", host.count(), got[0])
	}
}

// In quiet hours only what is critical is reported; the rest at their end, if it holds still.
func TestQuietHours(t *testing.T) {
	t.Parallel()
	b, host := withReceiver(t)
	b.apply("r", "when: {health: warning}\nquiet: {from: \"22:00\", to: \"07:00\", zone: Europe/Berlin}\n"+host.rule())
	clock := &clocked{Store: b.store}
	d, lease := b.task(func(_ *alerts.Config, c *alerts.TaskConfig) { c.Store = clock }), b.lease()
	at := func(now string, want int, conditions ...store.Condition) {
		t.Helper()
		clock.now, _ = time.Parse(time.RFC3339, now)
		b.says(conditions...)
		b.turn(d, lease)
		testenv.Same(t, host.count(), want, "at %s it was reported", now)
	}
	warning, passing := condition("w", store.Warning), condition("p", store.Warning)
	at("2031-01-05T20:59:00Z", 0)
	at("2031-01-05T21:00:00Z", 0, warning, passing) // ten in Berlin
	at("2031-01-06T02:00:00Z", 1, warning, passing, condition("c", store.Critical))
	at("2031-01-06T03:00:00Z", 2, warning) // the critical one is over
	at("2031-01-06T05:59:00Z", 2, warning)
	at("2031-01-06T06:00:00Z", 3, warning)
	told := host.told(t)
	if told[0].BegunAll != 1 || told[0].Begun[0].Subject != "c" || told[1].Status != "over" || told[2].BegunAll != 1 ||
		told[2].Begun[0].Subject != "w" {
		t.Errorf("%+v", told)
	}
}

type clocked struct {
	alerts.Store

	now time.Time
}

func (c *clocked) Now(context.Context) (time.Time, error) { return c.now, nil }

// That a receiver cannot be told is told by other alerts, and not by its own: that would have one more thing to tell.
func TestAnAlertDoesNotTellOfItself(t *testing.T) {
	t.Parallel()
	b, host := withReceiver(t)
	b.apply("failing", "when: {health: info}\n"+host.rule())
	b.apply("other", "when: {health: info}\n"+host.rule())
	d, lease := b.task(), b.lease()
	failing := condition("x", store.Warning)
	failing.Kind, failing.Subject = store.AlertFailing, "failing"
	b.says(failing)
	b.turn(d, lease)
	if told := host.told(t); len(told) != 1 || told[0].Alert != "other" {
		t.Errorf("%+v", told)
	}
}

// What does not stand in a list that was cut is not over.
func TestWhatWasCutIsNotOver(t *testing.T) {
	t.Parallel()
	b, host, d, lease := withRule(t, "when: {health: warning}\n")
	b.says(condition("e", store.Warning), condition("f", store.Warning))
	b.turn(d, lease)
	b.says(condition("f", store.Warning))
	for i, cut := range [][]store.Kind{{store.NoListeners}, nil} {
		b.mu.Lock()
		b.report.Cut = cut
		b.mu.Unlock()
		b.turn(d, lease)
		testenv.MustSame(t, host.count(), i+1, "with %q cut it was reported %+v", cut, host.told(t))
	}
}

// What a look could not see is not over: what another server said of itself, and all of it without PostgreSQL.
func TestWhatWasNotSeenIsNotOver(t *testing.T) {
	t.Parallel()
	b, host, d, lease := withRule(t, "when: {health: warning}\n")
	b.exec(`INSERT INTO health_condition (kind, subject, since) VALUES ('no_listeners', 'e', tranche_now())`)
	b.says(condition("e", store.Warning))
	b.turn(d, lease)
	b.says()
	b.mu.Lock()
	b.report.Unseen = []store.Kind{store.NoListeners} // NATS is unavailable
	b.mu.Unlock()
	b.look(d, lease)
	b.mu.Lock()
	b.report.Unseen, b.report.Blind = nil, true
	b.mu.Unlock()
	b.turn(d, lease)
	testenv.MustSame(t, host.count(), 1, "%+v", host.told(t))
	b.mu.Lock()
	b.report.Blind = false
	b.mu.Unlock()
	b.turn(d, lease)
	testenv.Same(t, host.count(), 2, "its end was not told")
}

// Of a message that is abandoned only what it told is told again: not what others of its group told. What was told
// before to be less bad is told to be worse again, and its end is reported.
func TestOnlyWhatWasGivenUpIsToldAnew(t *testing.T) {
	t.Parallel()
	b, host, d, lease := withRule(t, "when: {health: warning}\n", 204, 410)
	a, worse, better := condition("a", store.Warning), condition("w", store.Warning), condition("e", store.Warning)
	round := func(conditions ...store.Condition) {
		b.says(conditions...)
		b.turn(d, lease)
	}
	round(a, worse, better)
	worse.Severity, better.Severity = store.Critical, store.Critical
	passing, fresh := condition("p", store.Warning), condition("n", store.Warning)
	b.says(a, worse, better, passing, fresh)
	b.look(d, lease)
	b.says(a, worse, fresh) // two end while the message about them waits
	b.look(d, lease)
	b.send(d, lease)
	if got := b.messages("r"); got[0].State != alert.MessageGivenUp && got[1].State != alert.MessageGivenUp {
		t.Errorf("%+v; want one that is abandoned", got)
	}
	round(a, worse, fresh)
	round(a, worse, fresh)
	var got []string
	for _, m := range host.told(t) {
		for _, item := range m.Begun {
			got = append(got, m.Status+" "+item.Subject)
		}
		for _, item := range m.Over {
			got = append(got, "over "+item.Subject)
		}
		got = append(got, "")
	}
	want := []string{"begun a", "begun e", "begun w", "", "begun e", "begun w", "begun n", "begun p", "",
		"begun n", "begun w", "over e", ""}
	slices.Sort(got[:3])
	if len(got) == len(want) {
		slices.Sort(got[4:8])
		slices.Sort(got[9:11])
		slices.Sort(want[4:8])
	}
	testenv.SameList(t, got, want, "it was reported")
}

// A change of a rule takes no end away: neither one that waits to be told, nor one that comes at the same time.
func TestAnEndOutlivesAChangeOfItsRule(t *testing.T) {
	t.Parallel()
	b, host := withReceiver(t)
	rule := "when: {health: warning}\nwait: 1h\n" + host.rule()
	b.apply("r", rule)
	d, lease := b.task(), b.lease()
	b.says(condition("a", store.Warning), condition("b", store.Warning))
	b.look(d, lease)
	b.exec(`UPDATE alert_condition SET noted_at = noted_at - interval '1 hour'`)
	b.turn(d, lease)
	b.says(condition("b", store.Warning))
	b.look(d, lease) // it waits that a stays away
	b.says()
	b.apply("r", rule+"interval: 1s\n")
	b.look(d, lease)
	b.exec(`UPDATE alert_condition SET ended_at = ended_at - interval '1 hour'`)
	b.exec(`UPDATE alert_message SET made_at = made_at - interval '1 hour'`)
	b.turn(d, lease)
	if told := host.told(t); len(told) != 2 || told[1].OverAll != 2 {
		t.Errorf("%+v", told)
	}
}

// What comes of an attempt at a receiver that the rule has no more says nothing of its new one.
func TestAReceiverIsChangedDuringAnAttempt(t *testing.T) {
	t.Parallel()
	asked, release := make(chan struct{}, 1), make(chan struct{})
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-release
		w.WriteHeader(http.StatusGone)
	}))
	t.Cleanup(old.Close)
	host := newReceiver(t)
	b := setup(t)
	b.operator("", old.URL, host.URL)
	const when = "when: {health: warning}\n"
	b.apply("r", fmt.Sprintf(when+"to: {webhook: {url: %q, secret: hooks}}\n", old.URL))
	d := b.task(func(c *alerts.Config, w *alerts.TaskConfig) { c.Timeout, w.FirstRetry = time.Minute, time.Hour })
	lease := b.lease()
	b.says(condition("e", store.Warning))
	b.look(d, lease)
	sent := testenv.Begin(t, func() (time.Duration, error) { return d.Send(t.Context(), lease) })
	<-asked
	b.apply("r", when+host.rule())
	close(release)
	sent()
	b.send(d, lease)
	got, rule := b.messages("r"), b.alert("r")
	if host.count() != 1 || len(got) != 1 || got[0].State != alert.MessageDelivered || rule.Failures != 0 {
		t.Errorf("the new receiver was notified %d times; %+v; %+v", host.count(), got, rule)
	}
}

// Old messages are deleted, also those of a rule that is paused or deleted; what waits stays.
func TestOldMessagesAreDeleted(t *testing.T) {
	t.Parallel()
	b, host := withReceiver(t)
	d, lease := b.task(), b.lease()
	b.says(condition("e", store.Warning))
	for _, name := range []string{"paused", "deleted"} {
		b.apply(name, "when: {health: warning}\n"+host.rule())
	}
	b.turn(d, lease)
	b.says(condition("e", store.Critical))
	b.look(d, lease)
	testenv.Must(b.store.Set(t.Context(), "paused", workqueue.DocumentPaused, "ann"))(t)
	testenv.Must(b.store.Set(t.Context(), "deleted", workqueue.DocumentDeleted, "ann"))(t)
	b.exec(`UPDATE alert_message SET made_at = made_at - interval '31 days', ended_at = ended_at - interval '31 days'`)
	b.look(b.task(), lease)
	if got := b.messages("paused"); len(got) != 1 || got[0].State != alert.MessageWaiting {
		t.Errorf("%+v", got)
	}
	testenv.Same(t, len(b.messages("deleted")), 0, "messages of a deleted rule")
}

// While someone holds a rule, others are notified.
func TestARuleThatIsHeldKeepsNoOtherWaiting(t *testing.T) {
	t.Parallel()
	b, host := withReceiver(t)
	b.apply("held", "when: {health: warning}\n"+host.rule())
	b.apply("other", "when: {health: warning}\n"+host.rule())
	d, lease := b.task(), b.lease()
	b.says(condition("e", store.Warning))
	b.look(d, lease)
	tx := testenv.Must(b.pool.Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(context.Background()) }()
	testenv.Must(tx.Exec(t.Context(), `SELECT FROM alert WHERE name = 'held' FOR UPDATE`))(t)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	testenv.Must(d.Send(ctx, lease))(t)
	if told := host.told(t); len(told) != 1 || told[0].Alert != "other" {
		t.Errorf("%+v", told)
	}
	testenv.NoError(t, tx.Rollback(t.Context()))
	b.send(d, lease)
	testenv.Same(t, host.count(), 2, "how often it was reported")
}
