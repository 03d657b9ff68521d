package endpoints

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

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
		if string(a) != string(b) {
			t.Errorf("%s: %s\nwant %s", c.name, a, b)
		}
	}
}

func TestContractIsAnnounced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	serveEach(b, "square", squares)
	eventually(t, "the contract is told", func() bool {
		told := testenv.Must(wire.AskContract(b.ctx, b.nc, "square"))(t)
		return string(told.In) == `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`
	})
	if told, err := wire.AskContract(b.ctx, b.nc, "nobody"); err != nil || told.In != nil {
		t.Errorf("of an endpoint without listeners: %v, %v", told, err)
	}
}
