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

func TestReadViolation(t *testing.T) {
	t.Parallel()
	const pub, sub = "nats: permissions violation: Permissions Violation for Publish to ",
		"nats: permissions violation: Permissions Violation for Subscription to "
	tests := []struct{ text, op, want string }{
		{pub + `"tranche.reply.x"`, OpPublish, "tranche.reply.x"},
		{pub + `"tranche.work.x"`, OpPublish, "tranche.work.x"},
		{pub + `"tranche.flow.x.5b0c.0"`, OpPublish, "tranche.flow.x.>"},
		{pub + `"tranche.stage.x.1.0.y"`, OpPublish, "tranche.stage.x.*.*.y"},
		{pub + `"tranche.call.web.tok.y"`, OpPublish, "tranche.call.web.*.y"},
		{sub + `"tranche.call.web.tok.>"`, OpSubscribe, "tranche.call.web.>"},
		{pub + `"$JS.API.CONSUMER.MSG.NEXT.TRANCHE_WORK.x"`, OpPublish, "$JS.API.CONSUMER.MSG.NEXT.TRANCHE_WORK.x"},
		{pub + `"$JS.API.CONSUMER.CREATE.TRANCHE_WORK.x.tranche.work.x"`, OpPublish,
			"$JS.API.CONSUMER.CREATE.TRANCHE_WORK.x.>"},
		{pub + `"$JS.API.DIRECT.GET.TRANCHE_FLOW.tranche.flow.x.5b0c.0"`, OpPublish,
			"$JS.API.DIRECT.GET.TRANCHE_FLOW.tranche.flow.x.>"},
		{pub + `"JS.tranche.API.CONSUMER.INFO.TRANCHE_WORK.x"`, OpPublish, "$JS.API.CONSUMER.INFO.TRANCHE_WORK.x"},
		{pub + `"$JS.ACK.TRANCHE_WORK.x.1.2.3.4.5"`, OpPublish, "$JS.ACK.TRANCHE_WORK.x.*.*.*.*.*"},
		{pub + `"$JS.ACK._.hash.TRANCHE_WORK.x.1.2.3.4.5"`, OpPublish, "$JS.ACK.*.*.TRANCHE_WORK.x.*.*.*.*.>"},
		{sub + `"_INBOX.abc.*"`, OpSubscribe, "_INBOX.>"},
		{sub + `"$SRV.PING"`, OpSubscribe, "$SRV.>"},
		{sub + `"tranche.direct.x" using queue "tranche"`, OpSubscribe, "tranche.direct.x"},
		{sub + `"tranche.wake" (sid "3")`, OpSubscribe, "tranche.wake"},
		{pub + `"other.subject"`, "", ""},
		{pub + `"$JS.API.STREAM.INFO.ORDERS"`, "", ""},
		{pub + `"$JS.ACK.ORDERS.x.1.2"`, "", ""},
		{pub + `no quotes`, "", ""},
		{"nats: authorization violation", "", ""},
	}
	for _, test := range tests {
		found, _, ok := ReadViolation(test.text, "")
		switch {
		case !ok && test.want != "":
			t.Errorf("%s: not read", test.text)
		case ok && (found.Subject != test.want || found.Op != test.op):
			t.Errorf("%s: got %+v", test.text, found)
		}
	}
}
