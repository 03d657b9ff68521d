package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

var died = time.Date(2026, 11, 20, 12, 30, 0, 0, time.UTC)

func testDetails() FailureDetails {
	return FailureDetails{Cause: NewSlotError(CodePanic, "the handler panicked:\nboom", false), Deliveries: 3,
		Service: "tester@1.2.3 abc", At: died, ID: "dead.fallback"}
}

// singleRequest is a request of one item with all headers that it may have.
func singleRequest(t *testing.T) (Meta, *nats.Msg) {
	t.Helper()
	meta := newMeta()
	meta.Mode, meta.Stack, meta.Origin, meta.Requeued, meta.Root = ModeSingle, "flow:1", "web", 2, uuid.New()
	builder := NewRequestBuilder("square", meta, 1<<20)
	if !builder.Add(0, "k", []byte(`{"n":7}`)) {
		t.Fatal("the item does not fit")
	}
	msg := builder.Msg()
	msg.Header[HeaderTTL] = []string{"5s"}
	msg.Header["X-Other"] = []string{"one", "two"}
	return meta, msg
}

func TestDeadLetterSaysWhatTheRequestWas(t *testing.T) {
	t.Parallel()
	meta, request := singleRequest(t)
	before := maps.Clone(request.Header)
	msg := NewDeadLetter("square", request.Header, request.Data, testDetails(), 1<<20)
	testenv.Same(t, msg.Header.Get(HeaderTTL), "", "the stream of dead letters refuses a time to live")
	letter := testenv.Must(ParseDeadLetter(msg.Subject, msg.Header, msg.Data))(t)
	if letter.Endpoint != "square" || letter.Cause != CodePanic || letter.Message != "the handler panicked: boom" ||
		letter.Service != "tester@1.2.3 abc" || letter.Deliveries != 3 || !letter.At.Equal(died) || letter.Omitted != 0 {
		t.Errorf("%+v", letter)
	}
	if letter.Mode != ModeSingle || letter.Run != meta.Run || letter.Slice != meta.Slice || letter.Root != meta.Root ||
		letter.Stack != "flow:1" || letter.Origin != "web" || letter.Requeued != 2 || letter.Items != 1 {
		t.Errorf("%+v", letter)
	}
	if letter.MsgID != DeadMsgID(request.Header) || !bytes.Equal(letter.Body, request.Data) {
		t.Errorf("id %s, body %s", letter.MsgID, letter.Body)
	}
	again, err := ParseRequest(letter.Header, letter.Body, Limits{})
	if err != nil || again.Meta != meta || len(letter.Header["X-Other"]) != 2 || letter.Header.Get(HeaderMsgID) != "" {
		t.Errorf("as it would be sent again: %v, %+v, %v", err, again, letter.Header)
	}
	testenv.Same(t, len(request.Header), len(before), "the request was changed")
}

func TestDeadLetterFitsItsMessage(t *testing.T) {
	t.Parallel()
	const limit = 4 << 10
	plain := nats.Header{HeaderSlice: {uuid.NewString()}}
	long := nats.Header{"X-Long": {strings.Repeat("x", limit)}}
	noise := make([]byte, 0, limit)
	for len(noise) < limit {
		noise = append(noise, uuid.New().NodeID()...)
	}
	for name, tc := range map[string]struct {
		header  nats.Header
		body    []byte
		encoded string
		omitted bool
	}{
		"small":     {plain, []byte("{}"), "", false},
		"squeezed":  {plain, bytes.Repeat([]byte("a"), limit), EncodingZstd, false},
		"noise":     {plain, noise, "", true},
		"encoded":   {nats.Header{HeaderEncoding: {"br"}}, bytes.Repeat([]byte("a"), limit), "br", true},
		"headers":   {long, []byte("{}"), "", true},
		"no header": {nil, nil, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			msg := NewDeadLetter("square", tc.header, tc.body, testDetails(), limit)
			if n := HeaderSize(msg.Header) + len(msg.Data); n > limit {
				t.Fatalf("%d bytes", n)
			}
			letter := testenv.Must(ParseDeadLetter(msg.Subject, msg.Header, msg.Data))(t)
			if letter.Cause != CodePanic || letter.Header.Get(HeaderEncoding) != tc.encoded && name != "noise" ||
				(letter.Omitted > 0) != tc.omitted || tc.omitted != (len(letter.Body) == 0 && len(tc.body) > 0) {
				t.Errorf("%+v", letter)
			}
		})
	}
}

