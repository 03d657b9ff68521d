package stream

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// What a server says of a stream counts as an answer when it leads it, and has lately heard of most of the others.
func TestLeads(t *testing.T) {
	heard, lost := &jetstream.PeerInfo{Active: time.Second}, &jetstream.PeerInfo{Active: quorumTimeout}
	offline := &jetstream.PeerInfo{Offline: true}
	just := &jetstream.PeerInfo{} // what a server that has stopped leading says of those it has lost
	for name, tc := range map[string]struct {
		cluster *jetstream.ClusterInfo
		want    error
	}{
		"not clustered":    {nil, nil},
		"one replica":      {&jetstream.ClusterInfo{Leader: "n1"}, nil},
		"both heard":       {&jetstream.ClusterInfo{Leader: "n1", Replicas: []*jetstream.PeerInfo{heard, heard}}, nil},
		"one lost":         {&jetstream.ClusterInfo{Leader: "n1", Replicas: []*jetstream.PeerInfo{heard, lost}}, nil},
		"both lost":        {&jetstream.ClusterInfo{Leader: "n1", Replicas: []*jetstream.PeerInfo{lost, lost}}, errStale},
		"offline":          {&jetstream.ClusterInfo{Leader: "n1", Replicas: []*jetstream.PeerInfo{lost, offline}}, errStale},
		"has stopped":      {&jetstream.ClusterInfo{Replicas: []*jetstream.PeerInfo{just, just, just}}, errLeaderless},
		"just elected":     {&jetstream.ClusterInfo{Leader: "n1", Replicas: []*jetstream.PeerInfo{just, just}}, nil},
		"no one is chosen": {&jetstream.ClusterInfo{Replicas: []*jetstream.PeerInfo{heard, heard, heard}}, errLeaderless},
	} {
		t.Run(name, func(t *testing.T) {
			err := Leads(tc.cluster)
			testenv.Is(t, err, tc.want, "error")
			if err != nil && !Unanswered(err) {
				t.Errorf("%v counts as an answer", err)
			}
		})
	}
}
