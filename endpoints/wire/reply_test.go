package wire

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// with returns the headers of a valid reply, changed by pairs of name and value. An empty value removes a header.
func with(meta Meta, pairs ...string) nats.Header {
	h := meta.Reply()
	for i := 0; i < len(pairs); i += 2 {
		if h[pairs[i]] = []string{pairs[i+1]}; pairs[i+1] == "" {
			delete(h, pairs[i])
		}
	}
	return h
}

func TestParseReply(t *testing.T) {
	t.Parallel()
	meta := newMeta()
	meta.Step, meta.Attempt, meta.Generation, meta.Mode = 3, 2, 5, ModeSingle
	body := ` { "later" : [ {} ], "slots" : [ {"i":17,"d":{"a":[1,2.5e-3]}} , {"e":{"code":"x.Y-1",` +
		`"message":"m\u00e9\u0000","retry":true},"i":0},` +
		`{"t":"application\/pdf","i":2147483647,"b":"JVBER\u0067=="},{"i":4,"d":null,"more":0}]} `
	reply := testenv.Must(ParseReply("tranche.reply.statement", with(meta, HeaderFinal, "9", HeaderService, "s@1 i"),
		[]byte(body), Limits{}))(t)
	want := &Reply{Meta: meta, Endpoint: "statement", Service: "s@1 i", Answered: 9, Slots: []Slot{
		{Ordinal: 17, Data: []byte(`{"a":[1,2.5e-3]}`)},
		{Ordinal: 0, Err: &SlotError{"x.Y-1", "mé\uFFFD", true}},
		{Ordinal: 2147483647, Data: []byte("%PDF"), ContentType: "application/pdf"},
		{Ordinal: 4, Data: []byte("null")},
	}}
	if reply.Size <= len(body) || reply.Size > len(body)+1<<10 {
		t.Errorf("size %d of a body of %d bytes", reply.Size, len(body))
	}
	want.Size = reply.Size
	if !reflect.DeepEqual(reply, want) {
		t.Errorf("got %+v, want %+v", reply, want)
	}
}

func TestParseReplyFailure(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		headers []string
		body    string
		want    SlotError
	}{
		"in the body": {nil, `{"error":{"code":"db","message":"down","retry":false}}`, SlotError{"db", "down", false}},
		"in the headers": {[]string{HeaderErrorCode, "500", HeaderError, "no luck"}, ``,
			SlotError{"500", "no luck", true}},
		"in both": {[]string{HeaderErrorCode, "500"}, `{"slots":[],"error":{"code":"db"}}`, SlotError{Code: "db"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := with(newMeta(), append(tc.headers, HeaderFinal, "0")...)
			reply := testenv.Must(ParseReply("tranche.reply.x", h, []byte(tc.body), Limits{}))(t)
			if reply.Failure == nil || *reply.Failure != tc.want || reply.Answered != 0 {
				t.Errorf("failure %v, answered %d", reply.Failure, reply.Answered)
			}
		})
	}
}

