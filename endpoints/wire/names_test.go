package wire

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestReturnIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	for _, r := range []Return{
		{},
		{Asker: "statement", Callee: "accounts", Stage: 1},
		{Asker: "a-b_C", Callee: "x", Stage: 63, Request: 8191},
		{Asker: "web", Callee: "accounts", Call: "Zk3"},
	} {
		got := testenv.Must(ParseReturn(r.String()))(t)
		testenv.Same(t, got, r, "%q", r.String())
	}
}

func TestReturnTakesNothingElse(t *testing.T) {
	t.Parallel()
	for _, subject := range []string{
		"tranche.reply.accounts", "tranche.work.accounts", "tranche.stage.a.0.0.b", "tranche.stage.a.01.0.b",
		"tranche.stage.a.1.0", "tranche.stage.a.1.0.b.c", "tranche.stage.a.1.8192.b", "tranche.stage.a.64.0.b",
		"tranche.stage.*.1.0.b", "tranche.stage.a.1.0.>", "tranche.call.a.b", "tranche.call.a..b", "tranche.call.a.b.c.d",
		"$JS.API.STREAM.DELETE.TRANCHE_WORK", "_INBOX.x", "tranche.call.a.b.c ", "tranche.call.a.\r\nb.c",
	} {
		got, err := ParseReturn(subject)
		testenv.Fails(t, err, "%q is taken for %+v", subject, got)
	}
}

// FuzzReadMeta changes one header of a good request.
func FuzzReadMeta(f *testing.F) {
	for _, name := range []string{HeaderStep, HeaderAttempt, HeaderDeliveries, HeaderRequeued} {
		f.Add(name, "2147483648")
	}
	f.Add(HeaderStack, "statement:1")
	f.Add(HeaderReplyTo, "tranche.stage.statement.1.0.accounts")
	f.Add(HeaderMode, "single")
	f.Add(HeaderOrigin, "a\x00\xff")
	good := newMeta()
	f.Fuzz(func(t *testing.T, name, value string) {
		m, err := ReadMeta(with(good, name, value))
		if err != nil {
			_ = testenv.As[*MalformedError](t, err, "%s %q", name, value)
			return
		}
		if m.Step < 0 || m.Attempt < 1 || m.Generation < 1 || m.Deliveries < 1 || m.Deliveries > MaxDeliver ||
			m.Requeued < 0 || m.Stack.Depth() > MaxStack || len(m.Origin) > MaxServiceName || !utf8.ValidString(m.Origin) {
			t.Fatalf("%s %q is read as %+v", name, value, m)
		}
	})
}

func TestStack(t *testing.T) {
	t.Parallel()
	s := Stack("").Push("statement", 1).PushAs("accounts", 2, "debit")
	if s != "statement:1,accounts:2:debit" || s.Depth() != 2 {
		t.Errorf("got %q of depth %d", s, s.Depth())
	}
	testenv.Same(t, testenv.Must(ParseStack(string(s)))(t), s, "%q", s)
	deep := strings.TrimSuffix(strings.Repeat("a:1,", MaxStack), ",")
	testenv.Same(t, testenv.Must(ParseStack(deep))(t).Depth(), MaxStack, "the depth of the deepest stack")
	for _, bad := range []string{
		deep + ",a:1", "a", "a:", ":1", "a:x", "a:1,", "a:64", "a:1\n", strings.Repeat(",", 1<<20), "a:1:", "a:1:b:c",
		"a:1:b.c", "a::b",
	} {
		got, err := ParseStack(bad)
		testenv.Fails(t, err, "%.40q is taken for %q", bad, got)
	}
}

func TestFlowIDsCarryTheRequest(t *testing.T) {
	t.Parallel()
	id := NewFlowID(newMeta(), "flow", 1)
	for _, request := range []int{0, 1, 255, 256, MaxRequests - 1} {
		slice := id.Slice(request)
		if flow, n := SplitSlice(slice); flow != id || n != request {
			t.Errorf("request %d of %s is read as %d of %s", request, id, n, flow)
		}
		if slice.Version() != 5 || slice.Variant() != uuid.RFC4122 {
			t.Errorf("%s is not a UUID of version 5", slice)
		}
	}
}

// What was typed with a slip finds the endpoint that was meant: a letter too many, too few, another, or two in turn.
func TestNearest(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"statement": "statement", "statemen": "statement", "satement": "statement", "tsatement": "statement",
		"statmenet": "statement", "saement": "", "cuont": "count", "coutn": "count", "cunto": "", "other": "",
	} {
		testenv.Same(t, Nearest(typed, []Listener{{Endpoint: "statement"}, {Endpoint: "count"}}), want, "%s", typed)
	}
}

