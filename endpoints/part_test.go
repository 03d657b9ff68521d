package endpoints

import (
	"context"
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
	r, err := parseRequest(msg.Header, msg.Data, Limits{})
	check(t, err)
	if want := []rawItem{
		{17, "A", []byte("2"), parts{{"accounts", Part{[]byte(`{"n":1}`), ""}}, {"logo", Part{[]byte{0, 1}, "image/png"}}}},
		{18, "B", nil, parts{}},
		{19, "C", nil, parts{{"accounts", Part{[]byte("null"), ""}}}},
		{20, "D", []byte("null"), nil},
	}; !reflect.DeepEqual(r.items, want) {
		t.Errorf("got %+v", r.items)
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
	if size := len(msg.Data) + headerSize(msg.Header); size > limit-400 || size < limit-headerReserve-80 {
		t.Errorf("the message takes %d bytes of %d", size, limit)
	}
	if r, err := parseRequest(msg.Header, msg.Data, Limits{}); err != nil || len(r.items) != b.Len() {
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
		r, err := parseRequest(with(newMeta()), []byte(`{"items":[{"i":1,"k":"k","p":`+parts+`}]}`), Limits{})
		var bad *MalformedError
		if !errors.As(err, &bad) || bad.Reason != reason || len(r.items) != 0 {
			t.Errorf("%.60s: %v, want %s", parts, err, reason)
		}
	}
}

func TestPartOf(t *testing.T) {
	t.Parallel()
	info := ItemInfo{parts: parts{{"json", Part{Data: []byte(`{"n":7}`)}}, {"png", Part{[]byte{9}, "image/png"}}}}
	type number struct {
		N int `json:"n"`
	}
	if n, there, err := PartOf[number](info, "json"); n.N != 7 || !there || err != nil {
		t.Errorf("%+v, %v, %v", n, there, err)
	}
	if n, there, err := PartOf[number](info, "other"); n.N != 0 || there || err != nil {
		t.Errorf("a part that is not there: %+v, %v, %v", n, there, err)
	}
	for name, want := range map[string]Binary{
		"json": {"application/json", []byte(`{"n":7}`)}, "png": {"image/png", []byte{9}},
	} {
		if b, there, err := PartOf[Binary](info, name); !reflect.DeepEqual(b, want) || !there || err != nil {
			t.Errorf("%+v, %v, %v", b, there, err)
		}
	}
	for name, says := range map[string]string{"json": "does not fit", "png": "it is image/png, which does not fit"} {
		_, there, err := PartOf[struct {
			N string `json:"n"`
		}](info, name)
		var slot *SlotError
		if !errors.As(err, &slot) || slot.Code != CodeBadPart || slot.Retry || !there ||
			!strings.Contains(slot.Message, says) {
			t.Errorf("%s: %v, %v", name, there, err)
		}
	}
}

// Handlers of every form see the parts; a flow in its first stage only.
func TestHandlersSeeParts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	type none struct{}
	type stage = Stage[none, string, string, None]
	sum := func(item HasParts) string {
		n, there, err := PartOf[int](item, "n")
		return fmt.Sprintf("%d %v %v", n, there, err)
	}
	svc := b.service()
	check(t, errors.Join(
		HandleEach(svc, "each", func(ctx context.Context, _ none) (string, error) { return sum(ItemOf(ctx)), nil }),
		HandleList(svc, "list", func(_ context.Context, c *Chunk[none, string]) error {
			for _, item := range c.Items() {
				item.Reply(sum(item))
			}
			return nil
		}),
		HandleFlow(svc, "flow", []func(context.Context, *stage) error{
			func(_ context.Context, s *stage) error {
				for _, item := range s.Items() {
					item.State = sum(item)
					item.Next()
				}
				return nil
			},
			func(_ context.Context, s *stage) error {
				for _, item := range s.Items() {
					if _, there := item.Part("n"); there {
						return errors.New("the part is there in a later stage")
					}
					item.Reply(item.State)
				}
				return nil
			},
		})))
	b.run(svc)
	for _, endpoint := range []string{"each", "list", "flow"} {
		request := NewRequestBuilder(endpoint, newMeta(), 1<<20)
		request.Part("n", Part{Data: []byte("5")})
		request.AddParts(0, "A", nil)
		request.AddParts(1, "B", nil)
		b.publish(request.Msg())
		got := map[int]string{}
		for ordinal, slot := range b.collect(1)[request.meta.Slice].slots {
			got[ordinal] = string(slot.Data)
		}
		if want := (map[int]string{0: `"5 true <nil>"`, 1: `"0 false <nil>"`}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v", endpoint, got)
		}
	}
}
