package endpoints

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/flow"
	"github.com/tranchehq/tranche/endpoints/internal/reply"
	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

type benchMemory struct {
	Name string `json:"name"`
}

var benchTarget = To[benchIn, benchOut]("accounts")

func benchStages() []func(context.Context, *Stage[benchIn, benchOut, benchMemory, None]) error {
	return []func(context.Context, *Stage[benchIn, benchOut, benchMemory, None]) error{
		func(_ context.Context, s *Stage[benchIn, benchOut, benchMemory, None]) error {
			for _, item := range s.Items() {
				item.State.Name = item.In.Name
				benchTarget.Ask(item, item.In)
			}
			return nil
		},
		func(_ context.Context, s *Stage[benchIn, benchOut, benchMemory, None]) error {
			for _, item := range s.Items() {
				item.Reply(benchOut{benchTarget.Answer(item).Account, item.State.Name})
			}
			return nil
		},
	}
}

// BenchmarkFlowTwoStages measures all that the SDK does for a chunk of a flow in two stages short of NATS: read the
// request, ask, write the state, read the answer and the state, reply. BenchmarkServeList is the same for one stage.
func BenchmarkFlowTwoStages(b *testing.B) {
	e, h, body := benchJob(b)
	stages := benchStages()
	f := &flow.Flow{Server: e, Stages: 2, Recent: flow.NewRecent(), Most: flow.MaxState, Store: flow.Store{TTL: "600"}}
	var answer strings.Builder
	answer.WriteString(`{"slots":[`)
	for i := range benchChunk {
		if i > 0 {
			answer.WriteByte(',')
		}
		fmt.Fprintf(&answer, `{"i":%d,"d":{"account":%d,"name":"CUST-%d"}}`, i, i, i)
	}
	answer.WriteString(`]}`)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		request, err := wire.ParseRequest(h, body, wire.Limits{})
		if err != nil {
			b.Fatal(err)
		}
		state, slice := benchFirstStage(b, f, stages, request)

		from, err := flow.DecodeSuspended(state, wire.Limits{})
		if err != nil {
			b.Fatal(err)
		}
		meta := request.Meta
		meta.Slice = slice.Slice(0)
		header := meta.Reply()
		header[wire.HeaderFinal] = []string{fmt.Sprint(benchChunk)}
		parsed, err := wire.ParseReplyOf("accounts", header, []byte(answer.String()), wire.Limits{})
		if err != nil {
			b.Fatal(err)
		}
		j := benchFlowJob(b, f, request)
		w := &flow.Work{Flow: f, Job: j, Stage: 1, Total: benchChunk}
		if w.Sheet, err = resumeStage(w, stages, from); err != nil {
			b.Fatal(err)
		}
		w.Merge(from, []flow.StageReply{{Reply: parsed}})
		if failure := w.RunStage(ctx); failure != nil {
			b.Fatal(failure)
		}
		if msg := j.Answers.Final(nil); msg.Header.Get(wire.HeaderFinal) != fmt.Sprint(benchChunk) {
			b.Fatal("not all was answered")
		}
		reply.Buffers.Put(j.Answers.Buf)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchChunk, "ns/item")
}

func benchFlowJob(b *testing.B, f *flow.Flow, request *wire.Request) *serve.Job {
	b.Helper()
	j := &serve.Job{Request: request, Timeout: DefaultTimeout, Log: zap.NewNop()}
	f.Server.Prepare(b.Context(), &j.Answers, request.Meta, wire.Trace{})
	j.Answers.Limit = 1 << 20
	return j
}

// benchFirstStage takes a chunk up to where it would be suspended.
func benchFirstStage(
	b *testing.B, f *flow.Flow, stages []func(context.Context, *Stage[benchIn, benchOut, benchMemory, None]) error,
	request *wire.Request,
) (state []byte, id wire.FlowID) {
	b.Helper()
	w := &flow.Work{Flow: f, Job: benchFlowJob(b, f, request), Total: benchChunk}
	w.Sheet = newStage(w, stages)
	if failure := w.RunStage(b.Context()); failure != nil {
		b.Fatal(failure)
	}
	id = wire.NewFlowID(request.Meta, "echo", 0)
	q := &flow.Questioner{Work: w, Flow: id, Trace: nats.Header{}, Limit: 1 << 20}
	for _, asked := range w.Asked {
		if failure := q.Ask(asked); failure != nil {
			b.Fatal(failure)
		}
	}
	if len(q.Made) != 1 {
		b.Fatalf("%d requests were made", len(q.Made))
	}
	state, failure := w.State(q.Made)
	if failure != nil {
		b.Fatal(failure)
	}
	return state, id
}

// BenchmarkFlowAgainstSingleStages measures items through a server: "flow" by a flow in three stages, "single" by its
// two callees and one more endpoint, asked one after the other by a node.
func BenchmarkFlowAgainstSingleStages(b *testing.B) {
	for name, endpoints := range map[string][]string{"flow": {"flow"}, "single": {"double", "square", "square"}} {
		b.Run(name, func(b *testing.B) { benchThrough(b, endpoints) })
	}
}

func benchThrough(b *testing.B, endpoints []string) {
	b.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: b.TempDir(),
		NoSigs: true, NoLog: true})
	if err != nil {
		b.Fatal(err)
	}
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(patience) {
		b.Fatal("the server does not start")
	}
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := stream.Ensure(b.Context(), js, stream.Config{Memory: true}); err != nil {
		b.Fatal(err)
	}
	stop := benchService(b, nc)
	defer stop()
	recorder, err := stream.EnsureRecorder(b.Context(), js)
	if err != nil {
		b.Fatal(err)
	}
	const window = 8 // chunks on their way at once
	for b.Loop() {
		for _, endpoint := range endpoints {
			for range window {
				builder := wire.NewRequestBuilder(endpoint, newMeta(), 1<<20)
				for i := range benchChunk {
					builder.Add(i, "KEY", fmt.Appendf(nil, `{"n":%d}`, i+14))
				}
				if _, err := js.PublishMsg(b.Context(), builder.Msg()); err != nil {
					b.Fatal(err)
				}
			}
			benchCollect(b, recorder, window)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/window/benchChunk, "ns/item")
}

// benchService serves the endpoints of the comparison.
func benchService(b *testing.B, nc *nats.Conn) (stop func()) {
	b.Helper()
	svc, err := New(nc, Config{Name: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	for _, err := range []error{HandleEach(svc, "double", doubleOf), HandleEach(svc, "square", squares),
		HandleFlow(svc, "flow", threeStages())} {
		if err != nil {
			b.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = svc.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// benchCollect reads final replies.
func benchCollect(b *testing.B, recorder jetstream.Consumer, n int) {
	b.Helper()
	for n > 0 {
		batch, err := recorder.Fetch(n)
		if err != nil {
			b.Fatal(err)
		}
		for msg := range batch.Messages() {
			if msg.Headers().Get(wire.HeaderFinal) != "" {
				n--
			}
			if err := msg.Ack(); err != nil {
				b.Fatal(err)
			}
		}
	}
}
