package conformance

import (
	"context"
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
	run         func(context.Context, *node) error
}

type mismatch struct{ expected, got string }

func (m *mismatch) Error() string { return fmt.Sprintf("expected %s, got %s", m.expected, m.got) }

func differs(expected, format string, args ...any) error {
	return &mismatch{expected, fmt.Sprintf(format, args...)}
}

// ended aborts a check. See [node.talk].
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

// talk runs a check, which may abort like a test.
func (n *node) talk(ctx context.Context, c *Check) (err error) {
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case ended:
			err = cause.err
		default:
			panic(cause)
		}
	}()
	return c.run(ctx, n)
}

// Names returns the names of all checks.
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
			"items without a slot are asked for again and again, until they have failed", 0, checkList},
		{"ordinals", "ordinals with gaps, up to 2147483647", Must, "The request",
			"answers are of other items, or in quarantine", 0, checkOrdinals},
		{"keys", "keys with quotes, control characters and any script", Must, "The request",
			"requests with such keys are never answered", 0, checkKeys},
		{"params", "parameters, in front of the items or behind them", Should, "The request",
			"parameters of runs do not reach the handler", 0, checkParams},
		{"unknown", "members and headers that no one knows are ignored", Must, "The request",
			"after an upgrade of the nodes no request is answered", 0, checkUnknown},
		{"headers", "the seven headers are repeated", Must, "Headers",
			"every reply is in quarantine, and the run stands", 0, checkHeaders},
		{"traceparent", "the trace context is copied", May, "Headers",
			"traces end at the service", 0, checkTraceparent},
		{"readable", "a node can read every message", Must, "What a node does with a reply",
			"replies are in quarantine, and their items wait for the deadline", 0, checkReadable},
		{"final", "one message has Tranche-Final, the number of all slots", Must, "Several messages, and the final one",
			"items that were left out wait for the deadline, or are asked for twice", 0, checkFinal},
		{"took", "Tranche-Took, where a message has it, is a number of milliseconds", Should, "Headers",
			"nodes find out less well how many requests are good", 0, checkTook},
		{"message-ids", "each message has a random Nats-Msg-Id, also when a request is answered again", Must,
			"Several messages, and the final one", "the answer to a request that is delivered again is dropped as a duplicate",
			0, checkMessageIDs},
		{"zstd", "a compressed request: a frame with its size, and one of a stream", May, "Sizes",
			"requests of callers that compress are not answered; nodes never do", 0, checkZstd},
		{"zstd-frames", "a request in several zstd frames", May, "Sizes",
			"as above, of callers that stream", 0, checkZstdFrames},
		{"zstd-bomb", "a request that decompresses to over 16 MiB is refused", May, "Sizes",
			"one request of a caller can take all of the service's memory", 0, checkZstdBomb},
		{"reply-to-stage", "Tranche-Reply-To a flow: the reply goes there, through JetStream", Must, "Headers",
			"flows that ask this endpoint wait until their deadline", 0, checkReplyToStage},
		{"reply-to-call", "Tranche-Reply-To a caller: the reply goes there", Must, "Headers",
			"calls of this endpoint run out of time", 0, checkReplyToCall},
		{"reply-to-refused", "any other Tranche-Reply-To is refused", Must, "Headers",
			"a request can make the service publish wherever it may", 0, checkReplyToRefused},
		{"acknowledged", "an answered request is acknowledged", Must, "Acknowledgement",
			"each request is delivered and done up to 20 times", 0, checkAcknowledged},
		{"stored-first", "no acknowledgement before the reply is stored; a full stream is waited for", Must,
			"Acknowledgement", "answers are lost when a stream is full or the service is killed, until the deadline",
			0, checkStoredFirst},
		{"bad-body", "an unreadable body: a failure bad_request, then +TERM", Must, "Acknowledgement",
			"an unreadable request is delivered until it is buried, and its items wait", 0, checkBadBody},
		{"bad-headers", "unreadable headers: +TERM", Should, "Acknowledgement",
			"such a message is delivered up to 20 times, and replies to it are in quarantine", 0, checkBadHeaders},
		{"version", "another version: handed back with a delay, for an instance that speaks it", Should,
			"Acknowledgement", "while nodes of two versions run, requests of the newer one fail", 0, checkVersion},
		{"redelivered", "a request that another instance gave back is answered", Must, "Acknowledgement",
			"what another instance could not do is never done", 0, checkRedelivered},
		{"deliveries", "a request that was delivered too often is answered too_many_deliveries", Should,
			"Acknowledgement", "a request that kills the service is given up after 20 deliveries instead of 12",
			0, checkDeliveries},
		{"late", "messages that come after the end of their pull, as on replicated consumers, are taken", Should,
			"Acknowledgement", "on replicated NATS requests rest for 15 s at the end of a pull",
			needPrivate, checkLate},
		{"discovery", "$SRV.INFO and $SRV.STATS list the service and its endpoint", Should, "Discovery",
			"nodes do not list it, say that no service listens, and pace by less", 0, checkDiscovery},
		{"results", "results of every kind of JSON arrive as they are", Must, "The reply",
			"results are recorded other than the handler made them", needContract, checkResults},
		{"error-slots", "errors permanently and errors to retry", Must, "The reply",
			"failures look like results, or what would pass is given up", needContract, checkErrorSlots},
		{"missing", "an item that is left out has no slot, and does not count", Must,
			"Several messages, and the final one", "items that no one answered count as done, or wait for the deadline",
			needContract, checkMissing},
		{"twice", "of two answers to an item the first counts", Should, "What a node does with a reply",
			"the later of two answers may count", needContract, checkTwice},
		{"partial", "a part of a reply is sent as soon as the handler says so", May,
			"Several messages, and the final one", "results come when the chunk is done, and are lost with it",
			needContract, checkPartial},
		{"binary", "binary results, with and without a content type", Should, "The reply",
			"files are damaged, or come without their type", needContract, checkBinary},
		{"parts", "the parts of other steps, and an item without a payload", Should, "Parts",
			"it cannot serve steps that need others", needContract, checkParts},
		{"fail-chunk", "a failure speaks for the items without a slot", Should, "Failure of the chunk",
			"a database that is down fails item by item, permanently", needContract, checkFailChunk},
		{"lane-true", `who says "lane":true answers what comes by tranche.work.<endpoint>+, in either mode`, Must,
			"The lane of calls", "calls of this endpoint run out of time: no one reads where they are told to go",
			0, checkLaneTrue},
		{"lane", `calls have a lane, said by "lane":true, and a call is answered before chunks that wait`, Should,
			"The lane of calls", "whoever calls waits behind all chunks of a run: seconds, on a website too",
			needContract, checkLane},
		{"big", "more than max_payload is sent in several messages", Should, "Sizes",
			"chunks whose results are together over max_payload fail, and are halved", needContract, checkBig},
		{"pieces", "one result that fits no message comes in pieces, or is an error slot", May, "Results in pieces",
			"results over max_payload fail, each by itself", needContract, checkPieces},
		{"too-large", "one result of over 64 MiB becomes an error slot", Should, "Sizes",
			"one result that is too large costs its whole chunk", needContract, checkTooLarge},
		{"in-progress", "heartbeats while a request is worked on, every third of AckWait", Should, "Acknowledgement",
			"chunks of over 15 s are given to a second instance as well", needContract, checkInProgress},
		{"delivered-twice", "a request that is delivered again while it is worked on is answered, and settled once", Should,
			"Acknowledgement", "such chunks are answered twice", needContract, checkDeliveredTwice},
		{"consumer", "a consumer that the service makes has the settings of the page", Must,
			"Streams, subjects, consumers", "the nodes' settings of the consumer are fought over",
			needPrivate, checkConsumer},
		{"streams-anew", "the streams are found again after they were deleted", Must, "Streams, subjects, consumers",
			"after streams were lost it is deaf until someone restarts it", needPrivate, checkStreamsAnew},
		{"made-anew", "nothing is acknowledged to a consumer that did not deliver it", Should, "Acknowledgement",
			"after streams were lost a new request may be removed unseen, until its deadline",
			needPrivate | needContract, checkMadeAnew},
		{"drain", "told to end, the service finishes what is begun", Should, "Acknowledgement",
			"at each stop or deployment the chunks in hand rest for 15 s", needPrivate | needContract, checkDrain},
	}
}

// Level is how important a check is.
type Level string

// Levels of checks. Other components depend on Must.
const (
	Must   Level = "must"
	Should Level = "should"
	May    Level = "may"
)

func levels() []Level { return []Level{Must, Should, May} }

// Outcome is the outcome of a check.
type Outcome string

// Outcomes of checks.
const (
	Passed  Outcome = "ok"
	Failed  Outcome = "FAIL"
	LeftOut Outcome = "left out"
)

// Result is the result of one check.
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
