package health

import (
	"strings"

	"github.com/tranchehq/tranche/workqueue"
)

// Kinds of conditions.
const (
	FailedItems    Kind = "failed_items" // of completed runs, that no one has run again or accepted
	StaleSlices    Kind = "stale_slices" // past their deadline, and no leader has seen to them
	NoListeners    Kind = "no_listeners" // runs have work for an endpoint or a function, and no one does it
	OldestWaiting  Kind = "work_stuck"   // items, or requests, that no one has taken for long
	DeadLetters    Kind = "dead_letters"
	Quarantined    Kind = "quarantined"
	BreakerOpen    Kind = "breaker_open"
	ServiceSlow    Kind = "service_slow" // it takes far longer for an item than before
	LeaderMissing  Kind = "leader_missing"
	NodeDead       Kind = "node_dead"
	NodeLate       Kind = "node_unresponsive"
	StreamLimit    Kind = "stream_limit"
	Disk           Kind = "disk"
	StreamSettings Kind = "stream_settings"      // the streams are not as they are set
	RunHeld        Kind = "run_held"             // by its threshold, or by someone
	RunApproval    Kind = "run_approval"         // its canary waits for someone
	RunFailFast    Kind = "run_fail_fast"        // by its fail-fast limit: its first outcomes plainly failed
	RunGate        Kind = "run_gate"             // a step of it waits for someone
	RunOverdue     Kind = "run_overdue"          // not sealed in time
	RunWillBeLate  Kind = "run_deadline_at_risk" // in alerts only
	RunCompleted   Kind = "run_completed"        // in alerts only

	ScheduleFailing Kind = "schedule_failing" // the run of its last due time could not be started
	ScheduleOverdue Kind = "schedule_overdue" // a due time that no one takes, or whose run is not started
	ScheduleLate    Kind = "run_past_window"  // a run has not ended by the end of its window

	CollectorParked  Kind = "collector_parked"    // operations that are not retried
	CollectorLate    Kind = "collector_late"      // operations that wait far longer than max_age
	CollectorHangs   Kind = "flush_stuck"         // a flush that is in progress for far too long
	CollectorRefuses Kind = "collector_rejecting" // what a collector stores with operations cannot be had

	AlertFailing      Kind = "alert_failing" // a receiver of alerts has not been told for long
	Database          Kind = "database"
	DatabaseRewind    Kind = "database_rewind" // it lost recent commits, or another server took it over
	Connections       Kind = "database_connections"
	NATS              Kind = "nats"
	ResourceExhausted Kind = "resource_exhausted" // something was used up when the node last needed it
	EventsWaiting     Kind = "events_waiting"
	TokenExpiring     Kind = "token_expiring"
)

