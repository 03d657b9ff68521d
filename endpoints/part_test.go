package endpoints

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/endpoints/wire"
)

func TestPartOf(t *testing.T) {
	t.Parallel()
	info := ItemInfo{parts: wire.Parts{{Name: "json", Part: wire.Part{Data: []byte(`{"n":7}`)}},
		{Name: "png", Part: wire.Part{Data: []byte{9}, ContentType: "image/png"}}}}
	type number struct {
		N int `json:"n"`
	}
	if n, there, err := PartOf[number](info, "json"); n.N != 7 || !there || err != nil {
		t.Errorf("%+v, %v, %v", n, there, err)
	}
	if n, there, err := PartOf[number](info, "other"); n.N != 0 || there || err != nil {
		t.Errorf("a part that is not there: %+v, %v, %v", n, there, err)
	}
	for name, want := range map[string]wire.Binary{
		"json": {ContentType: "application/json", Data: []byte(`{"n":7}`)}, "png": {ContentType: "image/png",
			Data: []byte{9}},
	} {
		if b, there, err := PartOf[wire.Binary](info, name); !reflect.DeepEqual(b, want) || !there || err != nil {
			t.Errorf("%+v, %v, %v", b, there, err)
		}
	}
	for name, says := range map[string]string{"json": "does not fit", "png": "it is image/png, which does not fit"} {
		_, there, err := PartOf[struct {
			N string `json:"n"`
		}](info, name)
		var slot *wire.SlotError
		if !errors.As(err, &slot) || slot.Code != wire.CodeBadPart || slot.Retry || !there ||
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
		HandleList(svc, "list", each(func(item *Item[none, string]) { item.Reply(sum(item)) })),
		HandleFlow(svc, "flow", []func(context.Context, *stage) error{
			perItem(func(item *StageItem[none, string, string, None]) {
				item.State = sum(item)
				item.Next()
			}),
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
	b.Run(svc)
	for _, endpoint := range []string{"each", "list", "flow"} {
		request := wire.NewRequestBuilder(endpoint, newMeta(), 1<<20)
		request.Part("n", wire.Part{Data: []byte("5")})
		request.AddParts(0, "A", nil)
		request.AddParts(1, "B", nil)
		b.publish(request.Msg())
		got := map[int]string{}
		for ordinal, slot := range b.collect(1)[request.Meta.Slice].slots {
			got[ordinal] = string(slot.Data)
		}
		if want := (map[int]string{0: `"5 true <nil>"`, 1: `"0 false <nil>"`}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v", endpoint, got)
		}
	}
}
