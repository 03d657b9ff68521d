package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

type need int

const (
	needContract need = 1 << iota // the endpoint implements the contract
	needPrivate                   // the suite runs the server
)

// Check is one exchange with the service.
type Check struct {
	Name, About string
	Level       Level
	Section     string // of docs/protocol.md
	Notice      string // what users notice if it fails
	needs       need
	run         func(context.Context, *node)
}

type mismatch struct{ expected, got string }

func (m *mismatch) Error() string { return fmt.Sprintf("expected %s, got %s", m.expected, m.got) }

func differs(expected, format string, args ...any) error {
	return &mismatch{expected, fmt.Sprintf(format, args...)}
}

func fail(expected, format string, args ...any) { stop(differs(expected, format, args...)) }

// ended aborts a check. See [try].
type ended struct{ err error }

func stop(err error) {
	if err != nil {
		panic(ended{err})
	}
}

func must[T any](value T, err error) T {
	stop(err)
	return value
}

// try runs f and returns the error that aborted it.
func try(f func()) (err error) {
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case ended:
			err = cause.err
		default:
			panic(cause)
		}
	}()
	f()
	return nil
}

func Names() []string {
	var names []string
	for _, c := range Checks() {
		names = append(names, c.Name)
	}
	return names
}

// Checks returns all checks in the order in which they run; the last ones change the server's state.
func Checks() []Check { //nolint:funlen // a table, two lines a check
	return []Check{
		{"list", "a list of n items gets n slots", Must, "The request",
			"items without a slot are requested repeatedly until they fail", 0, checkList},
		{"ordinals", "ordinals with gaps, up to 2147483647", Must, "The request",
			"answers count for other items, or are quarantined", 0, checkOrdinals},
		{"keys", "keys with quotes, control characters and any script", Must, "The request",
			"requests with such keys are never answered", 0, checkKeys},
		{"params", "parameters before or after the items", Should, "The request",
			"parameters of runs do not reach the handler", 0, checkParams},
		{"unknown", "unknown members and headers are ignored", Must, "The request",
			"no request is answered after nodes are upgraded", 0, checkUnknown},
		{"headers", "the seven headers are repeated", Must, "Headers",
			"every reply is quarantined, and the run stalls", 0, checkHeaders},
		{"traceparent", "the trace context is copied", May, "Headers",
			"traces end at the service", 0, checkTraceparent},
		{"readable", "a node can read every message", Must, "What a node does with a reply",
			"replies are quarantined, and their items wait for the deadline", 0, checkReadable},
		{"final", "one message has Tranche-Final, the number of all slots", Must, "Several messages, and the final one",
			"items left out wait for the deadline, or are requested twice", 0, checkFinal},
		{"took", "Tranche-Took, if present, is a number of milliseconds", Should, "Headers",
			"nodes adapt concurrency less accurately", 0, checkTook},
		{"message-ids", "each message has a random Nats-Msg-Id, also in a repeated answer", Must,
			"Several messages, and the final one", "the answer to a redelivered request is dropped as a duplicate",
			0, checkMessageIDs},
		{"zstd", "a compressed request: one frame, with or without its size", May, "Sizes",
			"compressed requests are not answered; nodes never compress", 0, checkZstd},
		{"zstd-frames", "a request in several zstd frames", May, "Sizes",
			"streamed compressed requests are not answered", 0, checkZstdFrames},
		{"zstd-bomb", "a request that decompresses to over 16 MiB is refused", May, "Sizes",
			"one request can exhaust the service's memory", 0, checkZstdBomb},
		{"reply-to-stage", "Tranche-Reply-To a flow: the reply goes there, through JetStream", Must, "Headers",
			"flows that call this endpoint wait until their deadline", 0, checkReplyToStage},
		{"reply-to-call", "Tranche-Reply-To a caller: the reply goes there", Must, "Headers",
			"calls of this endpoint time out", 0, checkReplyToCall},
		{"reply-to-refused", "any other Tranche-Reply-To is refused", Must, "Headers",
			"a request can make the service publish to any permitted subject", 0, checkReplyToRefused},
		{"acknowledged", "an answered request is acknowledged", Must, "Acknowledgement",
			"each request is delivered and processed up to 20 times", 0, checkAcknowledged},
		{"stored-first", "no acknowledgement before the reply is stored, also if the stream is full", Must,
			"Acknowledgement", "answers are lost until the deadline if a stream is full or the service is killed",
			0, checkStoredFirst},
		{"bad-body", "an unreadable body: a failure bad_request, then +TERM", Must, "Acknowledgement",
			"an unreadable request is redelivered until it is dead-lettered, and its items wait", 0, checkBadBody},
		{"bad-headers", "unreadable headers: +TERM", Should, "Acknowledgement",
			"such a message is delivered up to 20 times, and replies to it are quarantined", 0, checkBadHeaders},
		{"version", "another protocol version: -NAK with a delay, for an instance that supports it", Should,
			"Acknowledgement", "while nodes of two versions run, requests of the newer fail", 0, checkVersion},
		{"redelivered", "a request that another instance returned is answered", Must, "Acknowledgement",
			"requests that another instance returned are never processed", 0, checkRedelivered},
		{"deliveries", "a request delivered too often is answered too_many_deliveries", Should,
			"Acknowledgement", "a request that kills the service is abandoned after 20 deliveries, not 12",
			0, checkDeliveries},
		{"late", "messages that arrive after their pull ended, as on replicated consumers, are taken", Should,
			"Acknowledgement", "with replicas, requests wait 15 s at the end of a pull",
			needPrivate, checkLate},
		{"discovery", "$SRV.INFO and $SRV.STATS list the service and its endpoint", Should, "Discovery",
			"nodes report that no service listens, and adapt less accurately", 0, checkDiscovery},
		{"results", "results of every kind of JSON arrive unchanged", Must, "The reply",
			"recorded results differ from the handler's", needContract, checkResults},
		{"error-slots", "permanent and retryable errors", Must, "The reply",
			"failures look like results, or retryable errors are final", needContract, checkErrorSlots},
		{"missing", "an item left out has no slot and is not counted", Must,
			"Several messages, and the final one", "unanswered items count as done, or wait for the deadline",
			needContract, checkMissing},
		{"twice", "the first of two answers to an item counts", Should, "What a node does with a reply",
			"the second answer may count", needContract, checkTwice},
		{"partial", "a partial reply is sent immediately", May,
			"Several messages, and the final one", "results arrive when the chunk is done, and are lost with it",
			needContract, checkPartial},
		{"binary", "binary results, with and without a content type", Should, "The reply",
			"files are damaged, or lack their type", needContract, checkBinary},
		{"parts", "the parts of other steps, and an item without a payload", Should, "Parts",
			"it cannot serve steps that need other steps", needContract, checkParts},
		{"part-refs", "a part that the request refers to is fetched, in several answers", May, "Large parts",
			"it cannot serve steps that need results of over a message", needContract, checkPartRefs},
		{"fail-chunk", "a failure applies to the items without a slot", Should, "Failure of the chunk",
			"an unavailable database fails items permanently", needContract, checkFailChunk},
		{"lane-true", `a service with "lane":true answers on tranche.work.<endpoint>+, in both modes`, Must,
			"The lane of calls", "calls of this endpoint time out: nothing reads their subject",
			0, checkLaneTrue},
		{"lane", `calls have a lane ("lane":true), and are answered before waiting chunks`, Should,
			"The lane of calls", "callers wait behind all chunks of a run, for seconds",
			needContract, checkLane},
		{"big", "a reply over max_payload is sent in several messages", Should, "Sizes",
			"chunks whose results exceed max_payload fail and are halved", needContract, checkBig},
		{"pieces", "a result over max_payload is sent in pieces, or is an error slot", May, "Results in pieces",
			"results over max_payload fail individually", needContract, checkPieces},
		{"too-large", "a result over 64 MiB becomes an error slot", Should, "Sizes",
			"one result that is too large fails its whole chunk", needContract, checkTooLarge},
		{"in-progress", "heartbeats while processing a request, every third of AckWait", Should, "Acknowledgement",
			"chunks that take over 15 s are also delivered to a second instance", needContract, checkInProgress},
		{"delivered-twice", "a request redelivered during processing is answered, and settled once", Should,
			"Acknowledgement", "such chunks are processed twice", needContract, checkDeliveredTwice},
		{"consumer", "a consumer that the service creates has the documented settings", Must,
			"Streams, subjects, consumers", "nodes and the service overwrite each other's consumer settings",
			needPrivate, checkConsumer},
		{"streams-recreated", "the streams are found again after they were recreated", Must, "Streams, subjects, consumers",
			"after streams were lost, it receives nothing until it is restarted", needPrivate, checkStreamsRecreated},
		{"stale-acks", "nothing is acknowledged to a consumer that did not deliver it", Should, "Acknowledgement",
			"after streams were lost, a new request may be removed unprocessed",
			needPrivate | needContract, checkStaleAcks},
		{"drain", "on SIGTERM, the service finishes what it has begun", Should, "Acknowledgement",
			"at each stop or deployment, chunks in flight wait 15 s", needPrivate | needContract, checkDrain},
	}
}

