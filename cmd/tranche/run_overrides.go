package main

import (
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// layOver puts what flags say otherwise than the plan into the settings of a run.
func layOver(s *client.RunSettings, over *gather.Overrides) {
	s.Priority, s.MaxFailed, s.Canary, s.CanaryAuto = over.Priority, over.MaxFailed, over.Canary, over.CanaryAuto
	s.OrderBy, s.Partitions, s.OnFailure = over.OrderBy, over.Partitions, over.OnFailure
	every := stepOverrides(&over.StepOverrides)
	s.Chunk, s.ChunkBytes, s.ChunkTime, s.InFlight = every.Chunk, every.ChunkBytes, every.ChunkTime, every.InFlight
	s.Rate, s.MaxAttempts, s.Timeout = every.Rate, every.MaxAttempts, every.Timeout
	s.RetryBackoff, s.MaxBackoff = every.RetryBackoff, every.MaxBackoff
	s.RetryCodes, s.NeverRetry = every.RetryCodes, every.NeverRetry
	for name, of := range over.Steps {
		if s.Steps == nil {
			s.Steps = map[string]*client.StepOverrides{}
		}
		s.Steps[name] = stepOverrides(of)
	}
}

func stepOverrides(o *gather.StepOverrides) *client.StepOverrides {
	return &client.StepOverrides{
		Chunk: (*client.Sizing)(o.Chunk), ChunkBytes: (*int)(o.ChunkBytes), ChunkTime: (*client.Duration)(o.ChunkTime),
		InFlight: (*client.Sizing)(o.InFlight), Rate: o.Rate, MaxAttempts: o.MaxAttempts,
		Timeout: (*client.Duration)(o.Timeout), RetryBackoff: (*client.Duration)(o.RetryBackoff),
		MaxBackoff: (*client.Duration)(o.MaxBackoff), RetryCodes: o.RetryCodes, NeverRetry: o.NeverRetry,
	}
}

// openSettings are the same settings for a run that gets its items later.
func openSettings(s *client.RunSettings, sealWithin, onOverdue string) client.OpenSettings {
	return client.OpenSettings{
		Endpoint: s.Endpoint, Plan: s.Plan, PlanName: s.PlanName, PlanRef: s.PlanRef, Key: s.Key, Format: s.Format,
		Name: s.Name, Params: s.Params, IdempotencyKey: s.IdempotencyKey, OnDuplicate: s.OnDuplicate, Source: s.Source,
		SQL: s.SQL, SQLSource: s.SQLSource, Stream: s.Stream, StreamSubject: s.StreamSubject, StreamFrom: s.StreamFrom,
		Priority: s.Priority, MaxFailed: s.MaxFailed, Canary: s.Canary, CanaryAuto: s.CanaryAuto,
		OrderBy: s.OrderBy, Partitions: s.Partitions, OnFailure: s.OnFailure,
		Chunk: s.Chunk, ChunkBytes: s.ChunkBytes, ChunkTime: s.ChunkTime, InFlight: s.InFlight, Rate: s.Rate,
		MaxAttempts: s.MaxAttempts, Timeout: s.Timeout, RetryBackoff: s.RetryBackoff, MaxBackoff: s.MaxBackoff,
		RetryCodes: s.RetryCodes, NeverRetry: s.NeverRetry, Steps: s.Steps, SealWithin: sealWithin, OnOverdue: onOverdue,
	}
}
