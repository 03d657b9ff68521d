package health_test

import (
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/forecast"
	store "github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
	sessionstore "github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Since when no service listens is told alike by a server that starts later.
func TestNobodyListens(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.withNode()
	w.start(request("bills"), 20)
	first := w.appears(store.NoListeners, "bills", store.Critical, "No service listens on endpoint bills",
		"1 running run has work for it.", "tranche endpoints show bills")
	again := w.appearsTo(w.look(health.Config{Host: "elsewhere"}), store.NoListeners, "bills", store.Critical)
	if !again.Since.Equal(first.Since) {
		t.Errorf("since %s, and to another server since %s", first.Since, again.Since)
	}
	w.serve("bills", func(item *endpoints.Item[any, any]) { item.Reply(nil) })
	w.heard("bills")
	testenv.Until(t, soon, "no condition is kept that is gone", func() bool {
		w.report(w.watch) // which may have found another one: a slow machine looks like a node that is late
		return testenv.Number(t, w.pool, `SELECT count(*) FROM health_condition`) == 0
	})

	// A function that no node has is missed also, and a service that is busy is not.
	local := request("")
	local.Plan, local.Steps[0].Name = "p", "render"
	local.Steps[0].Kind, local.Steps[0].Endpoint = workqueue.KindLocal, "local:render"
	w.start(local, 1)
	w.appears(store.NoListeners, "local:render", store.Critical, "No node has the function render")
	busy, free := make(chan struct{}, 1), make(chan struct{})
	w.serve("slow", func(item *endpoints.Item[any, any]) {
		select {
		case busy <- struct{}{}:
		default:
		}
		<-free
		item.Reply(nil)
	})
	t.Cleanup(func() { close(free) }) // before the service is stopped
	w.start(request("slow"), 100)
	<-busy
	w.heard("slow") // a busy service may be heard late, and counts as one then
}

// A list of runs says what each stands for, and a name with a slip in it finds the one that was meant.
func TestRunsThatStand(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.withNode()
	w.serve("bills", func(item *endpoints.Item[any, any]) { item.Reply(nil) })
	slip, other := w.start(request("bils"), 5), w.start(request("nobody-at-all"), 5)
	done := w.start(request("bills"), 5)
	w.appears(store.NoListeners, "bils", store.Critical, "did you mean bills?")
	w.appears(store.NoListeners, "nobody-at-all", store.Critical)
	want := map[workqueue.RunID]string{
		slip:  "No service listens on endpoint bils; did you mean bills?",
		other: "No service listens on endpoint nobody-at-all",
		done:  "",
	}
	// A list does not wait long for a look; on a busy machine a later one finds it done, and has heard all services.
	var got map[workqueue.RunID]string
	defer func() { t.Logf("runs stand: %q; want %q", got, want) }()
	testenv.Until(t, soon, "the reason for each run is known", func() bool {
		runs, err := inspect.New(w.store).Runs(t.Context(), inspect.RunFilter{})
		for i := range runs {
			runs[i].Forecast = &forecast.Forecast{P50: new(time.Time)} // of what was answered before
		}
		if err == nil {
			err = w.watch.Stand(t.Context(), runs)
		}
		testenv.NoError(t, err)
		got = map[workqueue.RunID]string{}
		for i := range runs {
			got[runs[i].ID] = ""
			if runs[i].Blocker != nil {
				got[runs[i].ID] = runs[i].Blocker.Text
				if f := runs[i].Forecast; f.P50 != nil || f.WhyNot != got[runs[i].ID] {
					t.Errorf("it stands, and its forecast is %+v", f)
				}
			}
		}
		return maps.Equal(got, want)
	})
}

func TestAnEndpointThatIsDown(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.withNode()
	stop := w.serve("bills", func(item *endpoints.Item[any, any]) { item.Retry("down", "the ledger is unavailable") })
	req := request("bills")
	req.Steps[0].MaxAttempts, req.Steps[0].Chunk, req.Steps[0].InFlight = 50, 5, 20
	w.start(req, 500)
	w.appears(store.BreakerOpen, "bills", store.Warning, "Most requests fail at bills", "tranche endpoints explain")
	stop()
	w.serve("bills", func(item *endpoints.Item[any, any]) { item.Reply(nil) })
	w.goes(store.BreakerOpen, "bills")
}

func TestAServiceThatBecameSlow(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.withNode()
	run := w.start(request("bills"), 20)
	w.exec(`INSERT INTO work_slice (id, run_id, step, block, generation, mask, remaining, state, attempt, cause, endpoint,
			ended_at, took)
		SELECT gen_random_uuid(), $1, 0, 0, 1, B'1'::bit(8192), B'0'::bit(8192), 'recorded', 1, 'ready', 'bills',
			tranche_now() - n * interval '6 min', CASE WHEN n < 5 THEN 39 ELSE 0.001 END
		FROM generate_series(0, 9) n`, run)
	w.exec(`UPDATE work_slice SET ended_at = tranche_now() WHERE took = 39`)
	w.appears(store.ServiceSlow, "bills", store.Warning, "bills became slow: an item takes 39 s, and took 1 ms before",
		"1 running run uses it.", "tranche endpoints show bills")
}

func TestRequestsThatNobodySeesTo(t *testing.T) {
	t.Parallel()
	w := setup(t)
	session := w.session()
	loaded := w.load(session, 10)
	id := w.claim(session, loaded, 1)[0].ID
	testenv.Must(settle.New(w.store).MarkSent(t.Context(), []workqueue.Sent{{ID: id, StreamSeq: 1, StreamsEpoch: 1}}))(t)
	run := loaded.String()
	w.exec(`UPDATE work_slice SET deadline = tranche_now() - interval '20 seconds'`)
	w.appears(store.StaleSlices, run, store.Warning, "1 request past the deadline", "10 items")
	w.exec(`UPDATE work_slice SET deadline = tranche_now() - interval '3 minutes'`)
	w.appears(store.StaleSlices, run, store.Critical)
	lease := testenv.Must(sessionstore.New(w.store).Lead(t.Context(), session, time.Minute))(t)
	// as a leader's sweep does
	testenv.NoError(t, settle.New(w.store).Extend(t.Context(), lease, []workqueue.SliceID{id}))
	w.goes(store.StaleSlices, run)
}

// Requests wait in the stream while those who listen are busy.
func TestRequestsWaitForBusyServices(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.withNode()
	free := make(chan struct{})
	release := sync.OnceFunc(func() { close(free) })
	w.serve("slow", func(item *endpoints.Item[any, any]) { <-free; item.Reply(nil) })
	t.Cleanup(release)
	req := request("slow")
	req.Steps[0].InFlight = 40
	w.start(req, 400)
	testenv.Until(t, soon, "more requests are out than the service takes", func() bool {
		return testenv.Number(t, w.pool, `SELECT count(*) FROM work_slice WHERE state = 'sent'`) > 30
	})
	testenv.Advance(t, w.pool, 10*time.Second)
	watch := w.look(health.Config{Waiting: 10 * time.Second}) // after six times that it is more than a warning
	w.appearsTo(watch, store.OldestWaiting, "slow", store.Warning, "Requests for slow have waited", "--concurrency")
	release()
	w.goesFrom(watch, store.OldestWaiting, "slow")
}

func TestWhatIsPutAside(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for range 3 {
		letter := deadletter.DeadLetter{MsgID: uuid.NewString(), Endpoint: "bills", Cause: "handler_error",
			Body: []byte("{}")}
		testenv.Must(deadletter.New(w.store).Add(t.Context(), letter))(t)
	}
	testenv.NoError(t, deadletter.New(w.store).Quarantine(t.Context(),
		deadletter.Quarantined{Reason: "json", Body: []byte("{")}))
	w.exec(`INSERT INTO api_token (id, name, role, hash, expires_at) VALUES
		(gen_random_uuid(), 'nightly', 'operator', sha256('a'), tranche_now() + interval '3 days'),
		(gen_random_uuid(), 'urgent', 'viewer', sha256('b'), tranche_now() + interval '3 hours'),
		(gen_random_uuid(), 'later', 'viewer', sha256('c'), tranche_now() + interval '30 days'),
		(gen_random_uuid(), 'over', 'viewer', sha256('d'), tranche_now() - interval '1 hour')`)
	w.exec(`INSERT INTO run_event (id, run_id, generation, kind, payload, at)
		VALUES (gen_random_uuid(), gen_random_uuid(), 1, 'completed', '{}', tranche_now() - interval '2 minutes')`)
	letters := w.appears(store.DeadLetters, "bills", store.Warning, "3 dead letters of bills", "tranche dlq")
	strays := w.appears(store.Quarantined, "json", store.Warning, "1 message", "tranche quarantine list")
	if letters.Link != "/dead-letters?endpoint=bills" || strays.Link != "/dead-letters?tab=quarantine" {
		t.Errorf("they lead to %q and %q", letters.Link, strays.Link)
	}
	w.appears(store.TokenExpiring, "nightly", store.Info, "expires in", "operator")
	w.appears(store.TokenExpiring, "urgent", store.Warning)
	w.appears(store.EventsWaiting, "events", store.Warning, "1 event", "completed")

	testenv.Must(deadletter.New(w.store).Drop(t.Context(), deadletter.DeadSelection{All: true}, "test"))(t)
	w.exec(`UPDATE quarantine SET at = tranche_now() - interval '25 hours'`)
	w.exec(`UPDATE api_token SET revoked_at = tranche_now()`)
	w.withNode() // it publishes events, and leads
	w.goes(store.EventsWaiting, "events")
	w.goes(store.LeaderMissing, "leader")
	w.calms()
}
