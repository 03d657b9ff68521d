package ingest_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

// That a source fails is told with the collector, whatever node is asked, until an add is taken.
func TestRefusalsAreTold(t *testing.T) {
	t.Parallel()
	b, from := withSource(t)
	b.apply("e", enriched)
	refused := func() *collectorstore.CollectorReason {
		t.Helper()
		view := testenv.Must(collectorstore.New(b.store).Collector(t.Context(), "e"))(t)
		for i := range view.Why {
			if view.Why[i].Code == "source" {
				return &view.Why[i]
			}
		}
		return nil
	}
	another := ingest.New(collectorstore.New(b.store), b.adder, from, nil)
	taken := strings.NewReader(`{"payload":{"customer":{"id":6},"n":1}}`)
	testenv.Must(another.AddFrom(t.Context(), "e", taken))(t)
	const one = `{"id":"a","payload":{"customer":{"id":7},"n":1}}`
	b.source(`ALTER TABLE customer RENAME TO moved`)
	for range 2 {
		_, err := b.add(one)
		if _, ok := errors.AsType[*ingest.EnrichError](err); !ok {
			t.Fatalf("the source has no such table: %v", err)
		}
	}
	why := refused()
	if why == nil || !strings.Contains(why.Text, `relation "customer" does not exist`) ||
		!strings.Contains(why.Text, "fix the source") {
		t.Fatalf("told: %+v", why)
	}
	b.source(`ALTER TABLE moved RENAME TO customer`)
	testenv.Must(another.AddFrom(t.Context(), "e", strings.NewReader(one)))(t)
	if refused() == nil {
		t.Error("one node is silent, and what another said a moment ago is forgotten")
	}
	testenv.Must(b.add(strings.ReplaceAll(one, `"a"`, `"b"`)))(t)
	if why := refused(); why != nil {
		t.Errorf("told after an add that was taken: %+v", why)
	}
}

// A dry run says what an add would, and shows what would be stored.
func TestTryingAddsNothing(t *testing.T) {
	t.Parallel()
	b, from := withSource(t)
	b.apply("e", enriched+"fold: last\n")
	testenv.Must(b.add(`{"id":"a","payload":{"customer":{"id":7},"n":1}}`))(t)
	text := `{"id":"a","payload":{"customer":{"id":7},"n":1}} {"id":"b","payload":{"customer":{"id":8},"n":2}}` +
		`{"id":"b","payload":{"customer":{"id":8},"n":3}} {"payload":{"customer":{"id":9},"n":4}}`
	for range 2 {
		done, sample, err := b.it.TryFrom(t.Context(), "e", strings.NewReader(text))
		if err != nil || done.Added != 2 || done.Duplicates != 2 || len(sample) != 2 {
			t.Fatalf("%+v, %+v, %v", done, sample, err)
		}
		if got := sample[0]; got.ID != "b" || !strings.HasSuffix(got.Key, "/4") || got.Fold != "8" ||
			!strings.Contains(string(got.Payload), `"name":"Name 8"`) || !strings.Contains(string(got.Payload), "2 of 2026") {
			t.Errorf("shown: %+v %s", got, got.Payload)
		}
	}
	_, _, err := b.it.TryFrom(t.Context(), "e", strings.NewReader(text+`{"payload":{"customer":{"id":9999},"n":1}}`))
	if bad, ok := errors.AsType[*ingest.OpError](err); !ok || bad.Number != 5 {
		t.Errorf("an operation without a row: %v", err)
	}
	if _, _, err = b.it.TryFrom(t.Context(), "nobody", strings.NewReader(text)); err == nil {
		t.Error("there is no such collector")
	}
	if keys := b.keys("e"); len(keys) != 1 || ingest.Held(b.it) != 0 || from.asked.Load() != 4 {
		t.Errorf("stored: %v; %d bytes are held; asked %d times", keys, ingest.Held(b.it), from.asked.Load())
	}
	if done, err := b.add(text); err != nil || done.Added != 2 || done.Duplicates != 2 {
		t.Errorf("added: %+v, %v", done, err)
	}
}
