package wire

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go/micro"
)

// TestListenersOfOtherKindsAreRead has services answer that are older, or written in a language with floats only.
func TestListenersOfOtherKindsAreRead(t *testing.T) {
	t.Parallel()
	answer := func(data string) []byte {
		raw, err := json.Marshal(micro.Stats{
			ServiceIdentity: micro.ServiceIdentity{Name: "s", ID: "i", Metadata: map[string]string{MetaProtocol: "1"}},
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
				len(l.Service) > MaxServiceName || len(l.Host) > MaxServiceName {
				t.Fatalf("%q is read as %+v", answer, l)
			}
		}
	})
}
