package workqueue_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/session"
)

// The first of all says what the streams are like; later ones, and nobody's change of nothing, leave no trace.
func TestStreamSettings(t *testing.T) {
	t.Parallel()
	b := setup(t)
	audits := func() int { return b.Number(`SELECT count(*) FROM audit_log WHERE action LIKE 'streams_%'`) }
	first := session.StreamValues{WorkBytes: 64 << 20}
	_, err := session.New(b.Store).ChangeStreams(t.Context(), session.StreamChanges{}, "ann")
	if _, ok := errors.AsType[*workqueue.SettingError](err); !ok {
		t.Errorf("a change before there is anything: %v", err)
	}
	set, err := session.New(b.Store).StreamSettings(t.Context(), first)
	if err != nil || set.StreamValues != first || set.Revision != 1 {
		t.Fatal(set, err)
	}
	if set, err := session.New(b.Store).StreamSettings(t.Context(), session.StreamValues{Replicas: 5}); err != nil ||
		set.StreamValues != first || audits() != 1 {
		t.Errorf("the second changed it: %+v, %v", set, err)
	}
	lease := b.Lead()
	set, err = session.New(b.Store).StreamsSet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := session.New(b.Store).StreamsRefused(t.Context(), lease, &set, "no room", time.Minute); err != nil {
		t.Fatal(err)
	}
	facts, err := health.New(b.Store).Health(t.Context(), health.Limits{})
	if err != nil || !slices.ContainsFunc(facts.Conditions, func(c health.Condition) bool {
		return c.Kind == health.StreamSettings && strings.HasPrefix(c.Detail, "no room (tried 1 time, ")
	}) {
		t.Errorf("health knows %+v, %v", facts, err)
	}
	if err := session.New(b.Store).StreamsApplied(t.Context(), lease, &set); err != nil {
		t.Fatal(err)
	}
	three, age := 3, workqueue.Duration(48*time.Hour)
	now, err := session.New(b.Store).ChangeStreams(t.Context(), session.StreamChanges{Replicas: &three, EventAge: &age},
		"ann")
	if err != nil || now.Replicas != 3 || now.WorkBytes != 64<<20 || now.Revision != 2 || now.ChangedBy != "ann" ||
		now.Applied == nil || *now.Applied != first || now.AppliedRevision != 1 {
		t.Errorf("%+v, %v", now, err)
	}
	if n := b.Number(`SELECT count(*) FROM audit_log WHERE actor = 'ann'
		AND before = '{"replicas": "auto", "event_age": "0s"}'
		AND after = '{"replicas": 3, "event_age": "48h0m0s"}'`); n != 1 {
		t.Error("the audit log does not have the old and the new values")
	}
	if err := session.New(b.Store).StreamsApplied(t.Context(), lease, &set); err != nil {
		t.Fatal(err)
	}
	if now, err = session.New(b.Store).StreamsSet(t.Context()); err != nil || now.AppliedRevision != 1 {
		t.Errorf("an old revision counts as the new one: %+v, %v", now, err)
	}
	again, err := session.New(b.Store).ChangeStreams(t.Context(), session.StreamChanges{Replicas: &three}, "ann")
	if err != nil || again.Revision != 2 || audits() != 2 {
		t.Errorf("a change of nothing: %+v, %v", again, err)
	}
	if taken, err := session.New(b.Store).UnsetStreams(t.Context()); taken || err != nil {
		t.Errorf("settings that were brought about were taken back: %v", err)
	}
	stale := lease
	stale.Epoch--
	if err := session.New(b.Store).StreamsApplied(t.Context(), stale, &now); !errors.Is(err, workqueue.ErrNotLeader) {
		t.Errorf("without the lease: %v", err)
	}
	two, tiny := 2, int64(1)
	for _, c := range []session.StreamChanges{{Replicas: &two}, {DeadBytes: &tiny}} {
		if _, err := session.New(b.Store).ChangeStreams(t.Context(), c, "ann"); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}
