package health_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	store "github.com/tranchehq/tranche/workqueue/health"
	sessionstore "github.com/tranchehq/tranche/workqueue/session"
)

func TestNodesThatAreSilent(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.appears(store.LeaderMissing, "leader", store.Critical, "No node leads", "tranche serve")
	session := w.session()
	w.claim(session, w.load(session, 20), 2)
	testenv.Must(sessionstore.New(w.store).Lead(t.Context(), session, time.Hour))(t)
	w.goes(store.LeaderMissing, "leader")

	w.exec(`UPDATE node_session
		SET heartbeat_at = tranche_now() - interval '4 min', expires_at = tranche_now() + interval '1 min'`)
	w.appears(store.NodeLate, session.String(), store.Warning, "node there (pid 7)", "2 requests with 20 items")
	w.exec(`UPDATE node_session SET expires_at = tranche_now() - interval '10 seconds'`)
	w.exec(`UPDATE leader SET expires_at = tranche_now() - interval '10 seconds'`)
	w.appears(store.NodeDead, session.String(), store.Critical, "Died: node there", "2 requests with 20 items")
	w.goes(store.NodeLate, session.String())
	c := w.appears(store.LeaderMissing, "leader", store.Critical, "The lease expired", "no node is alive")
	if age := w.report(w.watch).At.Sub(c.Since); age < 10*time.Second || age > soon {
		t.Errorf("no one leads for %s", age)
	}

	// Another node takes over: what the dead one held is free, and that it died is still to be told.
	w.withNode()
	w.goes(store.LeaderMissing, "leader")
	w.appears(store.NodeDead, session.String(), store.Warning, "Other nodes took over")
	w.session() // on the same host
	w.goes(store.NodeDead, session.String())
}

// A JetStream without a quorum is one condition, not one of each node, and no one is said not to listen.
func TestJetStreamWithoutAQuorum(t *testing.T) {
	t.Parallel()
	w := setup(t)
	one, other := w.session(), w.session()
	// However slow this machine is, they have just begun: it is not certain what they say.
	w.exec(`UPDATE node_session SET started_at = tranche_now() + interval '1 hour'`)
	beat := func(session workqueue.SessionID, stalled any) {
		t.Helper()
		testenv.Must(sessionstore.New(w.store).Heartbeat(t.Context(), session, time.Hour,
			map[string]any{"nats": true, "stalled": stalled}))(t)
	}
	w.load(workqueue.SessionID{}, 20)
	unheard := w.appears(store.NoListeners, "bills", store.Critical)
	stalled := map[string]any{"seconds": 60, "why": "stream TRANCHE_WORK: no answer"}
	beat(one, stalled)
	w.appears(store.NoListeners, "bills", store.Critical) // the other one says nothing of it
	beat(other, stalled)
	c := w.appears(store.NATS, "JetStream", store.Critical, "JetStream does not answer", "TRANCHE_WORK: no answer",
		"half of the NATS servers")
	if age := w.report(w.watch).At.Sub(c.Since); age < time.Minute || age > time.Minute+soon {
		t.Errorf("it does not answer for %s", age)
	}
	w.goes(store.NoListeners, "bills")
	beat(other, nil)
	w.goes(store.NATS, "JetStream")
	if again := w.appears(store.NoListeners, "bills", store.Critical); !again.Since.Equal(unheard.Since) {
		t.Errorf("no service listens since %s, and before JetStream was silent it was since %s", again.Since, unheard.Since)
	}
	// A node that starts again knows of the silence only since then, and says nothing of it at first.
	for _, session := range []workqueue.SessionID{one, other} {
		beat(session, map[string]any{"seconds": 1, "why": "stream TRANCHE_WORK: no answer"})
	}
	if again := w.appears(store.NATS, "JetStream", store.Critical); !again.Since.Equal(c.Since) {
		t.Errorf("silent since %s, and after a restart since %s", c.Since, again.Since)
	}
	beat(other, nil)
	w.exec(`UPDATE node_session SET started_at = tranche_now() - interval '1 minute'`)
	w.goes(store.NATS, "JetStream")
	beat(other, stalled)
	if again := w.appears(store.NATS, "JetStream", store.Critical); again.Since.Equal(c.Since) {
		t.Error("what is over is not forgotten")
	}
}

func TestANodeThatCannotReachNATS(t *testing.T) {
	t.Parallel()
	w := setup(t)
	session := w.session()
	beat := func(nats bool) {
		t.Helper()
		rests := testenv.Must(sessionstore.New(w.store).Heartbeat(t.Context(), session, time.Hour,
			map[string]any{"nats": nats}))(t)
		testenv.Same(t, rests, true, "without a run the installation rests")
	}
	beat(false)
	w.appears(store.NATS, "there", store.Critical, "node there (pid 7)")
	beat(true)
	w.goes(store.NATS, "there")
}

// A receiver that could not be told anything for ten minutes is reported, unless its alert is paused.
func TestReceiversThatCannotBeTold(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const sql = `INSERT INTO alert (name, spec, source, state, created_by, changed_by, failures, failing_since, error)
		VALUES ($1, '{}', '', $2, 'a', 'a', 7, tranche_now() - $3::interval, E'mail: no connection\nand what it said')`
	for name, row := range map[string][]any{
		"long": {"long", "active", "11 minutes"}, "short": {"short", "active", "9 minutes"},
		"paused": {"paused", "paused", "1 day"},
	} {
		_, err := w.pool.Exec(t.Context(), sql, row...)
		testenv.MustSame(t, err, nil, "%v", name)
	}
	report := testenv.Must(w.watch.Report(t.Context()))(t)
	var got []store.Condition
	for _, c := range report.Conditions {
		if c.Kind == store.AlertFailing {
			got = append(got, c)
		}
	}
	if len(got) != 1 || got[0].Subject != "long" || got[0].Severity != store.Warning ||
		!strings.Contains(got[0].Detail, "7 attempts") || !strings.Contains(got[0].Detail, "mail: no connection.") {
		t.Errorf("%+v", got)
	}
}

// Health reports an archive that has taken nothing for two rounds of retention.
func TestAnArchiveThatTakesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(`INSERT INTO archive (target, error, since) VALUES ('s3://b/f', 'Access Denied.', tranche_now())`)
	w.goes(store.Archive, "s3://b/f")
	testenv.Advance(t, w.pool, 16*time.Minute)
	w.appears(store.Archive, "s3://b/f", store.Warning, "Access Denied. It has failed for 1")
	w.exec(`UPDATE archive SET error = '', since = NULL`)
	w.goes(store.Archive, "s3://b/f")
}

// Health reports an audit log that is not forwarded, or is shorter than what was.
func TestASinkThatStandsStill(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(`INSERT INTO audit_sink (target, error) VALUES ('syslog://x:1', 'connection refused')`)
	w.exec(`INSERT INTO audit_log (actor, action, at) VALUES ('ann', 'x', tranche_now() - interval '6 minutes')`)
	w.exec(`SELECT audit_seal(9)`)
	w.appears(store.AuditSink, "syslog://x:1", store.Warning, "connection refused. The oldest")
	w.exec(`UPDATE audit_sink SET seal = 1`)
	w.goes(store.AuditSink, "syslog://x:1")
	w.exec(`UPDATE audit_sink SET seal = 9`)
	w.appears(store.AuditSink, "syslog://x:1", store.Warning, "ends at seal 1, and 9 was sent")
}
