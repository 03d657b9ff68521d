package flow

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func goodState() *Suspended {
	return &Suspended{Version: stateVersion, Revision: "r", Stages: 3, Stage: 1, Params: map[string]string{"year": "2026"},
		Total: 5, Answered: 2, Failure: &suspendedError{"db_down", "no", true},
		Requests: []suspendedRequest{{"double", "double", false}, {"more", "double", true}},
		Shared:   []byte(`{"a":1}`),
		Items: []suspendedItem{{3, "K3", []byte(`{"n":3}`), []int{0, 1}}, {4, "K4", []byte("null"), []int{1}},
			{0, "", nil, nil}}}
}

func TestStateIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	body := testenv.Must(goodState().encode())(t)
	s := testenv.Must(DecodeSuspended(body, wire.Limits{}))(t)
	again := testenv.Must(s.encode())(t)
	if string(again) != string(body) || s.Items[0].Waits[1] != 1 || string(s.Items[1].State) != "null" {
		t.Errorf("%s is read as %s", body, again)
	}
	for name, spoil := range map[string]func(*Suspended){
		"version":   func(s *Suspended) { s.Version = 2 },
		"stage":     func(s *Suspended) { s.Stage = 3 },
		"stages":    func(s *Suspended) { s.Stages = 65 },
		"requests":  func(s *Suspended) { s.Requests = nil },
		"target":    func(s *Suspended) { s.Requests[0].Target = "a.b" },
		"endpoint":  func(s *Suspended) { s.Requests[0].Endpoint = ">" },
		"total":     func(s *Suspended) { s.Total = 4 },
		"answered":  func(s *Suspended) { s.Answered = -1 },
		"ordinal":   func(s *Suspended) { s.Items[0].Ordinal = 4 },
		"waits":     func(s *Suspended) { s.Items[0].Waits = []int{1, 1} },
		"waits for": func(s *Suspended) { s.Items[0].Waits = []int{2} },
	} {
		s := goodState()
		spoil(s)
		body := testenv.Must(s.encode())(t)
		_, err := DecodeSuspended(body, wire.Limits{})
		testenv.Fails(t, err, "%s: the state is taken", name)
	}
}

func FuzzDecodeSuspended(f *testing.F) {
	body := testenv.Must(goodState().encode())(f)
	f.Add(body)
	f.Add([]byte(`{"version":1,"stages":2,"stage":1,"total":1,"items":[{"i":0}],` +
		`"requests":[{"target":"a","endpoint":"a"}]}`))
	f.Add([]byte(strings.Repeat("[", 1000)))
	f.Fuzz(func(t *testing.T, body []byte) {
		s, err := DecodeSuspended(body, wire.Limits{})
		if err != nil {
			return
		}
		for n, item := range s.Items {
			for _, r := range item.Waits {
				if found, waits := s.find(r, item.Ordinal); !waits || found != n || r >= len(s.Requests) {
					t.Fatalf("ordinal %d waits for request %d", item.Ordinal, r)
				}
			}
		}
		again := testenv.Must(s.encode())(t)
		testenv.Must(DecodeSuspended(again, wire.Limits{}))(t)
	})
}

func FuzzDecodeHead(f *testing.F) {
	f.Add([]byte(`{"parts":[{"n":"p1-a","r":0,"i":[1,2],"f":true,"a":2}],"done":"p1-a"}`), 1)
	f.Fuzz(func(_ *testing.T, body []byte, requests int) {
		head, err := decodeHead(body, requests)
		if err != nil || requests < 0 || requests > wire.MaxRequests {
			return
		}
		g := &gathering{from: &Suspended{Requests: make([]suspendedRequest, requests), asked: make([]int, requests)}}
		g.complete(head)
		head.add(gatherPart{Name: "x", Ordinals: []int{1}})
	})
}
