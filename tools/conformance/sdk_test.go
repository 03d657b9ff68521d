package conformance

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

type instruction struct {
	Do      string          `json:"do"`
	Value   json.RawMessage `json:"value"`
	Code    string          `json:"code"`
	Message string          `json:"message"`
	Retry   bool            `json:"retry"`
	N       int             `json:"n"`
	Type    string          `json:"type"`
	MS      int             `json:"ms"`
	Name    string          `json:"name"`
}

// obey is the contract in Go, by the SDK.
func obey(ctx context.Context, chunk *endpoints.Chunk[instruction, any]) error {
	for _, item := range chunk.Items() {
		in := item.In
		switch in.Do {
		case "hello":
			item.Reply(map[string]int{"conformance": 1})
		case "echo":
			item.Reply(in.Value)
		case "info":
			item.Reply(itemInfo{item.Key, chunk.Params(), item.Info().IdempotencyKey()})
		case "fail":
			item.Fail(in.Code, "%s", in.Message)
		case "retry":
			item.Retry(in.Code, "%s", in.Message)
		case "skip":
		case "twice":
			item.Reply("first")
			item.Reply("second")
		case "bytes":
			item.Reply(wire.Binary{Data: counting(in.N), ContentType: in.Type})
		case "big":
			item.Reply(strings.Repeat("x", in.N))
		case "partial":
			item.Reply("sent")
			chunk.Flush()
		case "part":
			part, _, err := item.Part(ctx, in.Name)
			if err != nil {
				return err
			}
			if part.ContentType != "" {
				item.Reply(wire.Binary{Data: part.Data, ContentType: part.ContentType})
			} else {
				item.Reply(json.RawMessage(part.Data))
			}
		case "slow":
			_ = backoff.Sleep(ctx, time.Duration(in.MS)*time.Millisecond)
			item.Reply(map[string]int{"slept": in.MS})
		case "fail-chunk":
			if in.Retry {
				return endpoints.Retry(in.Code, "%s", in.Message)
			}
			return endpoints.Fail(in.Code, "%s", in.Message)
		default:
			item.Fail("unknown_order", "do is %.40q", in.Do)
		}
	}
	return nil
}

func counting(n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i)
	}
	return data
}

func serveSDK(ctx context.Context, nc *nats.Conn) error {
	svc, err := endpoints.New(nc, endpoints.Config{Name: "under-test", Version: "1.0.0"})
	if err != nil {
		return err
	}
	if err := endpoints.HandleList(svc, endpoint, obey, endpoints.Concurrency(4)); err != nil {
		return err
	}
	return svc.Run(ctx)
}

func TestSDKPasses(t *testing.T) {
	t.Parallel()
	report := suite(t, Config{service: start(serveSDK)})
	expect(t, report, nil, nil)
	testenv.Same(t, len(report.Results), len(Names()), "checks ran")
}

func TestSDKPassesOnAServerOfOthers(t *testing.T) {
	t.Parallel()
	ns := testenv.NATS(t)
	nc := testenv.Conn(t, ns)
	n := &node{config: Config{Endpoint: endpoint, lasting: patiently}, nc: nc, js: testenv.Must(jetstream.New(nc))(t)}
	testenv.NoError(t, n.makeStreams(t.Context()))
	svc := testenv.Must(start(serveSDK)(ns.URL()))(t)
	defer svc.Stop(stopTimeout)
	report := suite(t, Config{URL: ns.URL()})
	expect(t, report, nil, needing(needPrivate))
	for subject, stream := range n.subjects() {
		held, err := n.held(t.Context(), stream, subject)
		if err != nil || held > 0 {
			t.Errorf("%d messages of %s are left in %s (%v)", held, subject, stream, err)
		}
	}
}

func TestItemsAreMadeFromTheSchemaThatIsAnnounced(t *testing.T) {
	t.Parallel()
	type account struct {
		ID string `json:"id"`
		N  int    `json:"n,omitempty"`
	}
	serve := func(add func(*endpoints.Service) error) starter {
		return start(func(ctx context.Context, nc *nats.Conn) error {
			svc, err := endpoints.New(nc, endpoints.Config{Name: "under-test", Version: "1.0.0"})
			if err == nil {
				err = add(svc)
			}
			if err != nil {
				return err
			}
			return svc.Run(ctx)
		})
	}
	report := suite(t, Config{Only: []string{"list"}, service: serve(func(s *endpoints.Service) error {
		return endpoints.HandleEach(s, endpoint, func(_ context.Context, in account) (account, error) { return in, nil })
	})})
	expect(t, report, nil, nil)
	if len(report.Items) != 5 || string(report.Items[1]) != `{"id":""}` || report.NoItems {
		t.Errorf("made were %s", report.Items)
	}
	report = suite(t, Config{Only: []string{"list"}, service: serve(func(s *endpoints.Service) error {
		return endpoints.HandleEach(s, endpoint, func(_ context.Context, in any) (any, error) { return in, nil })
	})})
	testenv.Same(t, len(report.Items) == 0 && report.NoItems, true, "nothing could be made of no schema")
}
