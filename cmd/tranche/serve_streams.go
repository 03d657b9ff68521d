package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tranchehq/tranche/endpoints"
)

// streamFlags size the streams. All nodes set the same streams up, again and again: they must agree.
type streamFlags struct {
	StreamReplicas int      `env:"TRANCHE_STREAM_REPLICAS" help:"Copies of each stream: 1, 3 or 5 (1). Give all nodes the same." placeholder:"N"`
	WorkMaxBytes   byteSize `env:"TRANCHE_WORK_MAX_BYTES" help:"Room for requests (1GiB). Give all nodes the same." placeholder:"SIZE"`
	ReplyMaxBytes  byteSize `env:"TRANCHE_REPLY_MAX_BYTES" help:"Room for replies (2GiB). Give all nodes the same." placeholder:"SIZE"`
	EventMaxBytes  byteSize `env:"TRANCHE_EVENT_MAX_BYTES" help:"Room for events (128MiB). Give all nodes the same." placeholder:"SIZE"`
	StageMaxBytes  byteSize `env:"TRANCHE_STAGE_MAX_BYTES" help:"Room for replies on their way back into flows (512MiB). Give all nodes the same." placeholder:"SIZE"`
	FlowMaxBytes   byteSize `env:"TRANCHE_FLOW_MAX_BYTES" help:"Room for the state of flows that wait (512MiB). Give all nodes the same." placeholder:"SIZE"`
	DeadMaxBytes   byteSize `env:"TRANCHE_DEAD_MAX_BYTES" help:"Room for dead letters that no node has taken in (64MiB). Give all nodes the same." placeholder:"SIZE"`
}

func (s *streamFlags) checkStreams() error {
	if !slices.Contains([]int{0, 1, 3, 5}, s.StreamReplicas) {
		return fmt.Errorf("--stream-replicas is %d; it must be 1, 3 or 5", s.StreamReplicas)
	}
	return nil
}

func (s *streamFlags) streams() endpoints.StreamConfig {
	return endpoints.StreamConfig{
		Replicas: s.StreamReplicas, WorkMaxBytes: int64(s.WorkMaxBytes), ReplyMaxBytes: int64(s.ReplyMaxBytes),
		EventMaxBytes: int64(s.EventMaxBytes), StageMaxBytes: int64(s.StageMaxBytes),
		FlowMaxBytes: int64(s.FlowMaxBytes), DeadMaxBytes: int64(s.DeadMaxBytes),
	}
}

// streamBytes is what the streams take on each server that keeps them, once they are full.
func (s *streamFlags) streamBytes() int64 {
	var all byteSize
	for _, room := range []struct{ set, usual byteSize }{
		{s.WorkMaxBytes, endpoints.DefaultWorkMaxBytes}, {s.ReplyMaxBytes, endpoints.DefaultReplyMaxBytes},
		{s.EventMaxBytes, endpoints.DefaultEventMaxBytes}, {s.StageMaxBytes, endpoints.DefaultStageMaxBytes},
		{s.FlowMaxBytes, endpoints.DefaultFlowMaxBytes}, {s.DeadMaxBytes, endpoints.DefaultDeadMaxBytes},
	} {
		all += cmp.Or(room.set, room.usual)
	}
	return int64(all)
}