// What items wait for. Package api says those that need a look at NATS.
const (
	ReasonOperator        Kind = "paused"
	ReasonThreshold       Kind = "threshold"
	ReasonFailFast        Kind = "fail_fast"
	ReasonCanary          Kind = "canary"
	ReasonSampling        Kind = "sampling"
	ReasonNoNode          Kind = "no_node"
	ReasonReadOnly        Kind = "database_read_only"
	ReasonStandby         Kind = "standby_gone"
	ReasonNATSUnreachable Kind = "nats_unreachable"
	ReasonUnwritable      Kind = "disk_full" // JetStream's store cannot be written, for that or another reason
	ReasonNATSRefused     Kind = "nats_refused"
	ReasonNATSStalled     Kind = "nats_stalled" // reachable, and the streams do not answer: no quorum, or no leader
	ReasonSettingUp       Kind = "setting_up"
	ReasonProbing         Kind = "probing" // the breaker is open and a probe is out
	ReasonStepLimit       Kind = "step_limit"
	ReasonBudget          Kind = "endpoint_budget"
	ReasonAdaptive        Kind = "adaptive_limit"
	ReasonPriority        Kind = "behind_priority"
	ReasonShare           Kind = "fair_share"
	ReasonRate            Kind = "rate_limited"
	ReasonNext            Kind = "next_to_claim"
	ReasonBackoff         Kind = "backoff"
	ReasonBreather        Kind = "breaker_pause"
	ReasonThrottled       Kind = "throttled"
	ReasonPostponed       Kind = "postponed"
	ReasonPublishing      Kind = "publishing"
	ReasonClaimLost       Kind = "claim_lost"
	ReasonStreamLost      Kind = "stream_lost"
	ReasonOverdue         Kind = "overdue"
	ReasonQueued          Kind = "queued"
	ReasonNoListener      Kind = "no_listener"
	ReasonNotTaking       Kind = "listeners_blocked"
	ReasonBusy            Kind = "listeners_busy"
	ReasonSuspended       Kind = "consumer_paused"
	ReasonNoConsumer      Kind = "no_consumer"
	ReasonWorking         Kind = "with_service"
	ReasonGone            Kind = "service_gone"
	ReasonNested          Kind = "callee_no_listener"
	ReasonPartly          Kind = "partly_answered"
	ReasonQuarantine      Kind = "reply_quarantined"
	ReasonNeeds           Kind = "needs_step"
	ReasonBarrier         Kind = "barrier"
	ReasonGate            Kind = "approval"
	ReasonNoLocal         Kind = "no_local"
	ReasonFetching        Kind = "fetching"
	ReasonLane            Kind = "in_lane"
	ReasonUnplaced        Kind = "open_run"
	ReasonCancelled       Kind = "cancelled"
	ReasonStray           Kind = "inconsistent" // a fault of ours
)

