package main

import (
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/workqueue/session"
)

// streamFlags are what the streams are like from the first start of all on. After that tranche streams set changes it.
type streamFlags struct {
	StreamReplicas int          `env:"TRANCHE_STREAM_REPLICAS" help:"First start: copies of each stream, 1, 3 or 5 (3 in a cluster, else 1)." placeholder:"N"`
	WorkMaxBytes   cli.ByteSize `env:"TRANCHE_WORK_MAX_BYTES" help:"First start: room for requests (1GiB). Later: tranche streams set." placeholder:"SIZE"`
	ReplyMaxBytes  cli.ByteSize `env:"TRANCHE_REPLY_MAX_BYTES" help:"First start: room for replies (2GiB)." placeholder:"SIZE"`
	EventMaxBytes  cli.ByteSize `env:"TRANCHE_EVENT_MAX_BYTES" help:"First start: room for events (128MiB)." placeholder:"SIZE"`
	StageMaxBytes  cli.ByteSize `env:"TRANCHE_STAGE_MAX_BYTES" help:"First start: room for replies on their way back into flows (512MiB)." placeholder:"SIZE"`
	FlowMaxBytes   cli.ByteSize `env:"TRANCHE_FLOW_MAX_BYTES" help:"First start: room for the state of flows that wait (512MiB)." placeholder:"SIZE"`
	DeadMaxBytes   cli.ByteSize `env:"TRANCHE_DEAD_MAX_BYTES" help:"First start: room for dead letters that no node has taken in (64MiB)." placeholder:"SIZE"`
}

func (s *streamFlags) checkStreams() error {
	return (&session.StreamValues{Replicas: s.StreamReplicas, WorkBytes: int64(s.WorkMaxBytes),
		ReplyBytes: int64(s.ReplyMaxBytes), EventBytes: int64(s.EventMaxBytes), StageBytes: int64(s.StageMaxBytes),
		FlowBytes: int64(s.FlowMaxBytes), DeadBytes: int64(s.DeadMaxBytes)}).Validate()
}

func (s *streamFlags) streams() stream.Config {
	return stream.Config{
		Replicas: s.StreamReplicas, WorkMaxBytes: int64(s.WorkMaxBytes), ReplyMaxBytes: int64(s.ReplyMaxBytes),
		EventMaxBytes: int64(s.EventMaxBytes), StageMaxBytes: int64(s.StageMaxBytes),
		FlowMaxBytes: int64(s.FlowMaxBytes), DeadMaxBytes: int64(s.DeadMaxBytes),
	}
}