func TestParseDeadLetterTakesGarbage(t *testing.T) {
	t.Parallel()
	letter := testenv.Must(ParseDeadLetter("tranche.dead.square", nats.Header{
		HeaderDeadCause: {"no such \x00 code"}, HeaderDeadMessage: {"\xff"}, HeaderDeadDeliveries: {"-4"},
		HeaderDeadAt: {"yesterday"}, HeaderRun: {"x"}, HeaderMode: {"odd"}, HeaderRequeued: {"99999999999999"},
		HeaderStack: {strings.Repeat("s", 1<<20)},
	}, []byte("\x00\x01")))(t)
	if letter.Cause != "no_such___code" || letter.Message != "?" || letter.Deliveries != 0 || !letter.At.IsZero() ||
		letter.Run != uuid.Nil || letter.Mode != "" || letter.Requeued != 0 || letter.Items != 0 || letter.MsgID == "" ||
		len(letter.Stack) > MaxMessageLength {
		t.Errorf("%+v", letter)
	}
	var bad *MalformedError
	letter, err := ParseDeadLetter("tranche.work.square", nats.Header{HeaderDeadCause: {"panic"}}, nil)
	if !errors.As(err, &bad) || bad.Reason != ReasonSubject || letter.Cause != "panic" {
		t.Errorf("%v, %+v", err, letter)
	}
	other, _ := ParseDeadLetter("tranche.work.square", nats.Header{HeaderDeadCause: {"panic"}}, []byte("x"))
	if other.MsgID == letter.MsgID {
		t.Error("two letters have one id")
	}
}

func FuzzParseDeadLetter(f *testing.F) {
	f.Add("tranche.dead.a", HeaderDeadCause, "panic", HeaderRun, uuid.NewString(), []byte(`{"items":[]}`))
	f.Add("tranche.dead.a", HeaderDeadDeliveries, "3", HeaderEncoding, "zstd", []byte{0x28, 0xb5, 0x2f, 0xfd})
	f.Fuzz(func(t *testing.T, subject, name, value, name2, value2 string, body []byte) {
		h := nats.Header{name: {value}, name2: {value2}}
		letter, err := ParseDeadLetter(subject, h, body)
		if (err == nil) != (letter.Endpoint != "") || letter.MsgID == "" || letter.Deliveries < 0 {
			t.Fatalf("%+v, %v", letter, err)
		}
		msg := NewDeadLetter("x", letter.Header, letter.Body, testDetails(), 64<<10)
		again, err := ParseDeadLetter(msg.Subject, msg.Header, msg.Data)
		if err != nil || again.Run != letter.Run || again.Mode != letter.Mode || again.Stack != letter.Stack {
			t.Fatalf("%+v became %+v, %v", letter, again, err)
		}
	})
}

// TestListenersOfOtherKindsAreRead has services answer that are older, or written in a language with floats only.
func TestListenersOfOtherKindsAreRead(t *testing.T) {
	t.Parallel()
	answer := func(data string) []byte {
		raw := testenv.Must(json.Marshal(micro.Stats{
			ServiceIdentity: micro.ServiceIdentity{Name: "s", ID: "i", Metadata: map[string]string{MetaProtocol: "1"}},
			Endpoints:       []*micro.EndpointStats{{Name: "square", Data: json.RawMessage(data)}},
		}))(t)
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
	testenv.Same(t, len(listenersIn(answer(`{"processed":"many"}`))), 0, "rubbish")
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
