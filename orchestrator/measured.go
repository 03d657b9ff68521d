package orchestrator

import "time"

// measured tells a Meter what rooms of a node say in words of their own.
type measured struct{ meter Meter }

func (m measured) Claimed(took time.Duration)   { m.meter.Took(TimingClaim, took) }
func (m measured) Published(took time.Duration) { m.meter.Took(TimingPublish, took) }
func (m measured) Recorded(took time.Duration)  { m.meter.Took(TimingRecord, took) }
func (m measured) Announced(took time.Duration) { m.meter.Took(TimingCompletion, took) }

func (m measured) Redelivered(endpoint string) { m.meter.Happened(EventRedelivered, endpoint, 1) }
func (m measured) Quarantined(reason string)   { m.meter.Happened(EventQuarantined, reason, 1) }
func (m measured) Buried(endpoint string)      { m.meter.Happened(EventDead, endpoint, 1) }

// Sent is told of a request that is sent, or of a chunk that the node works on.
func (m measured) Sent(endpoint string, attempt int) {
	m.meter.Happened(EventSent, endpoint, 1)
	if attempt > 1 {
		m.meter.Happened(EventAgain, endpoint, 1)
	}
}

func (m measured) Completed(failures bool) {
	outcome := OutcomeClean
	if failures {
		outcome = OutcomeFailures
	}
	m.meter.Happened(EventCompleted, outcome, 1)
}

func (m measured) Loaded(items, bytes int) {
	m.meter.Happened(EventLoaded, "", items)
	m.meter.Happened(EventLoadedBytes, "", bytes)
}