func TestATimeIsWrittenAndReadInMilliseconds(t *testing.T) {
	t.Parallel()
	for d, text := range map[time.Duration]string{0: "0", 1500 * time.Microsecond: "1.5", 40 * time.Millisecond: "40",
		3 * time.Hour: "10800000", 999 * time.Nanosecond: "0", -time.Second: "0"} {
		testenv.Same(t, FormatTook(d), text, "%s is written", d)
	}
	for text, want := range map[string]time.Duration{"": 0, "12": 12 * time.Millisecond, "0.25": 250 * time.Microsecond,
		"-1": 0, "NaN": 0, "Inf": 0, "1e300": 0, "soon": 0} {
		testenv.Same(t, parseTook(text), want, "%q is read as", text)
	}
}

func TestParseTrace(t *testing.T) {
	t.Parallel()
	for _, parent := range []string{
		someParent, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
		"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes",
	} {
		testenv.Same(t, ParseTrace(parent, "a=1,b@c=2"), (Trace{parent, "a=1,b@c=2"}), "%q", parent)
	}
	for name, parent := range map[string]string{
		"empty":          "",
		"short":          someParent[:54],
		"long":           someParent + "0",
		"more of 00":     someParent + "-01",
		"version ff":     "ff" + someParent[2:],
		"upper case":     strings.ToUpper(someParent),
		"no trace":       "00-00000000000000000000000000000000-b7ad6b7169203331-01",
		"no span":        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
		"no hex":         strings.Replace(someParent, "b7", "bg", 1),
		"no dash":        strings.Replace(someParent, "-b7", "ab7", 1),
		"later, no dash": "cc" + someParent[2:] + "x",
		"later, endless": "cc" + someParent[2:] + "-" + strings.Repeat("x", 100),
		"two lines":      "cc" + someParent[2:] + "-\r\nTranche-Run: x",
	} {
		if got := ParseTrace(parent, "a=1"); !got.IsZero() || got.State != "" {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	for _, state := range []string{
		"x", "=1", "a=", "a=1=2", "a b=1", strings.Repeat("a=1,", 40), "a=" + strings.Repeat("x", 600), "a=\n", "a=é",
	} {
		testenv.Same(t, ParseTrace(someParent, state), (Trace{Parent: someParent}), "state %q", state)
	}
}

func FuzzParseTrace(f *testing.F) {
	f.Add(someParent, "vendor=1")
	f.Add("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x", "a=1,,b=2")
	f.Add("00--", "\x00")
	f.Fuzz(func(t *testing.T, parent, state string) {
		got := ParseTrace(parent, state)
		if got.IsZero() {
			testenv.Same(t, got.State, "", "a state without a parent: %+v", got)
			return
		}
		h := nats.Header{}
		got.SetHeader(h)
		if HeaderSize(h) > 700 || TraceOfHeader(h) != got {
			t.Errorf("%+v does not come back", got)
		}
		for _, text := range []string{got.Parent, got.State} {
			if OneLine(text) != text || !printable(text) {
				t.Errorf("%q goes into a header", text)
			}
		}
	})
}

func TestRequestCarriesParts(t *testing.T) {
	t.Parallel()
	b := NewRequestBuilder("x", newMeta(), 1<<20)
	b.Part("accounts", Part{Data: []byte(`{"n":1}`)})
	b.Part("logo", Part{Data: []byte{0, 1}, ContentType: "image/png"})
	b.AddParts(17, "A", []byte("2"))
	b.AddParts(18, "B", nil)
	b.Part("accounts", Part{})
	b.AddParts(19, "C", nil)
	b.Add(20, "D", nil)
	msg := b.Msg()
	want := `{"items":[{"i":17,"k":"A","d":2,"p":{"accounts":{"d":{"n":1}},"logo":{"t":"image/png","b":"AAE="}}},` +
		`{"i":18,"k":"B","p":{}},{"i":19,"k":"C","p":{"accounts":{"d":null}}},{"i":20,"k":"D","d":null}]}`
	testenv.Same(t, string(msg.Data), want, "the request")
	r := testenv.Must(ParseRequest(msg.Header, msg.Data, Limits{}))(t)
	if want := []rawItem{
		{17, "A", []byte("2"), Parts{{"accounts", Part{Data: []byte(`{"n":1}`)}},
			{"logo", Part{Data: []byte{0, 1}, ContentType: "image/png"}}}},
		{18, "B", nil, Parts{}},
		{19, "C", nil, Parts{{"accounts", Part{Data: []byte("null")}}}},
		{20, "D", []byte("null"), nil},
	}; !reflect.DeepEqual(r.Items, want) {
		t.Errorf("got %+v", r.Items)
	}
}

// Of an item that fits no request, as few parts as possible are referred to.
func TestPartsAreReferredTo(t *testing.T) {
	t.Parallel()
	b := NewRequestBuilder("x", newMeta(), 4096)
	large, all := make([]byte, 9000), Parts{}
	for n, part := range []Part{{Data: []byte(`"small"`)}, {Data: large, ContentType: "a/b"}, {Data: []byte(`"` +
		strings.Repeat("x", 2000) + `"`)}, {Ref: RefTo(large)}} {
		b.Part(fmt.Sprint(n), part)
		if n == 1 {
			part = Part{ContentType: "a/b", Ref: RefTo(large)}
		}
		all = append(all, NamedPart{fmt.Sprint(n), part})
	}
	if !b.ReferParts(0, "k", nil) {
		t.Fatal("references do not fit")
	}
	b.Part("0", all[2].Part) // fits the next request, as it is
	if b.ReferParts(1, "k", nil) || b.Len() != 1 {
		t.Error("a part that fits a request is referred to")
	}
	msg := b.Msg()
	r := testenv.Must(ParseRequest(msg.Header, msg.Data, Limits{}))(t)
	if !reflect.DeepEqual(r.Items[0].Parts, all) {
		t.Errorf("got %+v", r.Items[0].Parts)
	}
	b.Reset("x", newMeta(), 4096)
	if b.ReferParts(0, strings.Repeat("k", 4096), nil) {
		t.Error("a key larger than a message was taken")
	}
}

// An item whose parts do not fit is left out whole, and the next one starts without them.
func TestPartsCountForTheSizeOfARequest(t *testing.T) {
	t.Parallel()
	const limit = 4096
	b := NewRequestBuilder("x", newMeta(), limit)
	for _, part := range []Part{
		{Data: []byte(`"` + strings.Repeat("x", limit) + `"`)},
		{Data: make([]byte, limit*3/4), ContentType: "a/b"},
	} {
		b.Part("p", part)
		if b.AddParts(0, "k", nil) || b.Len() != 0 || b.Size() != len(`{"items":[]}`) {
			t.Error("a part larger than a message was taken")
		}
	}
	for n := 0; ; n++ {
		b.Part("p", Part{Data: []byte(`{"some":"thing"}`)})
		if !b.AddParts(n, "key", nil) {
			break
		}
	}
	msg := b.Msg()
	if size := len(msg.Data) + HeaderSize(msg.Header); size > limit-400 || size < limit-headerReserve-80 {
		t.Errorf("the message takes %d bytes of %d", size, limit)
	}
	testenv.Same(t, len(testenv.Must(ParseRequest(msg.Header, msg.Data, Limits{}))(t).Items), b.Len(), "items")
}

func TestRequestRefusesOddParamsAndParts(t *testing.T) {
	t.Parallel()
	const items = `"items":[{"i":1,"k":"k","d":2}]`
	ref := `{"bytes":1,"sha256":"` + RefTo(nil).SHA256 + `"}`
	bodies := map[string]string{
		`{"params":["2026"],` + items + `}`:               ReasonJSON,
		`{"params":null,` + items + `}`:                   ReasonJSON,
		`{"params":{"year":2026},` + items + `}`:          ReasonJSON,
		`{"params":{"a":"1","\u0061":"2"},` + items + `}`: ReasonSlot,
		`{"params":{},` + items + `,"params":{}}`:         ReasonSlot,
	}
	many := make([]string, MaxParts+1)
	for n := range many {
		many[n] = fmt.Sprintf(`"p%d":{"d":1}`, n)
	}
	for parts, reason := range map[string]string{
		`[]`:                                ReasonJSON,
		`null`:                              ReasonJSON,
		`{"a":1}`:                           ReasonJSON,
		`{"a":{}}`:                          ReasonSlot,
		`{"a":{"t":"x/y"}}`:                 ReasonSlot,
		`{"a":{"d":1,"b":""}}`:              ReasonSlot,
		`{"a":{"d":1,"t":"x/y"}}`:           ReasonSlot,
		`{"a":{"b":"A"}}`:                   ReasonSlot,
		`{"a":{"b":"AAE=","t":"no type"}}`:  ReasonSlot,
		`{"a":{"b":"AAE=","t":7}}`:          ReasonJSON,
		`{"a":{"r":{"bytes":1}}}`:           ReasonSlot,
		`{"a":{"d":1,"r":` + ref + `}}`:     ReasonSlot,
		`{"a":{"t":"x","r":` + ref + `}}`:   ReasonSlot,
		`{"a":{"d":1,"d":1}}`:               ReasonSlot,
		`{"a":{"d":1},"\u0061":{"d":1}}`:    ReasonSlot,
		`{"a":{"d":1}},"p":{}`:              ReasonSlot,
		`{` + strings.Join(many, ",") + `}`: ReasonTooMany,
		`{"a":{"d":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}}`: ReasonDepth,
	} {
		bodies[`{"items":[{"i":1,"k":"k","p":`+parts+`}]}`] = reason
	}
	for body, reason := range bodies {
		r, err := ParseRequest(with(newMeta()), []byte(body), Limits{})
		var bad *MalformedError
		if !errors.As(err, &bad) || bad.Reason != reason || len(r.Items) != 0 {
			t.Errorf("%.90s: %v, want %s", body, err, reason)
		}
	}
}
