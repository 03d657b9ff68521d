package endpoints

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// frame writes a message as a NATS client sends it.
func frame(msg *nats.Msg, inbox string) string {
	var header strings.Builder
	header.WriteString("NATS/1.0\n")
	for _, name := range slices.Sorted(maps.Keys(msg.Header)) {
		fmt.Fprintf(&header, "%s: %s\n", name, msg.Header.Get(name))
	}
	size := wire.HeaderSize(msg.Header)
	return fmt.Sprintf("HPUB %s %s %d %d\n%s\n%s", msg.Subject, inbox, size, size+len(msg.Data), header.String(), msg.Data)
}

// TestWorkedExampleOfTheProtocolPage makes the messages of docs/protocol.md and looks for them there, byte for byte.
func TestWorkedExampleOfTheProtocolPage(t *testing.T) {
	t.Parallel()
	page := testenv.Must(os.ReadFile("../docs/protocol.md"))(t)
	meta := wire.Meta{Run: uuid.MustParse("0199a1b2-7c00-7000-8000-000000000001"),
		Slice: uuid.MustParse("5b0c4c1e-8f2c-4a57-9d3e-1f60a7c2d9b4"), Attempt: 1, Generation: 1, Mode: wire.ModeBatch}
	request := wire.NewRequestBuilder("statement", meta, 1<<20)
	request.Add(17, "CUST-18", []byte(`{"balance":120}`))
	request.Add(18, "CUST-19", []byte(`{"balance":-3}`))
	parsed := testenv.Must(wire.ParseRequest(request.Msg().Header, request.Msg().Data, wire.Limits{}))(t)

	e := &serve.Server{Name: "statement", Host: &serve.Host{NC: &nats.Conn{}, Outbox: serve.NewOutbox(nil, nil),
		Identity: "statements@1.0.0 Xk2pQ7"}}
	j := &serve.Job{Request: parsed}
	e.Prepare(context.Background(), &j.Answers, meta, wire.Trace{})
	j.Answers.Limit, j.Answers.FlushAt = 1<<20, 1<<20
	type out struct {
		Closing int `json:"closing"`
	}
	type in struct{ Balance int }
	chunk := newChunk[in, out](j)
	chunk.Items()[0].Reply(out{120})
	chunk.Items()[1].Fail("overdrawn", "the balance is -3")
	reply := j.Answers.Final(nil)
	reply.Header[wire.HeaderMsgID] = []string{"0d9a6c1f-30b7-4d0e-a1e5-6f2f6f0f7f55"}

	testenv.Must(wire.ParseReply(reply.Subject, reply.Header, reply.Data, wire.Limits{}))(t)
	for _, want := range []string{frame(request.Msg(), "_INBOX.n"), frame(reply, "_INBOX.s")} {
		testenv.Has(t, string(page), want, "docs/protocol.md")
	}
}

type embedded struct {
	City   string `json:"city"`
	Hidden string `json:"name"` // Name stands before it
}

type optional struct {
	Street string `json:"street"`
}

type recursive struct {
	ID   string      `json:"id"`
	Next []recursive `json:"next,omitempty"`
}

// rule names itself many times over, as rules and syntax trees do.
type rule struct {
	Name                               string `json:"name"`
	A, B, C, D, E, F, G, H, I, J, K, L *rule
	M, N, O, P, Q, R, S, T, U, V, W, X *rule
}

type decodesItself struct{ Any int }

func (*decodesItself) UnmarshalJSON([]byte) error { return nil }

func TestSchemaOfTypes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		got  wire.Contract
		in   string
	}{
		{"fields", contractOf[struct {
			embedded
			*optional
			Name    string    `json:"name"`
			Balance float64   `json:"balance,string"`
			Since   time.Time `json:"since,omitzero"`
			Parent  *string   `json:"parent"`
			Note    any       `json:"note"`
			Tags    []string
			Own     decodesItself `json:"own"`
			Loose   int           `json:"loose,case:ignore"`
			Left    string        `json:"-"`
			hidden  int
		}, None](), `{"type":"object","properties":{"Tags":{"type":"array","items":{"type":"string"}},
			"balance":{"type":"string"},"city":{"type":"string"},"loose":{"type":"integer"},"name":{"type":"string"},
			"note":{},"own":{},"parent":{"type":"string"},"since":{"type":"string","format":"date-time"},
			"street":{"type":"string"}},"required":["city","name","balance","Tags","own"]}`},
		{"a pointer", contractOf[*optional, None](),
			`{"type":"object","properties":{"street":{"type":"string"}},"required":["street"]}`},
		{"open", contractOf[struct {
			ID   string         `json:"id"`
			Rest map[string]any `json:",inline"`
		}, None](), `{"type":"object","properties":{"id":{"type":"string"}},"required":["id"],"additionalProperties":{}}`},
		{"recursive", contractOf[recursive, None](), ""},
		{"recursive many times", contractOf[rule, None](), ""},
		{"a map", contractOf[map[string]int, None](), `{"type":"object","additionalProperties":{"type":"integer"}}`},
		{"anything", contractOf[any, None](), "null"},
		{"raw", contractOf[json.RawMessage, None](), "null"},
		{"a decoder of its own", contractOf[decodesItself, None](), "null"},
		{"a binary", contractOf[Binary, None](), "null"},
	} {
		text := testenv.Must(json.Marshal(c.got.In))(t)
		if c.in == "" {
			if len(text) < 10 || len(text) > wire.MaxSchema {
				t.Errorf("%s: a schema of %d bytes", c.name, len(text))
			}
			continue
		}
		var got, want any
		check(t, json.Unmarshal(text, &got))
		check(t, json.Unmarshal([]byte(c.in), &want))
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		testenv.Same(t, string(a), string(b), "%s", c.name)
	}
}