// rules are all reasons. To add one, add a row.
//
//nolint:gochecknoglobals // a table
var rules = []Rule{
	{Kind: FailedItems, Owner: OwnerOperator, Title: "Failed items", Of: "run", Counts: "item",
		Many: "runs have failed items", find: failedRuns()},
	{Kind: RunHeld, Owner: OwnerOperator, Title: "Paused", Of: "run", Many: "runs are held", Change: "paused",
		find: heldRuns()},
	{Kind: RunFailFast, Owner: OwnerOperator, Title: "Paused, first outcomes failed", Of: "run",
		Many: "runs are held by their fail-fast limits", Change: "paused", With: RunHeld},
	{Kind: RunGate, Owner: OwnerOperator, Title: "At a gate, waiting for an approval", Of: "run",
		Many: "runs wait at a gate for an approval", Change: "waits_for_approval", With: RunHeld},
	{Kind: RunApproval, Owner: OwnerOperator, Title: "Waiting for an approval", Of: "run",
		Many: "runs wait for an approval", Change: "waits_for_approval", With: RunHeld},
	{Kind: RunOverdue, Owner: OwnerOperator, Title: "Not sealed in time", Of: "run", Change: "overdue",
		find: unsealedRuns()},
	{Kind: RunWillBeLate, Owner: OwnerOperator, Of: "run", Change: "will_be_late"},
	{Kind: RunCompleted, Owner: OwnerOperator, Of: "run", Change: "completed"},
	{Kind: NoListeners, Owner: OwnerService, Title: "No one listens", Of: "endpoint",
		Many: "endpoints have no one who listens", Stops: StopsEndpoint},
	{Kind: BreakerOpen, Owner: OwnerService, Title: "Most requests fail", Of: "endpoint",
		Many: "endpoints fail most requests", Stops: StopsEndpoint, find: openBreakers(),
		Items: "waiting for {to}, whose breaker is open"},
	{Kind: ServiceSlow, Owner: OwnerService, Title: "Became slow", Of: "endpoint", Many: "services became slow",
		find: slowServices()},
	{Kind: OldestWaiting, Owner: OwnerOperator, Stops: StopsEndpoint, find: untakenRequests()},
	{Kind: StaleSlices, Owner: OwnerServers, Title: "Past the deadline", Of: "run", Stops: StopsRun,
		find: staleRequests()},
	{Kind: DeadLetters, Owner: OwnerService, Title: "Dead letters", Of: "endpoint", Counts: "letter", Most: MaxCounted,
		find: deadLetters()},
	{Kind: Quarantined, Owner: OwnerOperator, Title: "Messages that could not be taken", Of: "reason", Counts: "message",
		Most: MaxCounted, Link: "/dead-letters?tab=quarantine", find: strays()},
	{Kind: EventsWaiting, Owner: OwnerServers, Link: "/nodes", find: waitingEvents()},
	{Kind: TokenExpiring, Owner: OwnerOperator, Title: "About to expire", Of: "token", Link: "/tokens",
		find: endingTokens()},
	{Kind: ScheduleFailing, Owner: OwnerOperator, Title: "Not started by their schedules", Of: "schedule",
		Link: "/schedules", find: failedSchedules()},
	{Kind: ScheduleOverdue, Owner: OwnerOperator, Title: "Due and not started", Of: "schedule", Link: "/schedules",
		find: stuckSchedules()},
	{Kind: ScheduleLate, Owner: OwnerOperator, Title: "Late", Of: "run", Change: "overdue", find: lateRuns()},
	{Kind: CollectorParked, Owner: OwnerOperator, Title: "Parked operations", Of: "collector", Counts: "operation",
		Link: "/collectors", find: parkedOps()},
	{Kind: CollectorLate, Owner: OwnerOperator, Title: "Operations that wait for too long", Of: "collector",
		Link: "/collectors", find: lateFlushes()},
	{Kind: CollectorHangs, Owner: OwnerService, Title: "Flushes that hang", Of: "collector", Link: "/collectors",
		find: hungFlushes()},
	{Kind: CollectorRefuses, Owner: OwnerOperator, Title: "Adds that are refused", Of: "collector", Link: "/collectors",
		find: refusals()},
	{Kind: AlertFailing, Owner: OwnerOperator, Title: "No one hears of them", Of: "alert", find: failingAlerts()},
	{Kind: StreamSettings, Owner: OwnerServers, find: streamTrouble()},
	{Kind: DatabaseRewind, Owner: OwnerDatabase, Link: "/nodes", find: databaseGaps()},

	// What servers see themselves.
	{Kind: Database, Owner: OwnerDatabase},
	{Kind: Connections, Owner: OwnerDatabase},
	{Kind: NATS, Owner: OwnerServers, Link: "/nodes", Stops: StopsAll},
	{Kind: StreamLimit, Owner: OwnerServers},
	{Kind: Disk, Owner: OwnerServers},
	{Kind: ResourceExhausted, Owner: OwnerServers, Link: "/nodes", Items: "waiting for what a node lacks to claim them"},
	{Kind: LeaderMissing, Owner: OwnerServers, Link: "/nodes", Stops: StopsAll},
	{Kind: NodeDead, Owner: OwnerServers, Title: "Died", Of: "node", Link: "/nodes"},
	{Kind: NodeLate, Owner: OwnerServers, Title: "Not heard of", Of: "node", Link: "/nodes"},

	// What items wait for.
	{Kind: ReasonOperator, Items: "paused: waiting for someone to resume the run"},
	{Kind: ReasonThreshold, Items: "paused because too many items failed: waiting for an operator"},
	{Kind: ReasonFailFast, Items: "paused because the first outcomes plainly failed: waiting for an operator"},
	{Kind: ReasonCanary, Items: "waiting for someone to approve the canary"},
	{Kind: ReasonSampling, Items: "held back until the canary's sample is over", Normal: true},
	{Kind: ReasonNoNode, Items: "waiting for a node: none is alive"},
	{Kind: ReasonReadOnly, Items: "waiting for PostgreSQL to take writes"},
	{Kind: ReasonStandby, Items: "waiting for a standby of PostgreSQL to confirm commits"},
	{Kind: ReasonNATSRefused, Items: "waiting for a user that NATS takes"},
	{Kind: ReasonNATSUnreachable, Items: "waiting for NATS, which the node cannot reach"},
	{Kind: ReasonNATSStalled, Items: "waiting for JetStream, which does not answer"},
	{Kind: ReasonUnwritable, Items: "waiting for JetStream, whose store cannot be written"},
	{Kind: ReasonSettingUp, Items: "waiting for the streams to be set up", Normal: true},
	{Kind: ReasonProbing, Items: "waiting for {to}, whose breaker is open"},
	{Kind: ReasonStepLimit, Items: "ready, while as many requests are out as the run allows", Normal: true},
	{Kind: ReasonBudget, Items: "ready, while the budget of {to} is used up", Normal: true},
	{Kind: ReasonAdaptive, Items: "ready, while {to} has as many requests as it takes well", Normal: true},
	{Kind: ReasonPriority, Items: "behind runs of higher priority at {to}", Normal: true},
	{Kind: ReasonShare, Items: "ready, while the run has its share of {to}", Normal: true},
	{Kind: ReasonRate, Items: "waiting for the rate limit", Normal: true},
	{Kind: ReasonNext, Items: "about to be claimed", Normal: true},
	{Kind: ReasonBackoff, Items: "waiting for their next try", Normal: true},
	{Kind: ReasonThrottled, Items: "waiting for {to}, which said it has too much to do", Normal: true},
	{Kind: ReasonBreather, Items: "waiting for {to}, which was down"},
	{Kind: ReasonPostponed, Items: "not to be published at the moment"},
	{Kind: ReasonPublishing, Items: "being published", Normal: true},
	{Kind: ReasonClaimLost, Items: "claimed by a node that is gone"},
	{Kind: ReasonStreamLost, Items: "lost with a stream, about to be reissued"},
	{Kind: ReasonOverdue, Items: "past their deadline"},
	{Kind: ReasonQueued, Items: "queued for {to}", Normal: true},
	{Kind: ReasonNoListener, Items: "waiting for a service: no one listens on {to}"},
	{Kind: ReasonNotTaking, Items: "waiting for the services of {to}, which can take nothing"},
	{Kind: ReasonBusy, Items: "queued behind other requests at {to}", Normal: true},
	{Kind: ReasonSuspended, Items: "waiting: the consumer of {to} was paused by hand"},
	{Kind: ReasonNoConsumer, Items: "waiting for the consumer of {to} to be made"},
	{Kind: ReasonWorking, Items: "with the services of {to}", Normal: true},
	{Kind: ReasonGone, Items: "with a service of {to} that is gone"},
	{Kind: ReasonNested, Items: "with the flow {name}, which asks an endpoint on which no one listens"},
	{Kind: ReasonPartly, Items: "in requests that {to} has answered in part", Normal: true},
	{Kind: ReasonQuarantine, Items: "with {to}, a reply of which could not be taken"},
	{Kind: ReasonNeeds, Items: "waiting for other steps", Normal: true},
	{Kind: ReasonBarrier, Items: "waiting at a barrier, until other steps have ended for all items", Normal: true},
	{Kind: ReasonGate, Items: "waiting for someone to approve the step"},
	{Kind: ReasonNoLocal, Items: "waiting for a node that has {to}"},
	{Kind: ReasonFetching, Items: "being fetched: nodes are asking {to}", Normal: true},
	{Kind: ReasonLane, Items: "waiting in their lane for items before them", Normal: true},
	{Kind: ReasonUnplaced, Items: "waiting for more items, or for the run to be sealed", Normal: true},
	{Kind: ReasonCancelled, Items: "left without an outcome when the run was cancelled"},
	{Kind: ReasonStray, Items: "in no plane and in no slice: run `tranche doctor`"},
}

// items is what items that wait for a target say, in a few words.
func (r *Rule) items(target string) string {
	return strings.NewReplacer("{to}", workqueue.TargetText(target), "{name}", target).Replace(r.Items)
}
