package health

import (
	"strings"
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

// Kinds of conditions.
const (
	FailedItems    Kind = "failed_items" // of completed runs, neither rerun nor accepted
	StaleSlices    Kind = "stale_slices" // past their deadline, and not swept by a leader
	NoListeners    Kind = "no_listeners" // runs have work for an endpoint or function without a listener
	OldestWaiting  Kind = "work_stuck"   // items or requests not taken for long
	DeadLetters    Kind = "dead_letters"
	Quarantined    Kind = "quarantined"
	BreakerOpen    Kind = "breaker_open"
	ServiceSlow    Kind = "service_slow" // it takes far longer for an item than before
	LeaderMissing  Kind = "leader_missing"
	NodeDead       Kind = "node_dead"
	NodeLate       Kind = "node_unresponsive"
	StreamLimit    Kind = "stream_limit"
	Disk           Kind = "disk"
	StreamSettings Kind = "stream_settings"      // the streams differ from their settings
	RunHeld        Kind = "run_held"             // by an operator
	RunOverLimit   Kind = "run_over_limit"       // held: too many of its items failed
	RunApproval    Kind = "run_approval"         // its canary waits for approval
	RunFailFast    Kind = "run_fail_fast"        // its fail-fast limit was reached
	RunGate        Kind = "run_gate"             // a step waits for approval
	RunOverdue     Kind = "run_overdue"          // past its seal deadline
	RunAtRisk      Kind = "run_deadline_at_risk" // by forecast it will miss its done_by
	RunLate        Kind = "run_late"             // it has missed its done_by
	RunCompleted   Kind = "run_completed"        // in alerts only

	ScheduleFailing Kind = "schedule_failing" // the run of its last due time could not be started
	ScheduleOverdue Kind = "schedule_overdue" // a due time not taken, or whose run was not started

	CollectorParked  Kind = "collector_parked"    // operations that are not retried
	CollectorLate    Kind = "collector_late"      // operations waiting far longer than max_age
	CollectorHangs   Kind = "flush_stuck"         // a flush in progress for far too long
	CollectorRefuses Kind = "collector_rejecting" // a collector's enrich fails

	AlertFailing      Kind = "alert_failing" // a receiver of alerts has been unreachable for long
	AuditSink         Kind = "audit_sink"    // entries of the audit log are not forwarded
	Archive           Kind = "archive"       // what is past its limits is not archived, and so not deleted
	Database          Kind = "database"
	DatabaseRewind    Kind = "database_rewind" // it lost recent commits, or another server took over
	Connections       Kind = "database_connections"
	NATS              Kind = "nats"
	ResourceExhausted Kind = "resource_exhausted" // something was exhausted when the node last needed it
	EventsWaiting     Kind = "events_waiting"
	TokenExpiring     Kind = "token_expiring"
)

// What items wait for. Package api adds those that need NATS to be queried.
const (
	ReasonSampling        Kind = "sampling"
	ReasonNoNode          Kind = "no_node"
	ReasonReadOnly        Kind = "database_read_only"
	ReasonStandby         Kind = "standby_gone"
	ReasonNATSUnreachable Kind = "nats_unreachable"
	ReasonUnwritable      Kind = "disk_full" // JetStream's store cannot be written, for that or another reason
	ReasonNATSRefused     Kind = "nats_refused"
	ReasonNATSStalled     Kind = "nats_stalled" // reachable, but the streams do not answer: no quorum, or no leader
	ReasonSettingUp       Kind = "setting_up"
	ReasonProbing         Kind = "probing" // the breaker is open and a probe is in flight
	ReasonStepLimit       Kind = "step_limit"
	ReasonBudget          Kind = "endpoint_budget"
	ReasonQuota           Kind = "namespace_quota"
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
	ReasonNoLocal         Kind = "no_local"
	ReasonFetching        Kind = "fetching"
	ReasonLane            Kind = "in_lane"
	ReasonUnplaced        Kind = "open_run"
	ReasonCancelled       Kind = "cancelled"
	ReasonStray           Kind = "inconsistent" // a bug
)

// MaxCounted bounds the counts of letters and messages.
const MaxCounted = 10_000

// When something counts, and how long it is reported. None of these is a timeout of a wait.
const (
	failedWindow  = 14 * 24 * time.Hour // age of reported failed runs
	straysWindow  = 24 * time.Hour      // of reported quarantined messages
	refusedWindow = 24 * time.Hour      // of reported refused adds
	tokenWindow   = 7 * 24 * time.Hour  // how long before its end a token is reported
	eventTimeout  = time.Minute         // for an event to be published
	alertTimeout  = 10 * time.Minute    // how long a receiver may fail
	sinkTimeout   = 5 * time.Minute     // for an entry of the audit log to be forwarded
	archivePause  = 15 * time.Minute    // without an archive: two rounds of retention
	staleGrace    = 15 * time.Second    // a leader sweeps every second
	// hungAfter is how much longer than its timeout a flush may take before it is reported: its key is freed
	// [dispatch.DefaultClaimTTL] after that, unless its request was sent again.
	hungAfter = time.Minute
	// scheduleTimeout is how long after its time a due time may be taken: a new leader takes seconds.
	scheduleTimeout = time.Minute
	// startTimeout is how long a run's start may be retried before that is reported.
	startTimeout = 5 * time.Minute
	// GapTold is how long a database rewind with lost commits is reported, moveTold one without.
	GapTold  = 24 * time.Hour
	moveTold = time.Hour
)

const (
	seeErrors    = "See why: `tranche run errors {{.subject}}`"
	holdsWork    = "{{count .slices `request`}} with {{count .items `item`}}"
	haveWork     = "{{if eq .runs 1}}1 running run has{{else}}{{.runs}} running runs have{{end}} work for it."
	nothingMoves = "It sends nothing and records nothing until it can"
	lastFlush    = "{{if .failure}} The last flush failed with {{.failure}}: {{printf `%.200s` .message}}.{{end}}"
)

// What several rules say of items.
const (
	whoResumes    = "a user with the operator role"
	untilResumed  = "nothing is claimed until an operator resumes the run"
	untilApproved = "they wait for the approval"
	outOf         = "{{.live}} of {{.limit}} are in flight, which is "
	whenAnswered  = "the next are claimed as soon as a request in flight is answered"
	whoServes     = "the operator of endpoint {{.endpoint}}"
	because       = "{{if .detail}}: {{.detail}}{{end}}"
	noOne         = "no service listens on endpoint {{.endpoint}}{{if .like}} (did you mean {{.like}}?){{end}}"
	laneWhy       = "items of a lane are processed one at a time, and these wait for an earlier one"
	breakerWhy    = "most requests to {{.target}} failed, so nothing is sent to it{{if .reason}}: {{.reason}}{{end}}"
)

//nolint:gochecknoglobals // constants
var (
	adviseErrors = Advice{"see why items failed", "tranche run errors {{.run}}"}
	adviseCancel = Advice{"or cancel the run", "tranche run cancel {{.run}}"}
	adviseSeal   = Advice{"close it to new items", "tranche run seal {{.run}}"}
	adviseStart  = Advice{"start a service for endpoint {{.endpoint}}; this lists it when it listens",
		"tranche endpoints show {{.endpoint}}"}
	adviseMore = Advice{"start more instances, or raise their concurrency",
		"tranche endpoints set {{.endpoint}} --concurrency N"}
	breakerAdvice = []Advice{{"see what the endpoint answers", "tranche endpoints show {{.endpoint}}"},
		{"fix the service; then requests resume automatically", ""},
		{"or, if it is not an outage: for ten minutes requests are sent despite failures, and an item answered with errors " +
			"fails permanently after {{.attempts}}", "tranche endpoints set {{.endpoint}} --breaker closed"}}
)

// rules are all reasons. To add one, add a row.
//
//nolint:gochecknoglobals // a table
var rules = []Rule{
	{Kind: FailedItems, Owner: OwnerOperator, Name: "Failed items", Of: "run", Counts: "item",
		Many: "runs have failed items", Link: "/runs/{{.subject}}/errors",
		find: failedRuns, args: []any{failedWindow, listed},
		Title:  "{{count .count `item`}} failed: {{run .}}",
		Detail: "The run completed {{ago .since}} ago; its failed items were neither rerun nor accepted.",
		Remedy: seeErrors + "; {{if .bad}}{{.bad}}{{else}}then rerun them: `tranche run rerun {{.subject}} --failed`" +
			"{{end}}, correct wrong data: `tranche run correct {{.subject}} --items FILE`, or accept " +
			"them: `tranche run accept {{.subject}} --failed --reason TEXT`",
		Cases: map[string]Rule{"older": {
			Title:  "{{count .count `item`}} failed in {{count .of `earlier run`}}",
			Detail: "They completed within the last two weeks; their failed items were neither rerun nor accepted.",
			Remedy: "List them: `tranche run list --state completed`",
			Link:   "/runs?state=completed",
		}}},
	{Kind: RunHeld, Owner: OwnerOperator, Severity: Info, Name: "Paused", Of: "run", Many: "runs are held",
		Change: "paused", find: heldRuns, args: []any{listed}, Items: "paused: waiting for an operator to resume the run",
		Title: "Paused by {{.by}}: {{run .}}", Detail: "{{.detail}}",
		Who: whoResumes, Why: "the run was paused{{if .by}} by {{.by}}{{end}}" + because, Next: untilResumed,
		Advice: []Advice{{"resume it", "tranche run resume {{.run}}"}}},
	{Kind: RunOverLimit, Owner: OwnerOperator, Name: "Paused, too many items failed", Of: "run",
		Many: "runs are held, as too many items failed", Change: "paused", With: RunHeld,
		Items: "paused because too many items failed: waiting for an operator",
		Title: "Paused, too many items failed: {{run .}}", Detail: "{{.detail}}",
		Who: whoResumes, Why: "the run was paused because too many items failed" + because, Next: untilResumed,
		Advice: []Advice{adviseErrors,
			{"or resume with a higher limit N", "tranche run resume {{.run}} --max-failed N"}}},
	{Kind: RunFailFast, Owner: OwnerOperator, Name: "Paused, too many first outcomes failed", Of: "run",
		Many: "runs are held by their fail-fast limits", Change: "paused", With: RunHeld,
		Items: "paused because too many first outcomes failed: waiting for an operator",
		Title: "Paused, too many first outcomes failed: {{run .}}", Detail: "{{.detail}}",
		Who: whoResumes, Why: "the run was paused because too many first outcomes failed" + because, Next: untilResumed,
		Advice: []Advice{adviseErrors,
			{"if the items' data is wrong, correct it", "tranche run correct {{.run}} --items FILE"},
			{"resume without this check", "tranche run resume {{.run}}"}, adviseCancel}},
	{Kind: RunGate, Owner: OwnerOperator, Name: "At a gate, waiting for approval", Of: "run",
		Many: "runs wait at a gate for an approval", Change: "waits_for_approval", With: RunHeld,
		Items: "waiting for the step's approval",
		Title: "{{if eq .steps 1}}Step {{.detail}} waits{{else}}Steps {{.detail}} wait{{end}} for an approval: {{run .}}",
		Detail: "All earlier steps ended; the rest waits for approval." +
			"{{if .other}} The approver must not have taken part in the run.{{end}}",
		Who: "a user with the operator role{{if .other}} who took no part in the run{{end}}", Next: untilApproved,
		Why: "step {{.step}} waits for approval{{if .other}} by a user who took no part in the run{{end}}: what it needs " +
			"ended for all items",
		Advice: []Advice{{"see a sample, and differences from the previous run",
			"tranche run approve {{.run}} --step {{.step}} --dry-run"},
			{"approve the step", "tranche run approve {{.run}} --step {{.step}}"}, adviseCancel}},
	{Kind: RunApproval, Owner: OwnerOperator, Name: "Waiting for an approval", Of: "run",
		Many: "runs wait for approval", Change: "waits_for_approval", With: RunHeld,
		Items: "waiting for the canary's approval",
		Title: "Canary waits for approval: {{run .}}", Detail: "{{.detail}}",
		Who: whoResumes, Why: "its canary waits for approval" + because, Next: untilApproved,
		Advice: []Advice{{"{{if .failed}}see why items failed{{end}}", "tranche run errors {{.run}}"},
			{"see the sample", "tranche run show {{.run}}"}, {"approve the rest", "tranche run approve {{.run}}"},
			adviseCancel}},
	{Kind: RunOverdue, Owner: OwnerOperator, Name: "Not sealed before its deadline", Of: "run", Change: "overdue",
		find: unsealedRuns, args: []any{listed},
		Title: "Not sealed before its deadline: {{run .}}",
		Detail: "It is open, holds {{count .items `item`}}, and should have been sealed {{ago .since}} ago. It cannot " +
			"complete until then.",
		Why:    "it is open, and should have been sealed by {{clock .deadline}}",
		Advice: []Advice{{"seal it when all items are added", "tranche run seal {{.run}}"}, adviseCancel}},
	{Kind: RunAtRisk, Owner: OwnerOperator, Name: "Will be late", Of: "run", Many: "runs will be late",
		Change: "deadline_at_risk", find: atRiskRuns, args: []any{listed},
		Title: "Will be {{.late}} late: {{run .}}",
		Detail: "Its deadline is {{moment .by}}; by forecast it ends about {{moment .ends}}.{{if .bound}} What " +
			"bounds it: {{.bound}}.{{end}}",
		Remedy: "{{if .fix}}One change is enough: {{.fix}}{{if .command}}: `{{.command}}`{{end}}{{else}}No single " +
			"change is known to be enough; try others: `tranche run forecast {{.subject}}`{{end}}"},
	{Kind: RunLate, Owner: OwnerOperator, Name: "Late", Of: "run", Many: "runs are late", Change: "overdue",
		find: lateRuns, args: []any{listed},
		Title: "Late: {{run .}}",
		Detail: "Its deadline was {{moment .since}}, {{ago .since}} ago." +
			"{{if .did}} What its schedule did: {{.did}}.{{end}}",
		Advice: []Advice{{"see what it waits for", "tranche run explain {{.run}}"}, adviseCancel}},
	{Kind: RunCompleted, Owner: OwnerNobody, Of: "run", Change: "completed", Severity: Info,
		Title: "Completed: {{run .}}", Detail: "{{.done}} of {{count .items `item`}} done.",
		Remedy: "Nothing; its report: `tranche run report {{.subject}}`",
		Cases: map[string]Rule{"failed": {
			Title:  "Completed, {{count .failed `item`}} failed: {{run .}}",
			Remedy: seeErrors + "; and what to do: `tranche run explain {{.subject}}`", Link: "/runs/{{.subject}}/errors",
			Owner: OwnerOperator, Severity: Warning,
		}}},
	{Kind: NoListeners, Owner: OwnerService, Name: "No service listens", Of: "endpoint", Severity: Critical,
		Many: "endpoints have no listening service", Stops: StopsEndpoint,
		Items: "waiting for a service: no service listens on {to}", Who: whoServes,
		Why: noOne + "{{if .behind}}: {{.behind}}{{end}}",
		Next: "{{if .behind}}they are sent when a service listens and answers the requests in flight{{else}}the first " +
			"service that listens takes them; their deadline does not run until then{{end}}",
		Title:  "No service listens on endpoint {{.endpoint}}{{if .like}}; did you mean {{.like}}?{{end}}",
		Detail: haveWork + " Requests in flight: {{.out}}.",
		Advice: []Advice{adviseStart, {"{{if .fix}}or, if you meant {{.like}}, cancel it and start it with that name{{end}}",
			"tranche run cancel {{.run}}"}},
		Cases: map[string]Rule{"local": {
			Title: "No node has the function {{.function}}", Detail: haveWork,
			Remedy: "Start the program that embeds a node with this function",
		}}},
	{Kind: BreakerOpen, Owner: OwnerService, Name: "Most requests fail", Of: "endpoint",
		Many: "endpoints fail most requests", Stops: StopsEndpoint, find: openBreakers, args: []any{listed},
		Items: "waiting for {to}, whose breaker is open", Why: breakerWhy, Advice: breakerAdvice,
		Who: "the breaker of {{.target}}",
		Next: "{{if .probes}}{{.probes}} probes failed; another item is sent, and when it is answered the rest follow" +
			"{{else}}one item is sent as a probe; when it is answered the rest follow{{end}}",
		Title:  "Most requests fail at {{.subject}}",
		Detail: "{{.reason}}. {{uses .runs}} it; one item at a time is sent to probe it.",
		Remedy: "See what its services say: `tranche endpoints explain {{.subject}}`. Requests resume automatically when a " +
			"probe is answered",
		Cases: map[string]Rule{
			"full": {Who: "{{.servers}}", Next: "all allowed requests are in flight; when one ends, answered or at " +
				"its deadline, one item is sent as a probe"},
			"due": {Who: "{{.nodes}}", Next: "a node sends one item as a probe at its next poll; when it is " +
				"answered the rest follow"},
		}},
	{Kind: ServiceSlow, Owner: OwnerService, Name: "Became slow", Of: "endpoint", Many: "services became slow",
		find: slowServices, args: []any{nil, listed},
		Title:  "{{slow .subject .before .now}}",
		Detail: "Measured on its last answered requests, compared with the fastest of the last week. {{uses .runs}} it.",
		Remedy: "{{logs .subject}}: `tranche endpoints show {{.subject}}`. To send fewer requests concurrently: " +
			"`tranche endpoints set {{.subject}} --max-in-flight N`"},
	{Kind: OldestWaiting, Owner: OwnerOperator, Stops: StopsEndpoint, Waits: true,
		find: untakenRequests, args: []any{waiting, listed},
		Title:  "No progress for {{ago .since}}: {{run .}}",
		Detail: "It has items for {{.endpoint}} that could be sent; none is in flight, and none has moved.",
		Remedy: "See what they wait for: `tranche run explain {{.subject}}`",
		Link:   "/runs/{{.subject}}",
		Cases: map[string]Rule{"untaken": {
			Title:  "Requests for {{.subject}} have waited {{ago .since}}",
			Detail: holdsWork + " lie in the stream, and no service has taken them.",
			Remedy: "See what its services do: `tranche endpoints explain {{.subject}}`; start more of them, or raise their " +
				"concurrency: `tranche endpoints set {{.subject}} --concurrency N`",
			Link: endpointLink, Owner: OwnerService,
		}}},
	{Kind: StaleSlices, Owner: OwnerServers, Name: "Past the deadline", Of: "run", Stops: StopsRun,
		find: staleRequests, args: []any{staleGrace, listed},
		Title: "{{count .slices `request`}} past the deadline: {{run .}}",
		Detail: "They hold {{count .items `item`}}, the first since {{ago .since}} ago. The leader should have reissued " +
			"them.",
		Remedy: "See which node leads, and its log: /nodes; what they wait for: " +
			"`tranche run explain {{.subject}}`"},
	{Kind: DeadLetters, Owner: OwnerService, Name: "Dead letters", Of: "endpoint", Counts: "letter", Most: MaxCounted,
		Link: "/dead-letters?endpoint={{urlquery .subject}}", find: deadLetters, args: []any{MaxCounted, listed},
		Title:  "{{count .count `dead letter`}} of {{.subject}}",
		Detail: "No service could handle them. The oldest came {{ago .since}} ago.",
		Remedy: "See them: `tranche dlq list --endpoint {{.subject}}`; then requeue them: `tranche dlq requeue " +
			"--endpoint {{.subject}}`, or discard them: `tranche dlq drop --endpoint {{.subject}}`"},
	{Kind: Quarantined, Owner: OwnerOperator, Name: "Quarantined messages", Of: "reason", Counts: "message",
		Most: MaxCounted, Link: "/dead-letters?tab=quarantine", find: quarantined,
		args:   []any{MaxCounted, straysWindow, listed},
		Title:  "{{count .count `message`}} quarantined: {{.subject}}",
		Detail: "Within the last day, the last one {{ago .last}} ago. Their items are retried.",
		Remedy: "See what services sent: `tranche quarantine list`. This clears a day after the last one"},
	{Kind: EventsWaiting, Owner: OwnerServers, Link: "/nodes", find: waitingEvents, args: []any{eventTimeout},
		Title:  "{{count .count `event`}} could not be published",
		Detail: "The oldest is {{ago .since}} old. Kinds: {{.kinds}}. Their receivers are still waiting.",
		Remedy: "Check NATS and the nodes' logs: their user may lack a permission for these kinds, or they are " +
			"larger than max_payload. They are published as soon as NATS takes them"},
	{Kind: TokenExpiring, Owner: OwnerOperator, Name: "About to expire", Of: "token", Link: "/tokens",
		find: endingTokens, args: []any{tokenWindow, listed},
		Title:  "The token {{.subject}} expires in {{until .ends}}",
		Detail: "Its role is {{.role}}. Its users are then refused.",
		Remedy: "Rotate it and hand over the new secret: `tranche token rotate {{quote .subject}}`"},
	{Kind: ScheduleFailing, Owner: OwnerOperator, Name: "Not started by their schedules", Of: "schedule",
		Link: "/schedules", find: failedSchedules, args: []any{listed},
		Title:  "Schedule {{.subject}} {{if .missed}}missed its time{{else}}could not start its run{{end}}",
		Detail: "The occurrence of {{moment .due}} has no run: {{.reason}}",
		Remedy: "Fix that, then start it: `tranche schedule run-now {{.subject}}`; the next occurrence that starts clears " +
			"this, too"},
	{Kind: ScheduleOverdue, Owner: OwnerOperator, Name: "Due and not started", Of: "schedule", Link: "/schedules",
		find: stuckSchedules, args: []any{scheduleTimeout, startTimeout, listed}, Severity: Critical,
		Title:  "Schedule {{.subject}} has been due for {{ago .since}}",
		Detail: "No leader has handled the occurrence of {{moment .due}}.",
		Remedy: "Check that a node leads, and its tasks: `tranche nodes`",
		Cases: map[string]Rule{"taken": {
			Detail: "The run of {{moment .due}} is not started yet.{{if .loading}} Its items are being loaded, for " +
				"{{ago .loading}}.{{else if .reason}} Last message: {{.reason}}{{end}}",
			Remedy: "It is retried automatically; fix what the message says, if any. Its history: " +
				"`tranche schedule history {{.subject}}`",
			Severity: Warning,
		}}},
	{Kind: CollectorParked, Owner: OwnerOperator, Name: "Parked operations", Of: "collector", Counts: "operation",
		Link: "/collectors", find: parkedOps, args: []any{MaxCounted, listed},
		Title:  "{{are .count `operation`}} parked: collector {{.subject}}",
		Detail: "They failed too often, or permanently, the first {{ago .since}} ago, and are not retried automatically.",
		Remedy: "See why: `tranche collector ops {{.subject}} --state parked`; then retry them: `tranche collector " +
			"requeue {{.subject}} --all`, or discard them: `tranche collector drop {{.subject}} --all`"},
	{Kind: CollectorLate, Owner: OwnerOperator, Name: "Operations wait too long", Of: "collector",
		Link: "/collectors", find: lateFlushes, args: []any{waiting, listed}, Waits: true,
		Title:  "Operations wait {{ago .since}} longer than they should: collector {{.subject}}",
		Detail: "They are for endpoint {{.endpoint}} and were not flushed within max_age." + lastFlush,
		Remedy: "See what keeps them waiting: `tranche collector show {{.subject}}`",
		Cases: map[string]Rule{"paused": {
			Detail: "{{.by}} paused it; it still takes operations.",
			Remedy: "Resume it: `tranche collector resume {{.subject}}`", Severity: Info,
		}}},
	{Kind: CollectorHangs, Owner: OwnerService, Name: "Flushes that hang", Of: "collector", Link: "/collectors",
		find: hungFlushes, args: []any{hungAfter, waiting, listed}, Waits: true,
		Title: "A flush has been in progress for {{ago .since}}: collector {{.subject}}",
		Detail: "Its key is {{printf `%.100s` .key}}, for endpoint {{.endpoint}}; it may take {{lasts .timeout}}. Other " +
			"operations of the key wait for it." + lastFlush,
		Remedy: "Check whether the service still processes it: `tranche endpoints show {{.endpoint}}`; if not, restart it, " +
			"and give the collector a shorter timeout: `tranche collector show {{.subject}}`"},
	{Kind: CollectorRefuses, Owner: OwnerOperator, Name: "Adds are refused", Of: "collector", Link: "/collectors",
		find: refusedAdds, args: []any{refusedWindow, listed}, Waits: true,
		Title: "Adds have been refused for {{ago .since}}: collector {{.subject}}",
		Detail: "The collector's enrich fails, last {{ago .last}} ago: {{printf `%.300s` .problem}}. Nothing of such " +
			"an add is stored; producers are told to retry later.",
		Remedy: "Fix the source, query, service or function (`tranche collector show {{.subject}} --source`, then " +
			"`tranche collector apply FILE`); the next accepted add clears this: `tranche collector add {{.subject}} FILE`"},
	{Kind: AlertFailing, Owner: OwnerOperator, Name: "Not delivered", Of: "alert",
		Link: "/alerts?name={{urlquery .subject}}", find: failingAlerts, args: []any{alertTimeout, listed},
		Title: "Alert {{.subject}} is not delivered",
		Detail: "Its receiver has not been reached for {{ago .since}}, in {{count .failures `attempt`}}; " +
			"{{are .messages `message`}} waiting. Last error: {{.reason}}.",
		Remedy: "Fix that, then try it: `tranche alert test {{.subject}}`"},
	{Kind: AuditSink, Owner: OwnerOperator, find: stalledSink, args: []any{sinkTimeout},
		Title:  "The audit log is not forwarded to {{.subject}}",
		Detail: "{{line .reason}} The oldest entry that was not sent is from {{ago .since}} ago.",
		Remedy: "Fix that; it is retried every few seconds. To stop forwarding: start all nodes without --audit-sink, and " +
			"delete the row of the table audit_sink"},
	{Kind: Archive, Owner: OwnerOperator, find: failingArchive, args: []any{archivePause},
		Title: "Archiving to {{.subject}} fails",
		Detail: "{{line .reason}} It has failed for {{ago .since}}. Runs and audit rows are deleted only after they are " +
			"archived.",
		Remedy: "Check the bucket, its credentials and the network; then `tranche retention run`, or wait ten minutes. To " +
			"stop archiving: start all nodes without --archive, and delete the row of the table archive"},
	{Kind: StreamSettings, Owner: OwnerServers, find: streamTrouble,
		Title:  "The streams differ from their settings",
		Detail: "{{line .trouble}} (tried {{count .tries `time`}}; retrying). They work unchanged until then.",
		Remedy: "See `tranche streams`; fix that, or change the settings with `tranche streams set`"},
	{Kind: DatabaseRewind, Owner: OwnerDatabase, Link: "/nodes", Severity: Critical, find: databaseGaps,
		args:  []any{listed, GapTold, moveTold},
		Title: "The database lost recent commits",
		Detail: "What was confirmed between {{second .from}} and {{second .to}}, or in the second after, is lost: started " +
			"runs, added items, operations, acknowledgements, changes. What was in flight was reissued " +
			"({{count .runs `run`}} in progress).",
		Remedy: "Resend what was sent to Tranche in that time: with the same idempotency keys nothing is done " +
			"twice. Replicate synchronously if a failover must lose nothing",
		Cases: map[string]Rule{"moved": {
			Title: "The database failed over to another server",
			Detail: "No loss is known. If replication was asynchronous, what was confirmed in the second after " +
				"{{second .from}} may be lost. What was in flight was reissued.",
			Severity: Warning,
		}}},

	// What servers see themselves.
	{Kind: Database, Owner: OwnerDatabase, Severity: Critical,
		Title: "PostgreSQL does not answer",
		Detail: "Nothing is sent or recorded without it, and the state of runs, nodes and endpoints is unknown. " +
			"Error at {{.subject}}: {{line .said}}",
		Remedy: "Check the PostgreSQL server and the network to it; then work continues automatically",
		Cases: map[string]Rule{
			"read_only": {
				Title: "PostgreSQL takes no writes", Link: "/nodes",
				Detail: "Nothing is sent or recorded, no command changes anything, and nodes cannot send heartbeats.",
				Remedy: "Check whether --database leads to a standby (`SELECT pg_is_in_recovery()`), or is " +
					"read-only (`SHOW default_transaction_read_only`); work continues automatically when it takes writes",
			},
			"standby": {
				Title: "Commits wait for a standby", Link: "/nodes",
				Detail: "PostgreSQL confirms a commit only when a synchronous standby has it, and none does: nothing is sent or " +
					"recorded, and nodes cannot send heartbeats.",
				Remedy: "Start the standby that synchronous_standby_names names, or, to continue without it, shorten that " +
					"setting and run SELECT pg_reload_conf(); then losing the primary loses commits",
			},
		}},
	{Kind: Connections, Owner: OwnerDatabase,
		Title:  "PostgreSQL has {{.used}} of {{.limit}} connections in use",
		Detail: "Without a free one, starting nodes and other programs are refused.",
		Remedy: "Raise its max_connections, or lower --max-connections of the nodes"},
	{Kind: NATS, Owner: OwnerServers, Link: "/nodes", Stops: StopsAll, Severity: Critical,
		Title: "Cannot reach NATS: {{.node}}", Detail: nothingMoves + ".",
		Remedy: "Check the NATS server and the network to it; then work continues automatically",
		Cases: map[string]Rule{
			"here": {
				Title:  "This server cannot reach NATS",
				Detail: nothingMoves + ", and the listeners of endpoints are unknown.",
			},
			"refused": {
				Title: "NATS refuses {{.node}}", Detail: "{{.refused}}. Nothing is sent until NATS accepts it.",
				Remedy: "Give the node a user that NATS accepts (--nats-creds, NATS_CREDS, NATS_NKEY or NATS_USER), or grant its " +
					"user what `tranche nats config` prints; then work continues automatically",
			},
			"stalled": {
				Title: "JetStream does not answer", Detail: "Nothing is sent or recorded until it does. {{.said}}.",
				Remedy: "Make sure that more than half of the NATS servers run and reach each other; then work continues",
			},
		}},
	{Kind: StreamLimit, Owner: OwnerServers,
		Title:  "{{.share}} of the {{.what}} of {{.holder}} is used",
		Detail: "{{.used}} of {{.limit}}. When it is full, nothing more can be sent through it.",
		Remedy: "Check whether services take their requests: `tranche endpoints`; or raise the limit with " +
			"`tranche streams set`",
		Cases: map[string]Rule{"account": {
			Remedy: "Raise the account's limit on the NATS server, or lower those of the streams with `tranche streams set`",
		}}},
	{Kind: Disk, Owner: OwnerServers,
		Title: "{{.free}} is free on the disk of {{.subject}}",
		Detail: "That is {{.share}} of the disk that {{.dir}} is on. {{.why}}{{if .database}} The database uses " +
			"{{.database}}.{{end}}",
		Remedy: "Free space there; then work continues automatically{{if .growth}}. Or lower the streams' limits below the " +
			"{{.growth}} that they may still grow by, with `tranche streams set`{{end}}",
		Cases: map[string]Rule{"store": {
			Title: "JetStream's store cannot be written", Detail: "{{.faults}}.", Severity: Critical,
			Remedy: "{{if .full}}Free space on the disk of the NATS server; the streams are then replaced within seconds, and " +
				"what was in flight is reissued{{else}}The leader replaces the streams; if this stays, check its log{{end}}",
		}}},
	{Kind: ResourceExhausted, Owner: OwnerServers, Link: "/nodes", Severity: Critical,
		Items: "waiting for a resource that a node lacks to claim them",
		Title: "A resource is exhausted or too slow", Detail: "{{.what}}",
		Remedy: "Fix that; then work continues automatically"},
	{Kind: LeaderMissing, Owner: OwnerServers, Link: "/nodes", Stops: StopsAll, Severity: Critical,
		Title: "No node leads",
		Detail: "{{if .since}}The lease expired {{ago .since}} ago, and {{end}}{{are .alive `node`}} alive. Without a " +
			"leader, requests of dead nodes and past deadlines are not reissued.",
		Remedy: "{{if .alive}}Check the nodes' logs: one of them should take the lead within seconds" +
			"{{else}}Start a node: `tranche serve`{{end}}"},
	{Kind: NodeDead, Owner: OwnerServers, Name: "Died", Of: "node", Link: "/nodes",
		Title: "Died: {{.node}}", Remedy: "Start it again: `tranche serve`; its log says why it died",
		Detail: "Its last heartbeat was {{ago .beat}} ago, and it did not stop cleanly. Other nodes took over what it " +
			"held.",
		Cases: map[string]Rule{"holds": {
			Severity: Critical,
			Detail: "Its last heartbeat was {{ago .beat}} ago, and it still holds " + holdsWork + ", and " +
				"{{count .loads `run`}} that it was loading. The leader takes them over.",
		}}},
	{Kind: NodeLate, Owner: OwnerServers, Name: "No heartbeat", Of: "node", Link: "/nodes",
		Title: "No heartbeat: {{.node}}",
		Detail: "Its last heartbeat was {{ago .beat}} ago, and it holds " + holdsWork + ". It counts as dead in " +
			"{{until .expires}}.",
		Remedy: "Check whether its machine is overloaded or disconnected from PostgreSQL"},

	// What items wait for.
	{Kind: ReasonSampling, Owner: OwnerNode, Items: "held back until the canary's sample ends", Normal: true,
		Who: "{{.nodes}}",
		Why: "a sample of {{count .canary `item`}} runs first and these are held back (--canary {{.canary}})",
		Next: "when the last item of the sample ends, {{if .auto}}they are released if its failures are within the " +
			"limit, else wait for approval{{else}}the run waits for approval{{end}}",
		Advice: []Advice{{"see the sample's progress", "tranche run show {{.run}}"}}},
	{Kind: ReasonNoNode, Owner: OwnerOperator, Items: "waiting for a node: none is alive",
		Who: "the operator of Tranche", Next: "they continue within seconds of a node's start",
		Why:    "no node is alive{{if .last}}; the last heartbeat was of {{.last}}, {{clock .beat}}{{end}}",
		Advice: []Advice{{"start a node", "tranche serve"}}},
	{Kind: ReasonReadOnly, Owner: OwnerOperator, Items: "waiting for PostgreSQL to take writes",
		Who:  "the operator of PostgreSQL",
		Why:  "PostgreSQL takes no writes, so nothing is sent or recorded, and nodes cannot send heartbeats",
		Next: "they continue within seconds, automatically, when it does",
		Advice: []Advice{{Do: "check whether --database leads to a standby, or is set to " +
			"default_transaction_read_only"}}},
	{Kind: ReasonStandby, Owner: OwnerOperator, Items: "waiting for a standby of PostgreSQL to confirm commits",
		Who: "the operator of PostgreSQL", Why: StandbyText,
		Next: "they continue within seconds, automatically, when a standby confirms commits again"},
	{Kind: ReasonNATSRefused, Owner: OwnerOperator, Items: "waiting for a user that NATS accepts",
		Who: "the operator of NATS", Why: "{{.node}}: {{.refused}}, so nothing is sent",
		Next: "it keeps trying, and they continue within seconds once NATS accepts its user"},
	{Kind: ReasonNATSUnreachable, Owner: OwnerNode, Items: "waiting for NATS, which the node cannot reach",
		Who: "any of {{.alive}} nodes", Why: "no node can reach NATS, so nothing is sent",
		Next: "it reconnects as soon as NATS answers, and they continue immediately",
		Cases: map[string]Rule{
			"one":  {Who: "{{.node}}", Why: "{{.node}} cannot reach NATS, so it sends nothing"},
			"here": {Who: "this node", Why: "this node cannot reach NATS, so nothing is sent"},
		}},
	{Kind: ReasonNATSStalled, Owner: OwnerNATS, Items: "waiting for JetStream, which does not answer",
		Who: "the NATS servers", Why: "{{.said}}",
		Next: "they continue within seconds of the servers electing leaders; the streams keep their messages"},
	{Kind: ReasonUnwritable, Owner: OwnerOperator, Items: "waiting for JetStream, whose store cannot be written",
		Who: "the operator of NATS", Why: "{{.faults}}",
		Next: "the leader replaces the streams within seconds once there is space, and reissues what was in flight, " +
			"which does not count against it",
		Advice: []Advice{{Do: "free space on the disk of the NATS server; then work continues automatically"}},
		Cases: map[string]Rule{"room": {
			Owner: OwnerNode, Who: "{{.leader}}", Advice: []Advice{},
			Next: "it replaces them within seconds, and reissues what was in flight, which does not count against it",
		}}},
	{Kind: ReasonSettingUp, Owner: OwnerNode, Items: "waiting for the streams to be set up", Normal: true,
		Who: "this node", Why: "it creates the streams as soon as NATS and PostgreSQL answer",
		Next: "they continue immediately after that"},
	{Kind: ReasonProbing, Owner: OwnerService, Items: "waiting for {to}, whose breaker is open", Who: "{{.servers}}",
		Why: breakerWhy, Advice: breakerAdvice,
		Next: "a probe is in flight; if it is answered the rest follow, if it fails another one is sent"},
	{Kind: ReasonStepLimit, Owner: OwnerService, Items: "ready; the run's limit of requests in flight is reached",
		Normal: true, Behind: true, Who: "{{.servers}}", Next: whenAnswered,
		Why:    outOf + "the run's limit of requests in flight",
		Advice: []Advice{{"raise the limit", "tranche run set {{.run}} --in-flight N{{.flag}}"}},
		Cases: map[string]Rule{"gentle": {
			Why:    outOf + "as many as the run needs to meet its done_by: it is gentle",
			Advice: []Advice{{"allow as many as its limits do", "tranche run set {{.run}} --no-gentle"}},
		}}},
	{Kind: ReasonBudget, Owner: OwnerService, Items: "ready; the budget of {to} is used up", Normal: true,
		Behind: true, Who: "{{.servers}}", Why: outOf + "the budget of {{.target}} over all runs", Next: whenAnswered,
		Advice: []Advice{{"raise the limit", "tranche endpoints set {{.endpoint}} --max-in-flight N"}}},
	{Kind: ReasonQuota, Owner: OwnerService, Items: "ready; its namespace has all requests that it may have", Normal: true,
		Behind: true, Who: "{{.servers}}", Why: outOf + "the quota of namespace {{.namespace}}", Next: whenAnswered,
		Advice: []Advice{{"raise the quota", "tranche namespace set {{.namespace}} --max-in-flight N"}}},
	{Kind: ReasonAdaptive, Owner: OwnerService, Items: "ready; {to} has as many requests as it handles well",
		Normal: true, Behind: true, Who: "{{.servers}}", Next: whenAnswered,
		Why:    outOf + "the limit that nodes found for {{.target}}{{if .change}}; its last change: {{.change}}{{end}}",
		Advice: []Advice{{"see how it was set", "tranche endpoints show {{.endpoint}}"}}},
	{Kind: ReasonPriority, Items: "behind runs of higher priority at {to}", Normal: true, Behind: true,
		Why: "{{if eq .runs 1}}run {{.one}} of priority {{.highest}} (this one has {{.priority}}) comes first" +
			"{{else}}{{.runs}} runs of higher priority (up to {{.highest}}; this one has {{.priority}}) come first{{end}}",
		Next:   "the next are claimed when a request ends and runs of higher priority have nothing to send",
		Advice: []Advice{{"raise its priority", "tranche run set {{.run}} --priority {{.highest}}"}}},
	{Kind: ReasonShare, Owner: OwnerService, Items: "ready; the run has its share of {to}", Normal: true,
		Behind: true, Who: "{{.servers}}",
		Why: outOf + "the run's share of the {{.takes}} that {{.target}} takes: {{if eq .others 1}}another run has work" +
			"{{else}}{{.others}} other runs have work{{end}} for it, too",
		Next:   "the next are claimed when one of its requests is answered, or when other runs need less",
		Advice: []Advice{{"raise its priority", "tranche run set {{.run}} --priority {{.more}}"}}},
	{Kind: ReasonRate, Owner: OwnerTimer, Items: "waiting for the rate limit", Normal: true,
		Who: "the rate limit", Why: "{{.limit}}",
		Next: "{{if .all}}all of them take {{.all}} at that rate; the next are claimed when it allows{{else}}the next are " +
			"claimed when the rate allows{{end}}"},
	{Kind: ReasonNext, Owner: OwnerNode, Items: "about to be claimed", Normal: true, Who: "{{.nodes}}",
		Why: "they can be claimed", Next: "a node claims them at its next poll",
		Cases: map[string]Rule{"busy": {
			Why: "they can be claimed; nodes have {{.live}} requests to {{.target}} in flight, and claim as many as " +
				"they have room for",
			Next: "a node claims them at its next poll, when it has room",
		}}},
	{Kind: ReasonBackoff, Owner: OwnerTimer, Items: "waiting for their next attempt", Normal: true,
		Who: "the pause before the next attempt",
		Next: "they are claimed and sent {{if .last}}for the last time: an item that fails again has failed; a request of " +
			"several items that fails entirely is halved{{else}}again{{end}}"},
	{Kind: ReasonThrottled, Owner: OwnerTimer, Items: "waiting for {to}, which said it is overloaded", Normal: true,
		Who: "the pause for an overloaded service", Next: "they are claimed and sent again",
		Advice: []Advice{{"see the endpoint's pace", "tranche endpoints show {{.endpoint}}"}}},
	{Kind: ReasonBreather, Owner: OwnerTimer, Items: "waiting for {to}, which was down",
		Who: "the pause for an endpoint that is down", Next: "they are claimed and sent again"},
	{Kind: ReasonPostponed, Owner: OwnerTimer, Items: "waiting to be published again",
		Who: "the pause after a request that could not be published", Next: "a node claims them and publishes again",
		Advice: []Advice{{"check that NATS works and allows publishing to the endpoint",
			"tranche endpoints explain {{.endpoint}}"}},
		Cases: map[string]Rule{"fetched": {
			Who: "the pause after a node failed to process them", Next: "a node claims them and tries again",
			Advice: []Advice{{"see which nodes do this work", "tranche endpoints show {{.endpoint}}"}},
		}}},
	{Kind: ReasonPublishing, Owner: OwnerNode, Items: "being published", Normal: true, Who: "{{.node}}",
		Why:  "it has claimed them and is publishing their requests",
		Next: "the requests reach the stream in a moment; if not, they are reissued"},
	{Kind: ReasonClaimLost, Owner: OwnerNode, Items: "claimed, but not published", Who: "{{.leader}}",
		Why: "{{.node}} {{if .late}}claimed them and did not publish them{{else}}claimed them, and its session " +
			"ended{{end}}",
		Next: "they are reissued, which does not count against them"},
	{Kind: ReasonStreamLost, Owner: OwnerNode, Items: "lost with a stream, about to be reissued", Who: "{{.leader}}",
		Why:  "the streams with their requests or replies were lost",
		Next: "they are reissued immediately, which does not count against them"},
	{Kind: ReasonOverdue, Owner: OwnerNode, Items: "past their deadline", Who: "{{.leader}}",
		Why:  "{{if .node}}{{.node}} had no results by the deadline{{else}}no reply came before the deadline{{end}}",
		Next: "that counts as a failed attempt: they are retried, halved, or failed with code deadline"},
	{Kind: ReasonQueued, Owner: OwnerService, Items: "queued for {to}", Normal: true, Who: "{{.servers}}",
		Why: "no service is known to have taken them",
		Next: "a service takes them; {{if .nodeless}}the replies are recorded when a node is back{{else}}at the " +
			"deadline a node checks whether they are still in the stream{{end}}"},
	{Kind: ReasonNotTaking, Owner: OwnerService, Items: "waiting for the services of {to}, which take no requests",
		Who: "{{.listens}}", Why: "no instance can take requests: {{.reasons}}",
		Next:   "the first instance that can takes them",
		Advice: []Advice{{"see what blocks the services", "tranche endpoints show {{.endpoint}}"}, adviseStart}},
	{Kind: ReasonBusy, Owner: OwnerService, Items: "queued behind other requests at {to}", Normal: true,
		Who: "{{.listens}}",
		Why: "{{.waiting}} requests wait in the stream: the services are at capacity",
		Next: "the services take them in order{{if .rate}}, {{.rate}} over the last minute; the last about{{else}}; " +
			"they answered nothing in the last minute{{end}}",
		Advice: []Advice{adviseMore}},
	{Kind: ReasonSuspended, Owner: OwnerNode, Items: "waiting: the consumer of {to} was paused by hand",
		Who: "the leader", Next: "the leader resumes it within seconds",
		Why: "the consumer of endpoint {{.endpoint}} was paused in NATS, for another {{.pause}}"},
	{Kind: ReasonNoConsumer, Owner: OwnerNode, Items: "waiting for the consumer of {to} to be created", Who: "the leader",
		Why:  "the consumer through which services take requests does not exist",
		Next: "the leader recreates it within seconds, and services continue"},
	{Kind: ReasonWorking, Owner: OwnerService, Items: "with the services of {to}", Normal: true, Who: "{{.servers}}",
		Why: "a service has taken them", Next: "the service replies; without a reply by the deadline they are retried"},
	{Kind: ReasonGone, Owner: OwnerOperator, Items: "with a service of {to} that is gone", Who: whoServes,
		Why: "{{.before}}; no service listens on endpoint {{.endpoint}} any more, so the one that took them stopped or is " +
			"cut off",
		Next: "JetStream delivers them to the next listening service, {{.wait}} after the last heartbeat; without a reply " +
			"by the deadline they are retried",
		Advice: []Advice{adviseStart}},
	{Kind: ReasonNested, Owner: OwnerOperator,
		Items: "with the flow {name}, which calls an endpoint that has no listener",
		Who:   "the operator of endpoint {{.asked}}",
		Next:  "the flow continues when a service answers; without a reply by the deadline they are retried"},
	{Kind: ReasonPartly, Owner: OwnerService, Items: "in requests that {to} answered in part", Normal: true,
		Who: "{{.servers}}",
		Why: "a service took them and answered {{count .answered `item`}} of the same requests{{if .final}}; the last " +
			"message of the reply came, and an earlier one is missing{{end}}",
		Next: "{{if .final}}the missing message comes; without it{{else}}the service answers; without a reply{{end}} by " +
			"the deadline they are retried"},
	{Kind: ReasonQuarantine, Items: "with {to}, which sent an unreadable reply",
		Advice: []Advice{{"see what the service sent", "tranche quarantine list --run {{.run}}"}}},
	{Kind: ReasonNeeds, Owner: OwnerStep, Items: "waiting for other steps", Normal: true, Who: "{{.steps}}",
		Why: "step {{.step}} needs their results from {{.steps}}",
		Next: "an item becomes ready when the last result that it needs is recorded{{if .gate}}, and continues " +
			"when the step is approved{{else if .barred}}, and continues when the step's barrier is passed{{end}}"},
	{Kind: ReasonBarrier, Owner: OwnerStep, Normal: true,
		Items: "waiting at a barrier until other steps end for all items", Who: "{{.steps}}",
		Why: "step {{.step}} has a barrier: it begins when what it needs ended for all items; remaining: " +
			"{{.left}}",
		Next: "{{if .gate}}when the last of those ends, the step waits for approval{{else}}they continue when " +
			"the last of those ends{{end}}",
		Cases: map[string]Rule{"passed": {
			Owner: OwnerNode, Who: "{{.leader}}", Next: "the barrier is passed, and they can be claimed",
			Why: "step {{.step}} has a barrier, and what it waited for ended",
		}}},
	{Kind: ReasonNoLocal, Owner: OwnerOperator, Items: "waiting for a node that has {to}",
		Who:  "the operator of the program with {{.function}}",
		Why:  "no node here has local function {{.function}}{{with .step}} of step {{.}}{{end}}",
		Next: "the first node with it claims them",
		Advice: []Advice{{"start a program that embeds a node with this function; this lists it then",
			"tranche endpoints show {{.endpoint}}"}}},
	{Kind: ReasonFetching, Owner: OwnerNode, Items: "being fetched: nodes call {to}", Normal: true, Who: "{{.node}}",
		Why:  "{{.node}} is calling {{.target}} for them",
		Next: "results are recorded as they come; the rest is retried at the deadline",
		Cases: map[string]Rule{
			"direct": {Owner: OwnerService, Who: "{{.servers}}", Why: "{{.node}} sent them in plain requests"},
			"local":  {Why: "{{.node}} is running {{.target}} on them"},
		}},
	{Kind: ReasonLane, Owner: OwnerStep, Items: "waiting in their lane for items before them", Normal: true,
		Who: "the items before them", Why: laneWhy,
		Next: "an item becomes ready when the outcome of the one before it is recorded",
		Cases: map[string]Rule{"known": {
			Who:    "item {{printf `%.80q` .ahead}}",
			Why:    "it waits for item {{printf `%.80q` .ahead}} of the same lane, which is in progress",
			Advice: []Advice{{"see what that item waits for", "tranche run explain {{.run}} --item {{quote .ahead}}"}},
		}}},
	{Kind: ReasonUnplaced, Owner: OwnerOperator, Items: "waiting for more items, or for the run to be sealed",
		Normal: true, Who: "the producer of the run's items",
		Why: "the run is open; items begin when 8192 of them were added or the run is sealed",
		Next: "they begin when their block is full or the run is sealed{{if .overdue}}; it should have been sealed " +
			"by {{clock .deadline}}{{else if .deadline}}; it should be by{{end}}",
		Advice: []Advice{adviseSeal}},
	{Kind: ReasonCancelled, Owner: OwnerNobody, Items: "left without an outcome when the run was cancelled",
		Who: "the run was cancelled", Why: "the run was cancelled before they were answered",
		Next: "nothing, unless the run is resumed: what was recorded stays",
		Advice: []Advice{{"resume the run", "tranche run resume {{.run}}"},
			{"or run them in a new run", "tranche run start --from {{.run}} --state cancelled"}}},
	{Kind: ReasonStray, Owner: OwnerOperator, Items: "in no plane and in no slice: run `tranche doctor`",
		Who: "the operator of Tranche", Why: "they are in no plane and no slice, which is a defect",
		Next:   "nothing moves them automatically",
		Advice: []Advice{{"check the database, and report the output", "tranche doctor"}}},
}

// items is what items waiting for a target say, in a few words.
func (r *Rule) items(target string) string {
	return strings.NewReplacer("{to}", workqueue.TargetText(target), "{name}", target).Replace(r.Items)
}
