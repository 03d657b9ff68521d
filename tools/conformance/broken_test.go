package conformance

import (
	"slices"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// The flaws of a rawService.
const (
	none              flaw = ""
	acksFirst         flaw = "acknowledges before it replies"
	hopes             flaw = "does not wait for JetStream to have the reply"
	neverAcks         flaw = "never acknowledges"
	neverFinal        flaw = "leaves out Tranche-Final"
	countsItems       flaw = "counts items and not slots"
	countsLast        flaw = "counts the slots of the last message only"
	idOfSlice         flaw = "derives message ids from the slice"
	noGeneration      flaw = "forgets a header"
	noTrace           flaw = "drops the trace"
	twoOrdinals       flaw = "writes a member twice"
	dropsVersions     flaw = "drops other versions"
	hastyVersions     flaw = "hands other versions back at once"
	keepsBadHeaders   flaw = "hands unreadable headers back"
	silentBodies      flaw = "drops unreadable bodies without a word"
	ignoresRedelivery flaw = "takes a redelivery for done"
	ignoresDeliveries flaw = "tries indefinitely"
	ignoresReturn     flaw = "ignores Tranche-Reply-To"
	repliesAnywhere   flaw = "replies on any subject"
	strictMembers     flaw = "refuses unknown members"
	paramsFirst       flaw = "takes parameters in front only"
	countsOrdinals    flaw = "numbers the items itself"
	asciiKeys         flaw = "knows ASCII only"
	noZstd            flaw = "does not decompress"
	oneFrame          flaw = "reads one frame"
	unbounded         flaw = "decompresses without end"
	unlisted          flaw = "is not listed"
	nullIsNothing     flaw = "takes null for no result"
	noRetryCodes      flaw = "never says retry"
	plainFailure      flaw = "says failures in the body only"
	lastCounts        flaw = "lets the last answer count"
	neverFlushes      flaw = "sends everything at the end"
	urlBase64         flaw = "writes the base64 of URLs"
	neverSplits       flaw = "sends one message, whatever its size"
	ownCode           flaw = "has its own code for what is too large"
	wrongHash         flaw = "sends pieces of which the hash is another one"
	noSigns           flaw = "sends no heartbeats"
	forgetsWork       flaw = "works on a redelivery beside the first"
	bindsOnce         flaw = "does not look for the streams again"
	trustsSequences   flaw = "goes by sequences alone"
	tookInWords       flaw = "says in words how long it took"
	endsAtOnce        flaw = "ends in the middle of work"
	noLane            flaw = "has no lane for calls"
	saysLane          flaw = "says that it has a lane and reads none"
	callsQueue        flaw = "has calls wait behind chunks"
	leavesAtTheEnd    flaw = "does not listen after the end of a pull"
)

func TestAServiceWithoutTheSDKPasses(t *testing.T) {
	t.Parallel()
	expect(t, suite(t, Config{service: broken(none)}), nil, nil)
}

// TestFlawsAreFound breaks one thing at a time: the checks that are meant for it fail, and no others.
func TestFlawsAreFound(t *testing.T) {
	t.Parallel()
	meant := map[flaw][]string{
		acksFirst:         {"stored-first"},
		hopes:             {"stored-first"},
		neverAcks:         {"acknowledged", "deliveries", "lane-true"},
		neverFinal:        {"final"},
		countsItems:       {"missing"},
		countsLast:        {"big", "partial"},
		idOfSlice:         {"message-ids"},
		noGeneration:      {"headers"},
		noTrace:           {"traceparent"},
		twoOrdinals:       {"readable"},
		dropsVersions:     {"version"},
		hastyVersions:     {"version"},
		keepsBadHeaders:   {"bad-headers", "reply-to-refused"},
		silentBodies:      {"bad-body", "zstd-bomb"},
		ignoresRedelivery: {"deliveries", "redelivered"},
		ignoresDeliveries: {"deliveries"},
		ignoresReturn:     {"reply-to-call", "reply-to-refused", "reply-to-stage"},
		repliesAnywhere:   {"reply-to-refused"},
		strictMembers:     {"unknown"},
		paramsFirst:       {"params"},
		countsOrdinals:    {"ordinals"},
		asciiKeys:         {"keys"},
		noZstd:            {"zstd", "zstd-frames"},
		oneFrame:          {"zstd-frames"},
		unbounded:         {"zstd-bomb"},
		unlisted:          {"discovery", "lane"},
		nullIsNothing:     {"results", "parts"},
		noRetryCodes:      {"error-slots"},
		plainFailure:      {"fail-chunk"},
		lastCounts:        {"twice"},
		neverFlushes:      {"partial"},
		urlBase64:         {"binary"},
		neverSplits:       {"big"},
		ownCode:           {"pieces", "too-large"},
		wrongHash:         {"pieces"},
		noSigns:           {"in-progress"},
		bindsOnce:         {"streams-anew", "lane", "lane-true"},
		trustsSequences:   {"made-anew"},
		tookInWords:       {"took"},
		endsAtOnce:        {"drain"},
		noLane:            {"lane"},
		saysLane:          {"lane", "lane-true"},
		callsQueue:        {"lane"},
		leavesAtTheEnd:    {"late"},
	}
	for f, report := range reports(t, meant) {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			expect(t, report, meant[f], nil)
		})
	}
}

// atOnce is how many suites run side by side. They wait more than they work.
const atOnce = 5

// reports runs the suite against each flaw. The slow checks run only where they are meant: what they say of a good
// service, other tests show.
func reports(t *testing.T, meant map[flaw][]string) map[flaw]*Report {
	t.Helper()
	var mu sync.Mutex
	found := map[flaw]*Report{}
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
