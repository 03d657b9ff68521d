package endpointstest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// verdict is a test of which only the verdict counts.
type verdict struct {
	testing.TB
	text string
}

func (v *verdict) Helper() {}

func (v *verdict) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

func (v *verdict) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (v *verdict) Errorf(format string, args ...any) { v.text += fmt.Sprintf(format, args...) }

// await waits for a handler, for longer than the test has patience.
func (v *verdict) await(begun <-chan struct{}) {
	select {
	case <-begun:
	case <-time.After(endpointstest.DefaultTimeout):
		v.Fatal("the handler was never called")
	}
}

// of returns how a test that does f ends.
func of(t *testing.T, f func(*verdict)) (text string) {
	t.Helper()
	v := &verdict{TB: t}
	defer func() {
		text = v.text
		if value := recover(); value != nil {
			text += fmt.Sprint(value)
		}
	}()
	f(v)
	return v.text
}

// shortly is the patience of a test that expects a timeout.
const shortly = 200 * time.Millisecond

func TestVerdicts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		f    func(*verdict)
		want []string
	}{
		"no one serves": {func(v *verdict) {
			endpointstest.New(v, endpointstest.Timeout(shortly)).Send("books", endpointstest.Item("A", 1))
		}, []string{"no reply of endpoint books to a request with 1 items", "no instance has served the endpoint"}},
		"stopped": {func(v *verdict) {
			kit := endpointstest.New(v, endpointstest.Timeout(10*shortly))
			begun := make(chan struct{})
			instance := kit.Serve(func(svc *endpoints.Service) error {
				return endpoints.HandleList(svc, "books", func(context.Context, *endpoints.Chunk[int, int]) error {
					close(begun)
					return nil
				})
			})
			kit.Post("books", endpointstest.Item("A", 1))
			v.await(begun)
			instance.Stop()
			kit.Send("books", endpointstest.Item("A", account{Balance: 1}))
		}, []string{"1 requests wait to be fetched", "no instance serves the endpoint now"}},
		"hangs": {func(v *verdict) {
			kit := endpointstest.New(v, endpointstest.Timeout(10*shortly))
			begun := make(chan struct{})
			kit.Serve(func(svc *endpoints.Service) error {
				return endpoints.HandleList(svc, "hangs", func(ctx context.Context, _ *endpoints.Chunk[int, int]) error {
					close(begun)
					<-ctx.Done()
					return nil
				})
			})
			pending := kit.Post("hangs", endpointstest.Item("A", 1))
			v.await(begun)
			pending.Wait()
		}, []string{"1 are at work"}},
		"no one to kill": {func(v *verdict) {
			endpointstest.New(v, endpointstest.Timeout(shortly)).KillBetween("books", 1).Wait()
		}, []string{"none that acknowledges stage 1 of endpoint books"}},
		"bad registration": {func(v *verdict) {
			endpointstest.New(v).Serve(func(*endpoints.Service) error { return endpoints.Fail("no", "way") })
		}, []string{"make the service: no: way"}},
		"no JSON": {func(v *verdict) {
			endpointstest.New(v).Post("books", endpointstest.Item("A", make(chan int)))
		}, []string{"the payload of item A cannot be written as JSON"}},
		"too big": {func(v *verdict) {
			endpointstest.New(v).Post("books", endpointstest.Item("A", strings.Repeat("x", 1<<20)))
		}, []string{"item A does not fit the request to endpoint books"}},
		"unknown key": {func(v *verdict) {
			kit := endpointstest.New(v)
			kit.PostReissue(kit.Post("books", endpointstest.Item("A", 1)).Request, "B")
		}, []string{`the request has not all of the items ["B"]`}},
		"no dead letter": {func(v *verdict) {
			endpointstest.New(v, endpointstest.Timeout(shortly)).DeadLetter()
		}, []string{"there was no dead letter"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := of(t, c.f)
			for _, want := range c.want {
				testenv.Has(t, got, want, "the test ends with")
			}
		})
	}
}

func TestResultVerdicts(t *testing.T) {
	t.Parallel()
	request := &endpointstest.Request{Keys: map[int]string{0: "text", 1: "error", 2: "binary", 3: "missing"}}
	reply := &endpointstest.Reply{Request: request, Slots: []wire.Slot{
		{Ordinal: 0, Data: json.RawMessage(`"x"`)},
		{Ordinal: 1, Err: &wire.SlotError{Code: "closed", Message: "since May"}},
		{Ordinal: 2, Data: []byte("x"), ContentType: "image/png"},
	}}
	for key, want := range map[string]string{
		"text": "does not fit *int", "error": "closed: since May", "binary": "read it as endpoints.Binary",
		"missing": "it was left out", "unheard": "it was left out",
	} {
		testenv.Has(t, of(t, func(v *verdict) { endpointstest.Result[int](v, reply, key) }), want, "%s: the test ends with",
			key)
	}
	reply.Failure = &wire.SlotError{Code: "db_down", Message: "no connection"}
	got := of(t, func(v *verdict) { endpointstest.Result[int](v, reply, "missing") })
	testenv.Has(t, got, "db_down", "the test ends with")
}

func TestDeadLetter(t *testing.T) {
	t.Parallel()
	kit := endpointstest.New(t, endpointstest.Timeout(patience))
	kit.Serve(func(svc *endpoints.Service) error { return endpoints.HandleList(svc, "books", closeBooks) })
	single := endpointstest.Meta(func(m *wire.Meta) { m.Mode = wire.ModeSingle })
	reply := kit.Send("books", single, endpointstest.Item("A", "no account"))
	letter := kit.DeadLetter()
	if letter.Endpoint != "books" || letter.Cause != wire.CodeBadPayload || letter.Slice != reply.Request.Slice {
		t.Errorf("the letter is %+v", letter)
	}
	if err := reply.Err("A"); err == nil || err.Code != wire.CodeBadPayload {
		t.Errorf("the reply is %+v", reply)
	}
}
