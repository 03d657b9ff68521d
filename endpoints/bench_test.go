package endpoints

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

const benchChunk = 500

func benchMeta() wire.Meta {
	return wire.Meta{Run: uuid.New(), Slice: uuid.New(), Attempt: 1, Generation: 1, Mode: wire.ModeBatch}
}

type benchIn struct {
	Account int    `json:"account"`
	Branch  int    `json:"branch"`
	Name    string `json:"name"`
}

type benchOut struct {
	Account int    `json:"account"`
	Name    string `json:"name"`
}

// benchJob returns a job that no server knows, with a chunk of 500 items.
func benchJob(b *testing.B) (*serve.Server, nats.Header, []byte) {
	b.Helper()
	meta := benchMeta()
	builder := wire.NewRequestBuilder("echo", meta, 1<<20)
	for i := range benchChunk {
		builder.Add(i, fmt.Sprintf("CUST-%d", i), fmt.Appendf(nil, `{"account":%d,"branch":3,"name":"CUST-%d"}`, i, i))
	}
	msg := builder.Msg()
	h := &serve.Host{NC: &nats.Conn{}, Outbox: serve.NewOutbox(nil, nil), Suspects: serve.NewSuspects(), Log: zap.NewNop()}
	return &serve.Server{Name: "echo", Host: h, Settings: serve.Settings{FlushBytes: 1 << 30, Timeout: DefaultTimeout},
		Log: zap.NewNop()}, msg.Header, msg.Data
}

// benchServe measures all that the SDK does for a chunk short of NATS: decode, call, encode.
func benchServe(b *testing.B, slots int, begin func(*serve.Job) serve.Work) {
	b.Helper()
	e, h, body := benchJob(b)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		request := testenv.Must(wire.ParseRequest(h, body, wire.Limits{}))(b)
		j := &serve.Job{Host: e.Host, Origin: serve.Queued{}, Endpoint: e.Name, Request: request, Timeout: DefaultTimeout,
			Log: e.Log, Started: time.Now()}
		e.Prepare(ctx, &j.Answers, request.Meta, wire.Trace{})
		j.Answers.Limit = 1 << 20
		if failure, begun := begin(j).Run(ctx, serve.NewSlots(slots, 0), nil); failure != nil || !begun {
			b.Fatal(failure)
		}
		testenv.MustSame(b, j.Answers.Final(nil).Header.Get(wire.HeaderFinal), fmt.Sprint(benchChunk), "not all was answered")
		serve.Buffers.Put(j.Answers.Buf)
		e.Stats.Add(benchChunk, benchChunk, j.Answers.Errors, time.Since(j.Started))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchChunk, "ns/item")
}

// BenchmarkServeList measures HandleList with an echo, an item of a chunk of 500.
func BenchmarkServeList(b *testing.B) {
	benchServe(b, 1, func(j *serve.Job) serve.Work {
		return &listWork[benchIn, benchOut]{job: j, chunk: newChunk[benchIn, benchOut](j),
			handler: each(func(item *Item[benchIn, benchOut]) { item.Reply(benchOut{item.In.Account, item.In.Name}) })}
	})
}

// BenchmarkServeEach measures HandleEach with an echo, an item of a chunk of 500.
func BenchmarkServeEach(b *testing.B) {
	for _, slots := range []int{1, 8} {
		b.Run(fmt.Sprintf("concurrency=%d", slots), func(b *testing.B) {
			benchServe(b, slots, func(j *serve.Job) serve.Work {
				return &eachWork[benchIn, benchOut]{job: j, chunk: newChunk[benchIn, benchOut](j),
					exhausted: make(chan struct{}),
					handler: func(_ context.Context, in benchIn) (benchOut, error) {
						return benchOut{in.Account, in.Name}, nil
					}}
			})
		})
	}
}
