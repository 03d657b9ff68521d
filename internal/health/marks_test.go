package health_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/collector"
	store "github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/start"
)

// letters has so many dead letters of an endpoint wait, the first since an hour.
func (w *world) letters(endpoint string, n int) {
	w.Helper()
	w.exec(`DELETE FROM dead_letter WHERE endpoint = $1`, endpoint)
	w.exec(`INSERT INTO dead_letter (id, msg_id, endpoint, cause, at)
		SELECT gen_random_uuid(), $1 || n, $1, 'gave_up', tranche_now() - interval '1 hour'
		FROM generate_series(1, $2::int) n`,
		endpoint, n)
}

// says notes what someone says of a condition as it is now, or of all of its kind.
func (w *world) says(state store.MarkState, kind store.Kind, subject string, life time.Duration) {
	w.Helper()
	var about []store.Measured // a look that NATS does not answer in time finds no one who does not listen
	testenv.Until(w, soon, fmt.Sprintf("there is a %s of %q", kind, subject), func() bool {
		about = w.report(w.watch).Measure(store.ConditionKey{Kind: string(kind), Subject: subject})
		return len(about) > 0
	})
	_, _, err := store.New(w.store).PutMark(w.Context(), store.NewMark{Kind: string(kind), About: about, State: state,
		Reason: "known", Actor: "ann", For: life})
	testenv.NoError(w, err)
}

// stands wants a condition to be told, with a mark or without one, or to be muted.
func (w *world) stands(kind store.Kind, subject string, want store.MarkState) *health.Report {
	w.Helper()
	var r *health.Report
	var all []store.Condition
	i := -1
	testenv.Until(w, soon, fmt.Sprintf("there is a %s of %s", kind, subject), func() bool { // see says
		r = w.report(w.watch)
		all = slices.Concat(r.Conditions, r.Muted)
		i = slices.IndexFunc(all, func(c store.Condition) bool { return c.Kind == kind && c.Subject == subject })
		return i >= 0
	})
	var state store.MarkState
	if mark := all[i].Mark; mark != nil {
		state = mark.State
	}
	if muted := i >= len(r.Conditions); state != want || muted != (want == store.Muted) {
		w.Errorf("%s of %s is %q, in the list of what is muted: %t; want %q", kind, subject, state, muted, want)
	}
	return r
}

