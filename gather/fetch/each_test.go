package fetch_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
)

func request(payloads ...string) *fetch.Request {
	req := &fetch.Request{Run: uuid.New(), Step: "compose", StepNumber: 3, Generation: 2,
		Params: map[string]string{"year": "2026"}}
	for i, p := range payloads {
		req.Items = append(req.Items, fetch.Item{Ordinal: i, Key: "K" + p, Payload: []byte(p),
			Parts: map[string]fetch.Part{"account": {Data: []byte(`{"no":` + p + `}`)}}})
	}
	return req
}

func TestEach(t *testing.T) {
	t.Parallel()
	var panics []fetch.Panic
	ctx := fetch.ReportPanics(t.Context(), func(p fetch.Panic) { panics = append(panics, p) })
	f := fetch.Each(func(_ context.Context, item *fetch.Item) (fetch.Part, error) {
		switch item.Ordinal {
		case 1:
			return fetch.Part{}, endpoints.Retry("busy", "later")
		case 2:
			panic("out of paper")
		case 3:
			return fetch.Part{}, errors.New("no such\x00 customer")
		}
		var account struct {
			No int `json:"no"`
		}
		if there, err := item.DecodePart("account", &account); !there || err != nil {
			return fetch.Part{}, err
		}
		return fetch.Part{Data: []byte(item.Param("year") + item.Key), ContentType: "text/plain"}, nil
	})
	slots, err := f.Fetch(ctx, request("10", "11", "12", "13"))
	if err != nil || len(slots) != 4 {
		t.Fatalf("%d slots, %v", len(slots), err)
	}
	if got := string(slots[0].Data); got != "2026K10" || slots[0].ContentType != "text/plain" || slots[0].Err != nil {
		t.Errorf("slot 0: %q %+v", got, slots[0])
	}
	for i, want := range []wire.SlotError{
		1: {Code: "busy", Message: "later", Retry: true},
		2: {Code: wire.CodePanic, Message: "the function panicked: out of paper"},
		3: {Code: wire.CodeHandlerError, Message: "no such\uFFFD customer"},
	} {
		if i > 0 && *slots[i].Err != want {
			t.Errorf("slot %d: %+v, want %+v", i, *slots[i].Err, want)
		}
	}
	if len(panics) != 1 || panics[0].Ordinal != 2 || !strings.Contains(string(panics[0].Stack), "each_test") {
		t.Errorf("panics: %+v", panics)
	}
}

// What a context cuts short is no one's error: the items are retried.
func TestEachEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	slots, err := fetch.Each(func(ctx context.Context, item *fetch.Item) (fetch.Part, error) {
		if item.Ordinal == 1 {
			cancel()
			return fetch.Part{}, ctx.Err()
		}
		return fetch.Part{Data: []byte("1")}, nil
	}).Fetch(ctx, request("1", "2", "3"))
	if len(slots) != 1 || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", slots, err)
	}
	if e := fetch.ErrorOf(err, false); e.Code != wire.CodeTimeout || !e.Retry {
		t.Errorf("%+v", e)
	}
}

func TestTyped(t *testing.T) {
	t.Parallel()
	type in struct{ Amount int }
	slots, err := fetch.Typed(func(_ context.Context, in in, item *fetch.Item) (map[string]any, error) {
		return map[string]any{"twice": 2 * in.Amount, "key": item.Key[:1] + "x" + item.Param("year")}, nil
	}).Fetch(t.Context(), request(`{"Amount":21}`, `"no object"`))
	if err != nil || len(slots) != 2 || slots[0].Err != nil || slots[1].Err == nil {
		t.Fatalf("%+v, %v", slots, err)
	}
	var out map[string]any
	err = fetch.Part{Data: slots[0].Data}.Decode(&out)
	if err != nil || out["twice"] != 42.0 || out["key"] != "Kx2026" {
		t.Errorf("%v, %v", out, err)
	}
	if slots[1].Err.Code != wire.CodeBadPayload {
		t.Errorf("%+v", slots[1].Err)
	}
	slots, err = fetch.Typed(func(context.Context, any, *fetch.Item) (wire.Binary, error) {
		return wire.Binary{Data: []byte("%PDF")}, nil
	}).Fetch(t.Context(), request("1"))
	if err != nil || slots[0].ContentType != wire.DefaultBinaryType || string(slots[0].Data) != "%PDF" {
		t.Errorf("%+v, %v", slots, err)
	}
}

func TestGuard(t *testing.T) {
	t.Parallel()
	slots, err := fetch.Guard(t.Context(), fetch.Func(func(context.Context, *fetch.Request) ([]fetch.Slot, error) {
		panic("whole chunk")
	}), request("1"))
	if e := fetch.ErrorOf(err, false); len(slots) != 0 || e.Code != wire.CodePanic || !e.Retry {
		t.Errorf("%v, %+v", slots, e)
	}
}
