package wire

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
)

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

// BenchmarkParseReply measures what a node pays to read a reply of 500 slots.
func BenchmarkParseReply(b *testing.B) {
	h, body := benchReply(newMeta())
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
	_, body := benchReply(newMeta())
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
	meta := newMeta()
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