// What is muted does not count until there is more of it, or it is worse, or the time is up.
func TestWhatIsPutAsideComesBack(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.leads()
	w.calms()
	w.letters("a", 3)
	w.letters("b", 2)
	r := w.stands(store.DeadLetters, "a", "")
	if len(r.Kinds) != 1 || r.Kinds[0].Title != "Dead letters: 2 endpoints, 5 letters" {
		t.Errorf("of their kind: %+v", r.Kinds)
	}
	w.says(store.Acknowledged, store.DeadLetters, "a", 0)
	if r := w.stands(store.DeadLetters, "a", store.Acknowledged); r.Status != "warning" || r.Counts.Warning != 2 {
		t.Errorf("when one is taken: %s %+v", r.Status, r.Counts)
	}
	w.says(store.Muted, store.DeadLetters, "a", 0)
	testenv.Same(t, w.stands(store.DeadLetters, "a", store.Muted).Counts.Warning, 1, "warnings when one is muted")
	w.letters("a", 2)
	w.stands(store.DeadLetters, "a", store.Muted)
	w.letters("a", 4)
	w.stands(store.DeadLetters, "a", store.MarkWorse)

	// All of a kind: each comes back when it gets worse itself, and what begins later is news.
	w.says(store.Muted, store.DeadLetters, "", time.Hour)
	w.stands(store.DeadLetters, "a", store.Muted)
	if r := w.stands(store.DeadLetters, "b", store.Muted); r.Status != "ok" || len(r.Conditions) != 0 {
		t.Errorf("all is muted: %s %+v", r.Status, r.Conditions)
	}
	w.letters("c", 1)
	w.exec(`UPDATE dead_letter SET at = tranche_now() WHERE endpoint = 'c'`)
	w.stands(store.DeadLetters, "c", "")
	w.stands(store.DeadLetters, "a", store.Muted)
	w.letters("b", 3)
	w.stands(store.DeadLetters, "b", store.MarkWorse)
	w.stands(store.DeadLetters, "a", store.Muted)
	w.letters("b", 1)
	w.exec(`UPDATE health_ack SET until = tranche_now()`)
	w.stands(store.DeadLetters, "a", "")

	// A breaker that only a collector uses informs; with a run it is worse.
	spec := collector.CollectorSpec{Endpoint: "bills", MinSize: 10}.WithDefaults()
	testenv.Must(collector.New(w.store).ApplyCollector(t.Context(), collector.Text{Name: "c", Spec: spec}, "test"))(t)
	w.exec(`UPDATE endpoint_pace SET breaker = 'open', breaker_reason = 'down', breaker_since = tranche_now(),
		probe_at = tranche_now() + interval '1 hour' WHERE endpoint = 'bills'`)
	w.says(store.Muted, store.BreakerOpen, "bills", 0)
	w.stands(store.BreakerOpen, "bills", store.Muted)
	req := request("bills")
	req.Session = w.session()
	testenv.Must(start.New(w.store).Load(t.Context(), req, nodetest.Items(1)))(t)
	w.stands(store.BreakerOpen, "bills", store.MarkWorse)

	var marks, audited int
	testenv.NoError(t, w.pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM health_ack),
		(SELECT count(*) FROM audit_log WHERE action = 'health_mute' AND actor = 'ann')`,
	).Scan(&marks, &audited))
	if marks != 1 || audited != 3 {
		t.Errorf("%d marks and %d rows in the audit log; want 1, as those whose time is up go, and 3", marks, audited)
	}
	for _, want := range []bool{true, false} {
		found := testenv.Must(store.New(w.store).DropMarks(t.Context(), store.ConditionKey{Kind: "breaker_open"}, "ann"))(t)
		testenv.Same(t, found, want, "undone")
	}
	w.stands(store.BreakerOpen, "bills", "")
}

// What got worse than it was when it was muted, and better, and worse again, is reported all the while, until
// someone puts it muted again or it is over: alerts would tell each turn.
func TestWhatGotWorseStaysSo(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.withNode()
	w.calms()
	w.letters("a", 3)
	w.says(store.Muted, store.DeadLetters, "a", 0)
	for _, n := range []int{4, 3, 2, 5, 1} {
		w.letters("a", n)
		w.stands(store.DeadLetters, "a", store.MarkWorse)
	}
	if again := w.look(health.Config{}); !slices.ContainsFunc(w.report(again).Conditions, func(c store.Condition) bool {
		return c.Subject == "a" && c.Mark != nil && c.Mark.State == store.MarkWorse
	}) {
		t.Error("another server does not know that it got worse")
	}
	w.says(store.Muted, store.DeadLetters, "a", 0)
	w.stands(store.DeadLetters, "a", store.Muted)
	w.letters("a", 2)
	w.stands(store.DeadLetters, "a", store.MarkWorse)
	w.letters("a", 0)
	w.watch.Again()
	w.goes(store.DeadLetters, "a")
	w.letters("a", 1)
	w.stands(store.DeadLetters, "a", store.Muted)
}

// What was said of something that no one has seen for a season is forgotten, and what was said of what is still there,
// or was there lately, is not.
func TestMarksOfLongAgoAreForgotten(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.withNode()
	w.calms()
	for _, endpoint := range []string{"there", "gone", "lately"} {
		w.letters(endpoint, 1)
	}
	w.says(store.Muted, store.DeadLetters, "", 0)
	w.letters("gone", 0)
	w.letters("lately", 0)
	w.exec(`UPDATE health_ack SET seen_at = tranche_now() - interval '91 days' WHERE subject <> 'lately'`)
	w.exec(`UPDATE health_ack SET seen_at = tranche_now() - interval '89 days' WHERE subject = 'lately'`)
	w.stands(store.DeadLetters, "there", store.Muted)
	var left string
	testenv.NoError(t, w.pool.QueryRow(t.Context(), `SELECT string_agg(subject || CASE WHEN seen_at > tranche_now() -
		interval '1 minute' THEN ' seen' ELSE '' END, ', ' ORDER BY subject) FROM health_ack`).Scan(&left))
	testenv.Same(t, left, "lately, there seen", "what was said is left of")
}

// What is muted takes no place in the lists, and what is said of all of a kind leaves it alone.
func TestWhatIsPutAsideHidesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.withNode()
	w.calms()
	for n := range store.DefaultListed {
		w.letters(fmt.Sprintf("e%02d", n), 1)
	}
	w.says(store.Muted, store.DeadLetters, "", 0)
	w.stands(store.DeadLetters, "e00", store.Muted)
	w.letters("more", 1)
	w.stands(store.DeadLetters, "more", "")
	w.says(store.Acknowledged, store.DeadLetters, "", 0)
	w.stands(store.DeadLetters, "more", store.Acknowledged)
	w.stands(store.DeadLetters, "e00", store.Muted)

	// What is critical is news when it begins again.
	w.start(request("bills"), 1)
	w.appears(store.NoListeners, "bills", store.Critical)
	w.says(store.Muted, store.NoListeners, "bills", 0)
	w.stands(store.NoListeners, "bills", store.Muted)
	stop := w.serve("bills", func(item *endpoints.Item[any, any]) { item.Reply(nil) })
	w.heard("bills")
	stop()
	w.start(request("bills"), 1)
	w.appears(store.NoListeners, "bills", store.Critical)
	w.stands(store.NoListeners, "bills", "")
	w.exec(`INSERT INTO endpoint_setting (endpoint, canary, canary_share, canary_since)
		VALUES ('bills', 'bills-v2', 100, tranche_now())`)
	w.heard("bills")
	w.appears(store.NoListeners, "bills-v2", store.Critical)
}

// Who changes what is said does not read what was so before.
func TestAgainWaitsForANewLook(t *testing.T) {
	t.Parallel()
	w := setup(t)
	seldom := testenv.Must(health.New(health.Config{Store: w.store, NC: w.nc, Host: "here", Every: time.Hour}))(t)
	t.Cleanup(seldom.Wait)
	first := w.report(seldom)
	testenv.Same(t, testenv.Must(seldom.Report(t.Context()))(t), first, "it looked again by itself")
	if again := w.report(seldom); again == first {
		t.Error("it did not look again")
	}
}

// Since when something has been so outlives a restart, and is forgotten when it was over while the process that had
// seen it was stalled.
func TestSinceOutlivesPauses(t *testing.T) {
	t.Parallel()
	w := setup(t)
	nc, toNATS := testenv.DialThrough(t, w.ns)
	watch := w.look(health.Config{NC: nc})
	toNATS.Cut()
	first := w.appearsTo(watch, store.NATS, "here", store.Critical)
	again := w.appearsTo(w.look(health.Config{NC: nc}), store.NATS, "here", store.Critical)
	if !again.Since.Equal(first.Since) {
		t.Errorf("after a restart it is so since %s, and was since %s", again.Since, first.Since)
	}
	w.exec(`DELETE FROM health_condition`) // as another does who finds it gone
	if again := w.appearsTo(watch, store.NATS, "here", store.Critical); !again.Since.After(first.Since) {
		t.Errorf("it was over meanwhile, and is told to be so since %s", again.Since)
	}
}

// A connection that was cut a moment ago looks whole. What NATS is asked on it then is not waited for as long as the
// database is.
func TestALookDoesNotWaitForNATS(t *testing.T) {
	t.Parallel()
	w := setup(t)
	nc, toNATS := testenv.DialThrough(t, w.ns)
	watch := w.look(health.Config{NC: nc})
	testenv.Until(t, soon, "it sees the streams while all is well", func() bool {
		return !slices.Contains(w.report(watch).Unseen, store.StreamLimit)
	})
	toNATS.Stall()
	began := time.Now()
	r := w.report(watch)
	if took := time.Since(began); took >= soon/2 {
		t.Errorf("the look took %s", took)
	}
	if !slices.Contains(r.Unseen, store.StreamLimit) {
		t.Errorf("it has seen the streams of a NATS that does not answer, and not %v", r.Unseen)
	}
}