type Level string

// Levels of checks. Other components depend on Must.
const (
	Must   Level = "must"
	Should Level = "should"
	May    Level = "may"
)

func levels() []Level { return []Level{Must, Should, May} }

type Outcome string

// Outcomes of checks.
const (
	Passed  Outcome = "ok"
	Failed  Outcome = "FAIL"
	LeftOut Outcome = "left out"
)

type Result struct {
	Check   string  `json:"check"`
	About   string  `json:"about"`
	Section string  `json:"section"` // of docs/protocol.md
	Level   Level   `json:"level"`
	Outcome Outcome `json:"outcome"`
	// Expected, Got and Notice are set for failures, Reason for checks left out.
	Expected string        `json:"expected,omitempty"`
	Got      string        `json:"got,omitempty"`
	Notice   string        `json:"notice,omitempty"` // what users notice
	Reason   string        `json:"reason,omitempty"`
	Took     time.Duration `json:"took_ns"`
}

// Report is the result of a Run.
type Report struct {
	Endpoint string   `json:"endpoint"`
	Contract bool     `json:"contract"` // whether the endpoint implements the contract
	Results  []Result `json:"results"`
	// Items are the payloads that were made from the schema that the endpoint announces, if none were given.
	Items []json.RawMessage `json:"items,omitempty"`
	// NoItems means that none were given or could be made: {} was sent.
	NoItems bool `json:"no_items,omitempty"`
	// Output is the end of the output of the service's command, if a check failed.
	Output string `json:"output,omitempty"`
}

// Wanting returns the number of failed checks of the level and stricter ones.
func (r *Report) Wanting(level Level) int {
	n := 0
	for _, result := range r.Results {
		if result.Outcome == Failed && slices.Index(levels(), result.Level) <= slices.Index(levels(), level) {
			n++
		}
	}
	return n
}

// Count returns the number of checks with the outcome.
func (r *Report) Count(outcome Outcome) int {
	n := 0
	for _, result := range r.Results {
		if result.Outcome == outcome {
			n++
		}
	}
	return n
}