func TestParseReplyRefuses(t *testing.T) {
	t.Parallel()
	const good = `{"slots":[]}`
	slot := func(s string) string { return `{"slots":[` + s + `]}` }
	for name, tc := range map[string]struct {
		reason, subject, body string
		headers               []string
		limits                Limits
	}{
		"no version":         {reason: ReasonVersion, body: good, headers: []string{HeaderVersion, ""}},
		"later version":      {reason: ReasonVersion, body: good, headers: []string{HeaderVersion, "2"}},
		"from a stream":      {reason: ReasonHeader, body: good, headers: []string{"Nats-Stream", "TRANCHE_FLOW"}},
		"no slice":           {reason: ReasonHeader, body: good, headers: []string{HeaderSlice, ""}},
		"short run":          {reason: ReasonHeader, body: good, headers: []string{HeaderRun, "123"}},
		"odd step":           {reason: ReasonHeader, body: good, headers: []string{HeaderStep, "-1"}},
		"attempt 0":          {reason: ReasonHeader, body: good, headers: []string{HeaderAttempt, "0"}},
		"odd mode":           {reason: ReasonHeader, body: good, headers: []string{HeaderMode, "many"}},
		"odd error code":     {reason: ReasonHeader, headers: []string{HeaderErrorCode, "no luck", HeaderFinal, "0"}},
		"other subject":      {reason: ReasonSubject, subject: "tranche.work.x", body: good},
		"deep subject":       {reason: ReasonSubject, subject: "tranche.reply.x.y", body: good},
		"encoding":           {reason: ReasonEncoding, body: good, headers: []string{HeaderEncoding, "gzip"}},
		"not zstd":           {reason: ReasonEncoding, body: good, headers: []string{HeaderEncoding, "zstd"}},
		"too large":          {reason: ReasonTooLarge, body: good, limits: Limits{MaxBody: 5}},
		"empty":              {reason: ReasonJSON},
		"cut off":            {reason: ReasonJSON, body: `{"slots":[{"i":1,"d":"ab`},
		"trailing":           {reason: ReasonJSON, body: good + `{}`},
		"control character":  {reason: ReasonJSON, body: slot("{\"i\":1,\"d\":\"\x01\"}")},
		"array":              {reason: ReasonJSON, body: `[]`},
		"nothing":            {reason: ReasonSlot, body: `{}`},
		"slots twice":        {reason: ReasonSlot, body: `{"slots":[],"slots":[]}`},
		"no ordinal":         {reason: ReasonSlot, body: slot(`{"d":1}`)},
		"negative ordinal":   {reason: ReasonSlot, body: slot(`{"i":-1,"d":1}`)},
		"fraction":           {reason: ReasonSlot, body: slot(`{"i":1.5,"d":1}`)},
		"large ordinal":      {reason: ReasonSlot, body: slot(`{"i":2147483648,"d":1}`)},
		"escaped member":     {reason: ReasonSlot, body: slot(`{"\u0069":1,"d":1}`)},
		"ordinal twice":      {reason: ReasonSlot, body: slot(`{"i":1,"i":2,"d":1}`)},
		"neither":            {reason: ReasonSlot, body: slot(`{"i":1}`)},
		"both":               {reason: ReasonSlot, body: slot(`{"i":1,"d":1,"e":{"code":"x"}}`)},
		"type without bytes": {reason: ReasonSlot, body: slot(`{"i":1,"t":"a/b"}`)},
		"odd type":           {reason: ReasonSlot, body: slot(`{"i":1,"t":"a\nb/c","b":""}`)},
		"not base64":         {reason: ReasonSlot, body: slot(`{"i":1,"t":"a/b","b":"*"}`)},
		"no code":            {reason: ReasonSlot, body: slot(`{"i":1,"e":{"message":"x"}}`)},
		"long code":          {reason: ReasonSlot, body: slot(`{"i":1,"e":{"code":"` + strings.Repeat("x", 65) + `"}}`)},
		"deep beside slots":  {reason: ReasonDepth, body: `{"slots":[],"x":` + nested(200) + `}`},
		"deep elsewhere":     {reason: ReasonDepth, body: `{"x":` + strings.Repeat("[", 1<<20)},
		"too many":           {reason: ReasonTooMany, body: slot(`{"i":1,"d":1},{"i":2,"d":1}`), limits: Limits{MaxSlots: 1}},
		"final too many":     {reason: ReasonTooMany, body: good, headers: []string{HeaderFinal, "8193"}},
		"final not number":   {reason: ReasonFinal, body: good, headers: []string{HeaderFinal, "yes"}},
		"final too few":      {reason: ReasonFinal, body: slot(`{"i":1,"d":1}`), headers: []string{HeaderFinal, "0"}},
		"failure not final":  {reason: ReasonFinal, body: `{"error":{"code":"x"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			subject := tc.subject
			if subject == "" {
				subject = "tranche.reply.x"
			}
			meta := newMeta()
			_, err := ParseReply(subject, with(meta, tc.headers...), []byte(tc.body), tc.limits)
			var bad *MalformedError
			if !errors.As(err, &bad) || bad.Reason != tc.reason || bad.Detail == "" {
				t.Fatalf("error %v, want reason %s", err, tc.reason)
			}
			if bad.Slice != meta.Slice && name != "no slice" {
				t.Error("the error does not say which slice")
			}
		})
	}
}

func TestDepthOfValues(t *testing.T) {
	t.Parallel()
	nest := func(open, middle, end string, n int) string {
		return strings.Repeat(open, n) + middle + strings.Repeat(end, n)
	}
	for name, tc := range map[string]struct {
		value string
		deep  bool
	}{
		"arrays":          {nest("[", "1", "]", DefaultMaxDepth), false},
		"deeper arrays":   {nest("[", "1", "]", DefaultMaxDepth+1), true},
		"empty innermost": {nest("[", "", "]", DefaultMaxDepth+1), true},
		"objects":         {nest(`{"a":`, "1", "}", DefaultMaxDepth), false},
		"deeper objects":  {nest(`{"a":`, "1", "}", DefaultMaxDepth+1), true},
		"wide":            {"[" + strings.Repeat(`{"a":[]},`, 1000) + "0]", false},
		"only text":       {`"` + strings.Repeat("[{", 1000) + `"`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parse := func(body string) (*Reply, error) {
				return ParseReply("tranche.reply.x", with(newMeta()), []byte(body), Limits{})
			}
			reply := testenv.Must(parse(`{"slots":[{"i":1,"d":` + tc.value + `}]}`))(t)
			testenv.Same(t, reply.Slots[0].Err != nil, tc.deep, "%+v", reply)
			_, err := parse(`{"x":` + tc.value + `,"slots":[]}`)
			var bad *MalformedError
			if deep := errors.As(err, &bad) && bad.Reason == ReasonDepth; deep != tc.deep || err != nil && !deep {
				t.Errorf("%v", err)
			}
		})
	}
}

func nested(deep int) string { return strings.Repeat("[", deep) + strings.Repeat("]", deep) }

// A result that parsers read differently is the error of its item, with a code of its own. Names that appear twice are
// left to who stores them.
func TestFlawedResultsCostTheirItems(t *testing.T) {
	t.Parallel()
	body := []byte(`{"slots":[{"i":0,"d":` + nested(DefaultMaxDepth+1) + `},{"i":1,"d":{"a":["\ud83d"]}},` +
		"{\"i\":2,\"d\":\"M\xfcller\"}," + `{"i":3,"d":"\ud83d\ude00 \\ud83d"},{"i":4,"d":{"a":1,"a":2}},{"i":5,"d":1}]}`)
	reply := testenv.Must(ParseReply("tranche.reply.x", with(newMeta()), body, Limits{}))(t)
	testenv.MustSame(t, len(reply.Slots), 6, "%+v", reply)
	for i, want := range []string{CodeTooDeep, CodeLoneSurrogate, CodeNotUTF8, "", "", ""} {
		if slot := reply.Slots[i]; (want == "") != (slot.Err == nil) || (want == "") != (slot.Data != nil) ||
			want != "" && (slot.Err.Code != want || slot.Err.Retry) {
			t.Errorf("%d: %s, %+v; want %q", i, slot.Data, slot.Err, want)
		}
	}
	for value, want := range map[string]string{`{"a":1,"a":2}`: CodeDuplicateName, `{"a":`: CodeBadResult, `1`: "",
		`{"a":{"b":1,"b":"\ud83d"}}`: CodeLoneSurrogate, nested(DefaultMaxDepth): ""} {
		flaw := FlawOf([]byte(value), DefaultMaxDepth)
		if (flaw == nil) != (want == "") || flaw != nil && flaw.Slot().Code != want {
			t.Errorf("%s: %+v, want %q", value, flaw, want)
		}
	}
}

// TestSlotsAliasTheBody holds ParseReply to what it says of memory: the body is only read, and lives on in the slots.
func TestSlotsAliasTheBody(t *testing.T) {
	t.Parallel()
	h, body := benchReply(newMeta())
	before := bytes.Clone(body)
	reply := testenv.Must(ParseReply("tranche.reply.x", h, body, Limits{}))(t)
	if !bytes.Equal(body, before) {
		t.Fatal("the body was written to")
	}
	for _, slot := range reply.Slots {
		want := fmt.Sprintf(`{"account":%d,"opening":%[1]d.25,"closing":99.5,"movements":12,"name":"CUST-%[1]d"}`,
			slot.Ordinal)
		testenv.MustSame(t, string(slot.Data), want, "slot %d", slot.Ordinal)
		testenv.MustSame(t, cap(slot.Data), len(slot.Data), "room behind a slot")
	}
	at := bytes.Index(body, reply.Slots[0].Data)
	testenv.Same(t, &body[at], &reply.Slots[0].Data[0], "the slots were copied")
}

func TestMalformedErrorTellsTheByte(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"slots":[{"i":1,"d":truE}]}`: "byte 24",
		`{"slots":[{"i":x}]}`:          "byte 15",
		`{"slots":[{"i":-1,"d":1}]}`:   "byte 17",
		`{"slots":[{"d":1}]}`:          "byte 17",
		`{"slots":{}}`:                 "byte 10",
		`{"slots":[]} 1`:               "byte 14",
	} {
		_, err := ParseReply("tranche.reply.x", with(newMeta()), []byte(body), Limits{})
		if err == nil || !strings.Contains(err.Error(), want+" ") && !strings.Contains(err.Error(), want+":") &&
			!strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
}

func TestCompressedBodies(t *testing.T) {
	t.Parallel()
	meta := newMeta()
	h, body := benchReply(meta)
	h[HeaderEncoding] = []string{EncodingZstd}
	small := Compress(body)
	reply := testenv.Must(ParseReply("tranche.reply.x", h, small, Limits{}))(t)
	testenv.Same(t, len(reply.Slots), benchChunk, "slots")
	_, err := ParseReply("tranche.reply.x", h, small, Limits{MaxBody: len(body) - 1})
	tooLarge := func(what string, err error) {
		t.Helper()
		testenv.Same(t, testenv.As[*MalformedError](t, err, "%s", what).Reason, ReasonTooLarge, "%s", what)
	}
	tooLarge("a byte less", err)
	bomb := Compress(make([]byte, 100<<20))
	for _, frames := range []int{1, 2, 1000} { // of which nothing may be left over
		several := bytes.Repeat(Compress([]byte("0123456789")), frames)
		testenv.Same(t, len(testenv.Must(decompress(several, 10*frames))(t)), 10*frames, "%d frames: bytes", frames)
		_, err := decompress(several, 10*frames-1)
		tooLarge(fmt.Sprint(frames, " frames in a byte less"), err)
	}
	_, err = ParseReply("tranche.reply.x", h, bomb, Limits{})
	tooLarge("the bomb", err)
	r, err := ParseRequest(with(meta, HeaderEncoding, EncodingZstd), Compress([]byte(`{"items":[{"i":1,"k":"a","d":2}]}`)),
		Limits{})
	testenv.NoError(t, err)
	testenv.Same(t, len(r.Items), 1, "items")
}

// TestFramesThatDoNotSayTheirSize are what encoders of streams write.
func TestFramesThatDoNotSayTheirSize(t *testing.T) {
	t.Parallel()
	body := bytes.Repeat([]byte("0123456789"), 50_000)
	var frame bytes.Buffer
	w := testenv.Must(zstd.NewWriter(&frame))(t)
	testenv.Must(w.Write(body))(t)
	testenv.NoError(t, w.Close())
	var head zstd.Header
	if testenv.NoError(t, head.Decode(frame.Bytes())); head.HasFCS {
		t.Fatal("the frame says its size")
	}
	out, err := decompress(frame.Bytes(), DefaultMaxBody)
	if err != nil || !bytes.Equal(out, body) {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	_, err = decompress(frame.Bytes()[:frame.Len()-9], DefaultMaxBody)
	testenv.Fails(t, err, "half a frame is taken")
	_, err = decompress(frame.Bytes(), len(body)-1)
	testenv.Fails(t, err, "more than is allowed is taken")
}

// TestSizeOfAReplyTellsWhatItHolds has messages of few bytes hold many.
func TestSizeOfAReplyTellsWhatItHolds(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 8<<20)
	errors := strings.Repeat(`{"i":1,"e":{"code":"x","message":"`+strings.Repeat("m", MaxMessageLength)+`"}},`, 999)
	for name, tc := range map[string]struct {
		body string
		want int
	}{
		"a long result":   {`{"slots":[{"i":1,"d":"` + long + `"}]}`, len(long)},
		"a binary result": {`{"slots":[{"i":1,"b":"` + long + `"}]}`, len(long) + len(long)/4*3},
		"many results": {`{"slots":[{"i":1,"d":1}` + strings.Repeat(`,{"i":1,"d":1}`, 7999) + `]}`,
			8000 * (14 + slotSize)},
		"many errors": {`{"slots":[` + errors + `{"i":1,"d":1}]}`, 2 * 999 * MaxMessageLength},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			small := Compress([]byte(tc.body))
			reply, err := ParseReply("tranche.reply.x", with(newMeta(), HeaderEncoding, EncodingZstd), small, Limits{})
			testenv.NoError(t, err)
			if reply.Size < tc.want || reply.Size > 2*tc.want {
				t.Errorf("%d bytes became %d; want at least %d, and not twice that", len(small), reply.Size, tc.want)
			}
		})
	}
}

// TestDecompressionIsBounded looks at what a message can make its reader allocate. It is not parallel: others allocate
// too.
//
//nolint:paralleltest // see above
func TestDecompressionIsBounded(t *testing.T) {
	h := with(newMeta(), HeaderEncoding, EncodingZstd)
	refused := func(body []byte, limits Limits) func() {
		return func() {
			_, err := ParseReply("tranche.reply.x", h, body, limits)
			testenv.Same(t, testenv.As[*MalformedError](t, err, "it").Reason, ReasonTooLarge, "the reason")
		}
	}
	bomb := Compress(make([]byte, 60<<20))
	// A frame that says of itself that it has 32 GiB, in one segment.
	claim := []byte{0x28, 0xb5, 0x2f, 0xfd, 0xe0, 0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0}
	for name, tc := range map[string]struct {
		parse func()
		most  uint64
	}{
		"a bomb":           {refused(bomb, Limits{}), 3 * DefaultMaxBody},
		"many in one":      {refused(bytes.Repeat(Compress(make([]byte, 1<<10)), 60<<10), Limits{}), 3 * DefaultMaxBody},
		"an empty claim":   {refused(claim, Limits{}), 1 << 20},
		"a smaller limit":  {refused(Compress(make([]byte, 2<<20)), Limits{MaxBody: 1 << 20}), 4 << 20},
		"one byte too big": {refused(Compress(make([]byte, DefaultMaxBody+1)), Limits{}), 3 * DefaultMaxBody},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		tc.parse()
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > tc.most {
			t.Errorf("%s took %d bytes in all; want at most %d", name, took, tc.most)
		}
	}
}

// FuzzParseReply holds ParseReply to its promises: no panic, a *MalformedError or a sound reply, and nothing accepted
// that is not JSON to jsontext.
func FuzzParseReply(f *testing.F) {
	for _, seed := range []string{
		`{"slots":[{"i":17,"d":{"a":[1,-2.5e+3,true,null,"\ud83d\ude00"]}},` +
			`{"i":18,"e":{"code":"x","message":"y","retry":true}}]}`,
		`{"slots":[{"i":1,"t":"a/b","b":"JVBERg=="}],"error":{"code":"panic","message":"\u0000","retry":false}}`,
		`{"slots":[{"i":1,"d":"\\\"\u00e9"}]}`, `{"error":{"code":"x"}}`, `{"slots":[`, `{"slots":[{"i":01}]}`,
		`{"x":[[[[{"y":{}}]]]],"slots":[]}`, "", "{}", "null", "\xff",
	} {
		f.Add("tranche.reply.x", []byte(seed), "2", "", "")
		f.Add("tranche.reply.x", Compress([]byte(seed)), "", "zstd", "500")
	}
	meta := newMeta()
	f.Fuzz(func(t *testing.T, subject string, body []byte, final, encoding, code string) {
		h := with(meta, HeaderFinal, final, HeaderEncoding, encoding, HeaderErrorCode, code)
		reply, err := ParseReply(subject, h, body, Limits{MaxBody: 1 << 20, MaxDepth: 50})
		if err != nil {
			var bad *MalformedError
			if !errors.As(err, &bad) || bad.Reason == "" {
				t.Fatalf("error %v is not a MalformedError", err)
			}
			return
		}
		if encoding == "" && len(body) > 0 && !isJSON(body) {
			t.Fatalf("accepted %q, which is not JSON", body)
		}
		checkReply(t, reply)
	})
}

func isJSON(b []byte) bool { return jsontext.Value(b).IsValid(jsontext.AllowDuplicateNames(true)) }

func checkReply(t *testing.T, reply *Reply) {
	t.Helper()
	if reply.Answered >= 0 && reply.Answered < len(reply.Slots) || reply.Answered < -1 {
		t.Fatalf("answered %d with %d slots", reply.Answered, len(reply.Slots))
	}
	for _, s := range reply.Slots {
		switch {
		case s.Ordinal < 0, (s.Data == nil) == (s.Err == nil):
			t.Fatalf("slot %+v", s)
		case s.Err != nil && (!validCode(s.Err.Code) || s.Err.Message != cleanMessage(s.Err.Message)):
			t.Fatalf("error %+v", s.Err)
		case s.Err == nil && s.ContentType == "" && !isJSON(s.Data):
			t.Fatalf("data %q", s.Data)
		}
	}
}

// FuzzParseRequest does the same for requests.
func FuzzParseRequest(f *testing.F) {
	for _, seed := range []string{
		`{"items":[{"i":17,"k":"CUST-18","d":{"a":1}},{"d":null,"k":"\u00e9\"","i":0}]}`,
		`{"items":[]}`, `{"items":[{"i":1,"k":"a"}]}`, `{"items":{}}`, `{"items":[{"i":1,"k":"a","d":1}],"items":[]}`,
		`{"items":[{"i":1,"k":"a","d":1,"d":2}]}`, `{"params":{"a":"b","c":""},"items":[{"i":1,"k":"a","d":1}]}`,
		`{"items":[{"i":1,"k":"a","p":{"x":{"d":[1]},"y":{"t":"image/png","b":"AAE="}}},{"i":2,"k":"b","d":0,"p":{}}]}`,
		`{"items":[{"i":1,"k":"a","p":{"x":{"d":1},"x":{"b":""}}}]}`, `{"items":[{"i":1,"k":"a","p":{"x":{"t":"a/b"}}}]}`,
	} {
		f.Add([]byte(seed), "")
		f.Add(Compress([]byte(seed)), "zstd")
	}
	meta := newMeta()
	f.Fuzz(func(t *testing.T, body []byte, encoding string) {
		r, err := ParseRequest(with(meta, HeaderEncoding, encoding), body, Limits{MaxBody: 1 << 20, MaxDepth: 50})
		if err != nil {
			var bad *MalformedError
			if !errors.As(err, &bad) || r != nil && len(r.Items) > 0 {
				t.Fatalf("error %v with %+v", err, r)
			}
			return
		}
		if encoding == "" && !isJSON(body) {
			t.Fatalf("accepted %q, which is not JSON", body)
		}
		for _, item := range r.Items {
			if item.Ordinal < 0 || item.Payload != nil && !isJSON(item.Payload) || item.Payload == nil && item.Parts == nil {
				t.Fatalf("item %+v", item)
			}
			checkParts(t, item.Parts)
		}
	})
}

// checkParts holds parts that were taken to their rule.
func checkParts(t *testing.T, all Parts) {
	t.Helper()
	seen := map[string]bool{}
	for _, p := range all {
		if seen[p.Name] || p.ContentType == "" && !isJSON(p.Data) || p.ContentType != "" && !ValidContentType(p.ContentType) {
			t.Fatalf("part %+v of %+v", p, all)
		}
		seen[p.Name] = true
	}
	if len(all) > MaxParts {
		t.Fatalf("%d parts", len(all))
	}
}

func TestRequestBuilderRoundTrip(t *testing.T) {
	t.Parallel()
	meta := newMeta()
	b := NewRequestBuilder("statement", meta, 1<<20)
	keys := []string{"CUST-1", `quote " and \`, "tab\t", "é\u2028", "", "bad \xff"}
	for i, key := range keys {
		if !b.Add(i*7, key, fmt.Appendf(nil, `{"n":%d}`, i)) {
			t.Fatal("does not fit")
		}
	}
	b.Add(99, "no payload", nil)
	msg := b.Msg()
	if msg.Subject != "tranche.work.statement" || msg.Header.Get(HeaderMsgID) != meta.Slice.String() {
		t.Errorf("subject %s, headers %v", msg.Subject, msg.Header)
	}
	r := testenv.Must(ParseRequest(msg.Header, msg.Data, Limits{}))(t)
	if r.Meta != meta || len(r.Items) != len(keys)+1 || b.Len() != len(keys)+1 || b.Size() != len(msg.Data) {
		t.Fatalf("%+v", r)
	}
	for i, key := range keys {
		if got := r.Items[i]; got.Key != strings.ToValidUTF8(key, "\uFFFD") || got.Ordinal != i*7 ||
			string(got.Payload) != fmt.Sprintf(`{"n":%d}`, i) {
			t.Errorf("item %d: %+v", i, got)
		}
	}
	testenv.Same(t, string(r.Items[len(keys)].Payload), "null", "an empty payload is not null")
}

func TestRequestCarriesTheParamsOfTheRun(t *testing.T) {
	t.Parallel()
	b := NewRequestBuilder("x", newMeta(), 1<<20)
	b.Add(0, "dropped", nil)
	b.SetParams([]byte(`{"year": "2026", "é\"": ""}`))
	b.Add(1, "k", []byte("2"))
	msg := b.Msg()
	testenv.Same(t, string(msg.Data), `{"params":{"year": "2026", "é\"": ""},"items":[{"i":1,"k":"k","d":2}]}`,
		"the body")
	r := testenv.Must(ParseRequest(msg.Header, msg.Data, Limits{}))(t)
	if want := map[string]string{"year": "2026", `é"`: ""}; !reflect.DeepEqual(r.Params, want) || len(r.Items) != 1 {
		t.Errorf("%+v", r)
	}
	for _, params := range []string{"", "none"} {
		if b.Reset("x", newMeta(), 1<<20); params == "" {
			b.SetParams(nil)
		}
		testenv.Same(t, string(b.Msg().Data), `{"items":[]}`, "without params")
	}
}

func TestHeaderSizeIsWhatNATSCounts(t *testing.T) {
	t.Parallel()
	msg := &nats.Msg{Subject: "s", Header: newMeta().Request()}
	testenv.Same(t, HeaderSize(msg.Header), msg.Size()-len(msg.Subject), "bytes of the headers")
}

func TestValidateName(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"statement": true, "A-z_09": true, strings.Repeat("x", 64): true,
		"": false, "a.b": false, "a b": false, "*": false, ">": false, "é": false, strings.Repeat("x", 65): false,
	} {
		err := ValidateName(name)
		var bad *NameError
		if (err == nil) != ok || err != nil && !errors.As(err, &bad) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func benchReply(meta Meta) (nats.Header, []byte) {
	var b strings.Builder
	b.WriteString(`{"slots":[`)
	for i := range benchChunk {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"i":%d,"d":{"account":%d,"opening":%d.25,"closing":99.5,"movements":12,"name":"CUST-%d"}}`,
			i, i, i, i)
	}
	b.WriteString(`]}`)
	h := meta.Reply()
	h[HeaderFinal] = []string{fmt.Sprint(benchChunk)}
	return h, []byte(b.String())
}

const benchChunk = 500

const someParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func newMeta() Meta {
	slice := uuid.New()
	return Meta{Run: uuid.New(), Slice: slice, Step: 0, Attempt: 1, Generation: 1, Mode: ModeBatch, Root: slice,
		Deliveries: DefaultDeliveries}
}
