package wire

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

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
	if string(msg.Data) != want {
		t.Errorf("got  %s\nwant %s", msg.Data, want)
	}
	r, err := ParseRequest(msg.Header, msg.Data, Limits{})
	check(t, err)
	if want := []rawItem{
		{17, "A", []byte("2"), Parts{{"accounts", Part{[]byte(`{"n":1}`), ""}}, {"logo", Part{[]byte{0, 1}, "image/png"}}}},
		{18, "B", nil, Parts{}},
		{19, "C", nil, Parts{{"accounts", Part{[]byte("null"), ""}}}},
		{20, "D", []byte("null"), nil},
	}; !reflect.DeepEqual(r.Items, want) {
		t.Errorf("got %+v", r.Items)
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
	if r, err := ParseRequest(msg.Header, msg.Data, Limits{}); err != nil || len(r.Items) != b.Len() {
		t.Errorf("%v", err)
	}
}

func TestRequestRefusesOddParts(t *testing.T) {
	t.Parallel()
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
		`{"a":{"d":1,"d":1}}`:               ReasonSlot,
		`{"a":{"d":1},"\u0061":{"d":1}}`:    ReasonSlot,
		`{"a":{"d":1}},"p":{}`:              ReasonSlot,
		`{` + strings.Join(many, ",") + `}`: ReasonTooMany,
		`{"a":{"d":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}}`: ReasonDepth,
	} {
		r, err := ParseRequest(with(newMeta()), []byte(`{"items":[{"i":1,"k":"k","p":`+parts+`}]}`), Limits{})
		var bad *MalformedError
		if !errors.As(err, &bad) || bad.Reason != reason || len(r.Items) != 0 {
			t.Errorf("%.60s: %v, want %s", parts, err, reason)
		}
	}
}
