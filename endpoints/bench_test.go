package endpoints

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

const benchChunk = 500

func benchMeta() Meta {
	return Meta{Run: uuid.New(), Slice: uuid.New(), Attempt: 1, Generation: 1, Mode: ModeBatch}
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
	h := meta.reply()
	h[HeaderFinal] = []string{fmt.Sprint(benchChunk)}
	return h, []byte(b.String())
}

// BenchmarkParseReply measures what a node pays to read a reply of 500 slots.
func BenchmarkParseReply(b *testing.B) {
	h, body := benchReply(benchMeta())
	subject := ReplySubject("statement")
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		reply, err := ParseReply(subject, h, body, Limits{})
		if err != nil || len(reply.Slots) != benchChunk {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchChunk, "ns/slot")
}

// BenchmarkJSONTextScan is a bound: the same body only checked by jsontext, without reading a slot.
func BenchmarkJSONTextScan(b *testing.B) {
	_, body := benchReply(benchMeta())
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if !jsontext.Value(body).IsValid() {
			b.Fatal("not valid")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchChunk, "ns/slot")
}

// BenchmarkRequestBuilder measures what a node pays to write a request of 500 items.
func BenchmarkRequestBuilder(b *testing.B) {
	meta := benchMeta()
	payload := []byte(`{"account":17,"branch":3,"name":"CUST-17"}`)
	builder := NewRequestBuilder("statement", meta, 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		builder.Reset("statement", meta, 1<<20)
		for i := range benchChunk {
			if !builder.Add(i, "CUST-17", payload) {
				b.Fatal("does not fit")
			}
		}
		builder.Msg()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchChunk, "ns/item")
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
func benchJob(b *testing.B) (*endpointServer, nats.Header, []byte) {
	b.Helper()
	meta := benchMeta()
	builder := NewRequestBuilder("echo", meta, 1<<20)
	for i := range benchChunk {
		builder.Add(i, fmt.Sprintf("CUST-%d", i), fmt.Appendf(nil, `{"account":%d,"branch":3,"name":"CUST-%d"}`, i, i))
	}
	msg := builder.Msg()
	svc := &Service{config: Config{}.withDefaults(), nc: &nats.Conn{}, outbox: newOutbox(nil, nil),
		suspects: newSuspects()}
	return &endpointServer{name: "echo", service: svc, options: options{flushBytes: 1 << 30, timeout: DefaultTimeout},
		log: zap.NewNop()}, msg.Header, msg.Data
}

// benchServe measures all that the SDK does for a chunk short of NATS: decode, call, encode.
func benchServe(b *testing.B, slots int, begin func(*job) work) {
	b.Helper()
	e, h, body := benchJob(b)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		request, err := parseRequest(h, body, Limits{})
		if err != nil {
			b.Fatal(err)
		}
		j := &job{service: e.service, origin: queued{}, endpoint: e.name, request: request, timeout: DefaultTimeout,
			log: e.log, started: time.Now()}
		e.prepare(ctx, &j.answers, request.Meta, Trace{})
		j.answers.limit = 1 << 20
		if failure, begun := begin(j).run(ctx, newSlots(slots), nil); failure != nil || !begun {
			b.Fatal(failure)
		}
		if msg := j.answers.final(nil); msg.Header.Get(HeaderFinal) != fmt.Sprint(benchChunk) {
			b.Fatal("not all was answered")
		}
		buffers.Put(j.answers.buf)
		e.stats.add(benchChunk, benchChunk, j.answers.errors, time.Since(j.started))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchChunk, "ns/item")
}

// BenchmarkServeList measures HandleList with an echo, an item of a chunk of 500.
func BenchmarkServeList(b *testing.B) {
	benchServe(b, 1, func(j *job) work {
		return &listWork[benchIn, benchOut]{job: j, chunk: newChunk[benchIn, benchOut](j),
			handler: func(_ context.Context, chunk *Chunk[benchIn, benchOut]) error {
				for _, item := range chunk.Items() {
					item.Reply(benchOut{item.In.Account, item.In.Name})
				}
				return nil
			}}
	})
}

// BenchmarkServeEach measures HandleEach with an echo, an item of a chunk of 500.
func BenchmarkServeEach(b *testing.B) {
	for _, slots := range []int{1, 8} {
		b.Run(fmt.Sprintf("concurrency=%d", slots), func(b *testing.B) {
			benchServe(b, slots, func(j *job) work {
				return &eachWork[benchIn, benchOut]{job: j, chunk: newChunk[benchIn, benchOut](j),
					exhausted: make(chan struct{}),
					handler: func(_ context.Context, in benchIn) (benchOut, error) {
						return benchOut{in.Account, in.Name}, nil
					}}
			})
		})
	}
}
