package conformance

import (
	"slices"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestAServiceWithoutTheSDKPasses(t *testing.T) {
	t.Parallel()
	expect(t, suite(t, Config{service: broken("")}), nil, nil)
}

// TestFlawsAreFound breaks one thing at a time: the checks that are meant for it fail, and no others.
func TestFlawsAreFound(t *testing.T) {
	t.Parallel()
	meant := map[string][]string{
		"acknowledges before it replies":                {"stored-first"},
		"does not wait for JetStream to have the reply": {"stored-first"},
		"never acknowledges":                            {"acknowledged", "deliveries", "lane-true"},
		"leaves out Tranche-Final":                      {"final"},
		"counts items and not slots":                    {"missing"},
		"counts the slots of the last message only":     {"big", "partial"},
		"derives message ids from the slice":            {"message-ids"},
		"forgets a header":                              {"headers"},
		"drops the trace":                               {"traceparent"},
		"writes a member twice":                         {"readable"},
		"drops other versions":                          {"version"},
		"hands versions back at once":                   {"version"},
		"keeps bad headers":                             {"bad-headers", "reply-to-refused"},
		"drops unreadable bodies without a word":        {"bad-body", "zstd-bomb"},
		"takes a redelivery for done":                   {"deliveries", "redelivered"},
		"tries indefinitely":                            {"deliveries"},
		"ignores Tranche-Reply-To":                      {"reply-to-call", "reply-to-refused", "reply-to-stage"},
		"replies on any subject":                        {"reply-to-refused"},
		"refuses unknown members":                       {"unknown"},
		"takes parameters in front only":                {"params"},
		"numbers the items itself":                      {"ordinals"},
		"knows ASCII only":                              {"keys"},
		"does not decompress":                           {"zstd", "zstd-frames"},
		"reads one frame":                               {"zstd-frames"},
		"decompresses without end":                      {"zstd-bomb"},
		"is not listed":                                 {"discovery", "lane"},
		"takes null for no result":                      {"results", "parts"},
		"ignores references":                            {"part-refs"},
		"never says retry":                              {"error-slots"},
		"says failures in the body only":                {"fail-chunk"},
		"lets the last answer count":                    {"twice"},
		"sends both answers":                            {"twice"},
		"sends everything at the end":                   {"partial"},
		"writes the base64 of URLs":                     {"binary"},
		"never splits":                                  {"big"},
		"has its own code for what is too large":        {"pieces", "too-large"},
		"sends pieces of which the hash is another one": {"pieces"},
		"sends no heartbeats":                           {"in-progress"},
		"does not look for the streams again":           {"streams-recreated", "lane", "lane-true"},
		"goes by sequences alone":                       {"stale-acks"},
		"says in words how long it took":                {"took"},
		"ends in the middle of work":                    {"drain"},
		"has no lane for calls":                         {"lane"},
		"says that it has a lane and reads none":        {"lane", "lane-true"},
		"has calls wait behind chunks":                  {"lane"},
		"does not listen after the end of a pull":       {"late"},
	}
	for f, report := range reports(t, meant) {
		t.Run(f, func(t *testing.T) {
			t.Parallel()
			expect(t, report, meant[f], nil)
		})
	}
}

// atOnce is how many suites run side by side. They wait more than they work.
const atOnce = 5

// reports runs the suite against each flaw. The slow checks run only where they are meant: what they say of a good
// service, other tests show.
func reports(t *testing.T, meant map[string][]string) map[string]*Report {
	t.Helper()
	var mu sync.Mutex
	found := map[string]*Report{}
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(atOnce)
	for f, want := range meant {
		group.Go(func() error {
			report, err := Run(ctx, Config{Endpoint: endpoint, service: broken(f), lasting: patiently,
				Only: slices.Concat(fast(), want)})
			mu.Lock()
			defer mu.Unlock()
			found[f] = report
			return err
		})
	}
	testenv.NoError(t, group.Wait())
	return found
}
