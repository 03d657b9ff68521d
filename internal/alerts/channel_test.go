package alerts

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"testing"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	store "github.com/tranchehq/tranche/workqueue/health"
)

// pigeon is a channel that remembers what it carried.
type pigeon struct {
	Loft string `json:"loft"`

	carried string
}

func (p *pigeon) check() (field string, err error)               { return "", nil }
func (p *pigeon) reachable(*Receivers) (field string, err error) { return "loft", nil }
func (p *pigeon) tell(_ context.Context, _ *Receivers, m *Message) httpfetch.Delivery {
	p.carried = m.Title
	return httpfetch.Delivery{Delivered: true}
}

// To add a channel takes a row: rules name it, it is saved, and messages go there.
//
//nolint:paralleltest // it changes the table
func TestAChannelIsOneRow(t *testing.T) {
	before := channels
	t.Cleanup(func() { channels = before })
	channels = slices.Clone(channels)
	channels = append(channels, channels[0])
	channels[len(channels)-1].name, channels[len(channels)-1].make = "pigeon", func() channel { return &pigeon{} }

	spec := testenv.Must(Parse("r", []byte("when: {health: info}\nto: {pigeon: {loft: roof}}\n")))(t)
	doc := testenv.Must(json.Marshal(spec))(t)
	kept, err := readSpec("r", doc)
	if err != nil || kept.To.Kind != "pigeon" || !reflect.DeepEqual(kept.To.channel, &pigeon{Loft: "roof"}) {
		t.Fatalf("saved it is %s, read as %+v, %v", doc, kept, err)
	}
	receivers := testenv.Must(NewReceivers(Config{Transport: http.DefaultTransport}))(t)
	testenv.NoError(t, receivers.Check(&kept.To))
	out := receivers.tell(t.Context(), &kept.To, &Message{Title: "hello"})
	if to, _ := kept.To.channel.(*pigeon); !out.Delivered || to.carried != "hello" {
		t.Errorf("%+v, carried %q", out, to.carried)
	}
}

// A run that a rule told as health, and tells as a change of runs since it was changed, still holds.
func TestWhatARuleToldByAnotherKindHolds(t *testing.T) {
	t.Parallel()
	spec := &Spec{When: When{Runs: []RunChange{RunPaused}, Health: store.Warning}}
	holds := spec.holds([]seen{{Condition: store.Condition{Kind: store.RunHeld}, key: "a", change: RunPaused}})
	for _, kind := range []string{string(store.RunHeld), runPrefix + string(RunPaused)} {
		if !holds(kind, "a") || holds(kind, "b") {
			t.Errorf("%s: a %v, b %v", kind, holds(kind, "a"), holds(kind, "b"))
		}
	}
}
