package endpoints

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go/micro"
)

// listed waits for the one listener of endpoint square to be as it should.
func (b *bundle) listed(what string, as func(Listener) bool) Listener {
	b.t.Helper()
	var found Listener
	eventually(b.t, what, func() bool {
		all, err := Discover(b.ctx, b.nc, 100*time.Millisecond)
		check(b.t, err)
		for _, l := range all {
			if l.Endpoint == "square" && as(l) {
				found = l
				return true
			}
		}
		return false
	})
	return found
}

func TestListenersSayHowTheyAre(t *testing.T) {
	t.Parallel()
	b := setup(t)
	check(t, b.js.DeleteStream(b.ctx, StreamWork))
	svc := b.service()
	check(t, HandleEach(svc, "square", squares, Concurrency(3)))
	stop := b.run(svc)
	b.listed("it waits, and says what for", func(l Listener) bool {
		return l.State == StateWaiting && l.Reason == "waiting for a Tranche node to create stream "+StreamWork
	})
	b.streams()
	b.listed("it listens", func(l Listener) bool { return l.State == StateListening && l.Reason == "" })
	b.reply("square", numbers(100))
	l := b.listed("the chunk is counted", func(l Listener) bool { return l.Processed == 100 })
	if l.Rate <= 0 || l.P50 <= 0 || l.P99 < l.P50 || l.Concurrency != 3 || l.Stages != 0 || l.Errors != 0 {
		t.Errorf("after a chunk: %+v", l)
	}
	stats := svc.Stats()
	if len(stats) != 1 || stats[0].Endpoint != "square" || stats[0].Items != 100 || stats[0].Chunks != 1 {
		t.Errorf("stats: %+v", stats)
	}
	check(t, stop())
	if s := svc.Stats()[0]; s.State != StateDraining {
		t.Errorf("after the end: %+v", s)
	}
}

// TestListenersOfOtherKindsAreRead has services answer that are older, or written in a language with floats only.
func TestListenersOfOtherKindsAreRead(t *testing.T) {
	t.Parallel()
	answer := func(data string) []byte {
		raw, err := json.Marshal(micro.Stats{
			ServiceIdentity: micro.ServiceIdentity{Name: "s", ID: "i", Metadata: map[string]string{metaProtocol: "1"}},
			Endpoints:       []*micro.EndpointStats{{Name: "square", Data: json.RawMessage(data)}},
		})
		check(t, err)
		return raw
	}
	for data, want := range map[string]Listener{
		`{"processed":6000,"errors":3,"avg_per_item":41000}`: {Processed: 6000, Errors: 3, AvgPerItem: 41 * time.Microsecond},
		`{"processed":1,"avg_per_item":0.5,"p50":1500.75,"rate":2.5,"state":"waiting","reason":"a\u001b[31mb"}`: {
			Processed: 1, P50: 1500, Rate: 2.5, State: StateWaiting, Reason: "a [31mb"},
		`{"processed":-1,"p99":1e300,"in_flight":-5,"state":"odd"}`: {P99: maxCount},
	} {
		want.Endpoint, want.Service, want.Instance = "square", "s", "i"
		found := listenersIn(answer(data))
		if len(found) != 1 || found[0] != want {
			t.Errorf("%s is read as %+v, want %+v", data, found, want)
		}
	}
	if found := listenersIn(answer(`{"processed":"many"}`)); len(found) != 0 {
		t.Errorf("rubbish is read as %+v", found)
	}
}

func FuzzListeners(f *testing.F) {
	f.Add([]byte(`{"name":"s","id":"i","metadata":{"tranche":"1"},"endpoints":[{"name":"square","data":` +
		`{"processed":-1,"p99":1e300,"rate":-0.5,"state":"odd","reason":"a\u001b"}},null]}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		for _, l := range listenersIn(answer) {
			if ValidateName(l.Endpoint) != nil || l.Processed < 0 || l.P99 < 0 || l.Rate < 0 || l.Concurrency < 0 ||
				len(l.Service) > maxServiceName || len(l.Host) > maxServiceName {
				t.Fatalf("%q is read as %+v", answer, l)
			}
		}
	})
}
