package health

import (
	"strings"
	"time"

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
	RunHeld        Kind = "run_held"             // by someone
	RunOverLimit   Kind = "run_over_limit"       // held: more of its items failed than may
	RunApproval    Kind = "run_approval"         // its canary waits for someone
	RunFailFast    Kind = "run_fail_fast"        // by its fail-fast limit: its first outcomes plainly failed
	RunGate        Kind = "run_gate"             // a step of it waits for someone
	RunOverdue     Kind = "run_overdue"          // not sealed in time
	RunAtRisk      Kind = "run_deadline_at_risk" // it will not be done by its time
	RunLate        Kind = "run_late"             // it was not
	RunCompleted   Kind = "run_completed"        // in alerts only

	ScheduleFailing Kind = "schedule_failing" // the run of its last due time could not be started
	ScheduleOverdue Kind = "schedule_overdue" // a due time that no one takes, or whose run is not started

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
	ReasonStray           Kind = "inconsistent" // a fault of ours
)

// MaxCounted is how far letters and messages are counted.
const MaxCounted = 10_000

// Since when something counts, and for how long it is told of. None of these is a timeout that anybody waits for.
const (
	failedWindow  = 14 * 24 * time.Hour // how far back failed runs are told of
	straysWindow  = 24 * time.Hour      // the same for quarantined messages
	refusedWindow = 24 * time.Hour      // refused adds that were noted within it are told of
	tokenWindow   = 7 * 24 * time.Hour  // so long before its end a token is told of
	eventTimeout  = time.Minute         // for an event to be published
	alertTimeout  = 10 * time.Minute    // for which a receiver may fail
	staleGrace    = 15 * time.Second    // a leader sweeps every second
	// hungAfter is how much longer than its time-out a flush may be in progress before it is told of: its key is free
	// [dispatch.DefaultClaimTTL] after that, unless its request was sent again.
	hungAfter = time.Minute
	// scheduleTimeout is how long after its time a due time may be taken: a new leader is there within seconds.
	scheduleTimeout = time.Minute
	// startTimeout is how long a run may be tried to be started before anybody is told.
	startTimeout = 5 * time.Minute
	// GapTold is for how long the health tells of a gap in which something was lost; of a server that took over without
	// a loss that is known, it does for an hour.
	GapTold  = 24 * time.Hour
	moveTold = time.Hour
)

const (
	seeErrors    = "See why: `tranche run errors {{.subject}}`"
	orCancel     = "or cancel it: `tranche run cancel {{.subject}}`"
	seeWaits     = "See what it waits for: `tranche run explain {{.subject}}`"
	holdsWork    = "{{count .slices `request`}} with {{count .items `item`}}"
	haveWork     = "{{if eq .runs 1}}1 running run has{{else}}{{.runs}} running runs have{{end}} work for it."
	nothingMoves = "It sends nothing and records nothing until it can"
	lastFlush    = "{{if .failure}} The last flush failed with {{.failure}}: {{printf `%.200s` .message}}.{{end}}"
)

// What several rules say of items.
const (
	whoResumes    = "whoever may resume the run"
	untilResumed  = "nothing is claimed until someone resumes the run"
	untilApproved = "they stay where they are until someone approves"
	outOf         = "{{.live}} of {{.limit}} are out, which is "
	whenAnswered  = "the next are claimed as soon as one of the requests out is answered"
	whoServes     = "whoever runs the services of endpoint {{.endpoint}}"
	because       = "{{if .detail}}: {{.detail}}{{end}}"
	noOne         = "no one listens on endpoint {{.endpoint}}{{if .like}}; was {{.like}} meant?{{end}}"
	laneWhy       = "items of the same lane are worked on one at a time, and these wait for one before them"
	breakerWhy    = "most requests to {{.target}} failed, so nothing is sent to it{{if .reason}}: {{.reason}}{{end}}"
)

//nolint:gochecknoglobals // constants
var (
	adviseErrors = Advice{"see why items failed", "tranche run errors {{.run}}"}
	adviseCancel = Advice{"or give the run up", "tranche run cancel {{.run}}"}
	adviseSeal   = Advice{"say that no more items come", "tranche run seal {{.run}}"}
	adviseStart  = Advice{"start a service that listens on endpoint {{.endpoint}}; it is there when this names it",
		"tranche endpoints show {{.endpoint}}"}
	adviseMore = Advice{"start more instances, or let each do more at once",
		"tranche endpoints set {{.endpoint}} --concurrency N"}
	breakerAdvice = []Advice{{"see what the endpoint answers", "tranche endpoints show {{.endpoint}}"},
		{"fix the service; nothing must be done here then", ""},
		{"or say that it is no outage: for ten minutes requests go whatever fails, and an item that it answers with errors " +
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
		Detail: "The run completed {{ago .since}} ago, and no one has run its failed items again, or accepted them.",
		Remedy: seeErrors + "; {{if .bad}}{{.bad}}{{else}}then run them again: `tranche run rerun {{.subject}} --failed`" +
			"{{end}}, correct their data where that is wrong: `tranche run correct {{.subject}} --items FILE`, or accept " +
			"them: `tranche run accept {{.subject}} --failed --reason TEXT`",
		Cases: map[string]Rule{"older": {
			Title:  "{{count .count `item`}} failed in {{count .of `more run`}} before those",
			Detail: "They completed within the last two weeks, and no one has run their failed items again, or accepted them.",
			Remedy: "List them: `tranche run list --state completed`",
			Link:   "/runs?state=completed",
		}}},
	{Kind: RunHeld, Owner: OwnerOperator, Severity: Info, Name: "Paused", Of: "run", Many: "runs are held",
		Change: "paused", find: heldRuns, args: []any{listed}, Items: "paused: waiting for someone to resume the run",
		Title: "Paused by {{.by}}: {{run .}}", Detail: "{{.detail}}",
		Who: whoResumes, Why: "the run was paused{{if .by}} by {{.by}}{{end}}" + because, Next: untilResumed,
		Advice: []Advice{{"let it go on", "tranche run resume {{.run}}"}}},
	{Kind: RunOverLimit, Owner: OwnerOperator, Name: "Paused, too many items failed", Of: "run",
		Many: "runs are held, as too many items failed", Change: "paused", With: RunHeld,
		Items: "paused because too many items failed: waiting for an operator",
		Title: "Paused, too many items failed: {{run .}}", Detail: "{{.detail}}",
		Who: whoResumes, Why: "the run was paused because too many items failed" + because, Next: untilResumed,
		Advice: []Advice{adviseErrors,
			{"or go on and let more fail; N is the new limit", "tranche run resume {{.run}} --max-failed N"}}},
	{Kind: RunFailFast, Owner: OwnerOperator, Name: "Paused, first outcomes failed", Of: "run",
		Many: "runs are held by their fail-fast limits", Change: "paused", With: RunHeld,
		Items: "paused because the first outcomes plainly failed: waiting for an operator",
		Title: "Paused, its first outcomes plainly failed: {{run .}}", Detail: "{{.detail}}",
		Who: whoResumes, Why: "the run was paused because its first outcomes plainly failed" + because, Next: untilResumed,
		Advice: []Advice{adviseErrors,
			{"when the items' data is wrong, correct that", "tranche run correct {{.run}} --items FILE"},
			{"go on as it is; it is not asked again", "tranche run resume {{.run}}"}, adviseCancel}},
	{Kind: RunGate, Owner: OwnerOperator, Name: "At a gate, waiting for an approval", Of: "run",
		Many: "runs wait at a gate for an approval", Change: "waits_for_approval", With: RunHeld,
		Items: "waiting for someone to approve the step",
		Title: "{{if eq .steps 1}}Step {{.detail}} waits{{else}}Steps {{.detail}} wait{{end}} for an approval: {{run .}}",
		Detail: "All that comes before has ended, and nothing goes on before someone has looked." +
			"{{if .other}} That must be someone without a part in the run.{{end}}",
		Who: "whoever may approve the run{{if .other}} and has no part in it{{end}}", Next: untilApproved,
		Why: "step {{.step}} waits for someone to approve it: what it needs has ended for all items",
		Advice: []Advice{{"look at a sample, and what is different from the run before",
			"tranche run approve {{.run}} --step {{.step}} --dry-run"},
			{"let the step begin", "tranche run approve {{.run}} --step {{.step}}"}, adviseCancel}},
	{Kind: RunApproval, Owner: OwnerOperator, Name: "Waiting for an approval", Of: "run",
		Many: "runs wait for an approval", Change: "waits_for_approval", With: RunHeld,
		Items: "waiting for someone to approve the canary",
		Title: "Waits for an approval of its sample: {{run .}}", Detail: "{{.detail}}",
		Who: "whoever may approve the run", Why: "its canary waits for someone to approve" + because, Next: untilApproved,
		Advice: []Advice{{"{{if .failed}}see why items failed{{end}}", "tranche run errors {{.run}}"},
			{"look at the sample", "tranche run show {{.run}}"}, {"let the rest go", "tranche run approve {{.run}}"},
			adviseCancel}},
	{Kind: RunOverdue, Owner: OwnerOperator, Name: "Not sealed in time", Of: "run", Change: "overdue",
		find: unsealedRuns, args: []any{listed},
		Title: "Not sealed in time: {{run .}}",
		Detail: "It is open, holds {{count .items `item`}}, and should have been sealed {{ago .since}} ago. It cannot " +
			"complete before.",
		Remedy: "Seal it when all items are there: `tranche run seal {{.subject}}`; " + orCancel},
	{Kind: RunAtRisk, Owner: OwnerOperator, Name: "Will be late", Of: "run", Many: "runs will be late",
		Change: "deadline_at_risk", find: atRiskRuns, args: []any{listed},
		Title: "Will be {{.late}} late: {{run .}}",
		Detail: "It is to be done by {{moment .by}}, and by forecast it ends about {{moment .ends}}.{{if .bound}} What " +
			"bounds it: {{.bound}}.{{end}}",
		Remedy: "{{if .fix}}One change is enough: {{.fix}}{{if .command}}: `{{.command}}`{{end}}{{else}}No single change is " +
			"known to be enough; see what others bring: `tranche run forecast {{.subject}}`{{end}}"},
	{Kind: RunLate, Owner: OwnerOperator, Name: "Late", Of: "run", Many: "runs are late", Change: "overdue",
		find: lateRuns, args: []any{listed},
		Title: "Late: {{run .}}",
		Detail: "It was to be done by {{moment .since}}, {{ago .since}} ago, and is not." +
			"{{if .did}} What its schedule did: {{.did}}.{{end}}",
		Remedy: seeWaits + "; " + orCancel},
	{Kind: RunCompleted, Owner: OwnerNobody, Of: "run", Change: "completed", Severity: Info,
		Title: "Completed: {{run .}}", Detail: "{{.done}} of {{count .items `item`}} done.",
		Remedy: "Nothing; its account is there: `tranche run report {{.subject}}`",
		Cases: map[string]Rule{"failed": {
			Title:  "Completed, {{count .failed `item`}} failed: {{run .}}",
			Remedy: seeErrors + "; and what helps: `tranche run explain {{.subject}}`", Link: "/runs/{{.subject}}/errors",
			Owner: OwnerOperator, Severity: Warning,
		}}},
	{Kind: NoListeners, Owner: OwnerService, Name: "No one listens", Of: "endpoint", Severity: Critical,
		Many: "endpoints have no one who listens", Stops: StopsEndpoint,
		Items: "waiting for a service: no one listens on {to}", Who: whoServes,
		Why: noOne + "{{if .behind}}: {{.behind}}{{end}}",
		Next: "{{if .behind}}they are sent when a service listens and answers the requests that are out{{else}}the first " +
			"service that listens takes them at once; until then their time does not run{{end}}",
		Title:  "No one listens on endpoint {{.endpoint}}{{if .like}}; was {{.like}} meant?{{end}}",
		Detail: haveWork + " Requests that are out: {{.out}}.",
		Advice: []Advice{adviseStart, {"{{if .fix}}or, if {{.like}} was meant, cancel the run and start it again with that " +
			"name{{end}}", "tranche run cancel {{.run}}"}},
		Cases: map[string]Rule{"local": {
			Title: "No node has the function {{.function}}", Detail: haveWork,
			Remedy: "Start the program that embeds a node with this function",
		}}},
	{Kind: BreakerOpen, Owner: OwnerService, Name: "Most requests fail", Of: "endpoint",
		Many: "endpoints fail most requests", Stops: StopsEndpoint, find: openBreakers, args: []any{listed},
		Items: "waiting for {to}, whose breaker is open", Why: breakerWhy, Advice: breakerAdvice,
		Who: "the breaker of {{.target}}",
		Next: "{{if .probes}}{{.probes}} probes failed; another item is sent, and when it is answered everything goes on" +
			"{{else}}one item is sent as a probe; when it is answered everything goes on{{end}}",
		Title:  "Most requests fail at {{.subject}}",
		Detail: "{{.reason}}. {{uses .runs}} it; one item at a time is sent, to see whether it is up again.",
		Remedy: "See what its services say: `tranche endpoints explain {{.subject}}`. It is asked again by itself when a " +
			"probe is answered",
		Cases: map[string]Rule{
			"full": {Who: "{{.servers}}", Next: "as many requests are out as may be; when one of them ends, answered or at " +
				"its deadline, one item is sent as a probe"},
			"due": {Who: "{{.nodes}}", Next: "a node sends one item as a probe with its next look for work; when it is " +
				"answered everything goes on"},
		}},
	{Kind: ServiceSlow, Owner: OwnerService, Name: "Became slow", Of: "endpoint", Many: "services became slow",
		find: slowServices, args: []any{nil, listed},
		Title:  "{{slow .subject .before .now}}",
		Detail: "Measured by the last requests that it answered, against the quickest of the last week. {{uses .runs}} it.",
		Remedy: "{{logs .subject}}: `tranche endpoints show {{.subject}}`. To send fewer requests at once: " +
			"`tranche endpoints set {{.subject}} --max-in-flight N`"},
	{Kind: OldestWaiting, Owner: OwnerOperator, Stops: StopsEndpoint, Waits: true,
		find: untakenRequests, args: []any{waiting, listed},
		Title:  "Nothing moves for {{ago .since}}: {{run .}}",
		Detail: "It has items for {{.endpoint}} that could be sent, none of them is out, and nothing has happened to any.",
		Remedy: "See what they wait for: `tranche run explain {{.subject}}`",
		Link:   "/runs/{{.subject}}",
		Cases: map[string]Rule{"untaken": {
			Title:  "Requests for {{.subject}} have waited for {{ago .since}}",
			Detail: holdsWork + " lie in the stream, and no service has taken them.",
			Remedy: "See what its services do: `tranche endpoints explain {{.subject}}`; start more of them, or let each do " +
				"more at once: `tranche endpoints set {{.subject}} --concurrency N`",
			Link: endpointLink, Owner: OwnerService,
		}}},
	{Kind: StaleSlices, Owner: OwnerServers, Name: "Past the deadline", Of: "run", Stops: StopsRun,
		find: staleRequests, args: []any{staleGrace, listed},
		Title: "{{count .slices `request`}} past the deadline: {{run .}}",
		Detail: "They hold {{count .items `item`}}, the first since {{ago .since}} ago. The leader should have issued them " +
			"again.",
		Remedy: "See who leads, and what it says in its log: /nodes; what they wait for: " +
			"`tranche run explain {{.subject}}`"},
	{Kind: DeadLetters, Owner: OwnerService, Name: "Dead letters", Of: "endpoint", Counts: "letter", Most: MaxCounted,
		Link: "/dead-letters?endpoint={{urlquery .subject}}", find: deadLetters, args: []any{MaxCounted, listed},
		Title:  "{{count .count `dead letter`}} of {{.subject}}",
		Detail: "No service could deal with them. The oldest came {{ago .since}} ago.",
		Remedy: "See them: `tranche dlq list --endpoint {{.subject}}`; then send them again: `tranche dlq requeue " +
			"--endpoint {{.subject}}`, or give them up: `tranche dlq drop --endpoint {{.subject}}`"},
	{Kind: Quarantined, Owner: OwnerOperator, Name: "Messages that could not be taken", Of: "reason", Counts: "message",
		Most: MaxCounted, Link: "/dead-letters?tab=quarantine", find: quarantined,
		args:   []any{MaxCounted, straysWindow, listed},
		Title:  "{{count .count `message`}} could not be taken: {{.subject}}",
		Detail: "Within the last day, the last one {{ago .last}} ago. Their items are retried.",
		Remedy: "See what services sent: `tranche quarantine list`. This is over a day after the last one"},
	{Kind: EventsWaiting, Owner: OwnerServers, Link: "/nodes", find: waitingEvents, args: []any{eventTimeout},
		Title:  "{{count .events `event`}} could not be published",
		Detail: "The oldest is {{ago .since}} old; they say {{.kinds}}. Who waits for them does not know yet.",
		Remedy: "See to NATS, and to what the nodes log: their user may lack a permission for these kinds, or they are " +
			"larger than max_payload. They are published as soon as NATS takes them"},
	{Kind: TokenExpiring, Owner: OwnerOperator, Name: "About to expire", Of: "token", Link: "/tokens",
		find: endingTokens, args: []any{tokenWindow, listed},
		Title:  "The token {{.subject}} expires in {{until .ends}}",
		Detail: "It is one of role {{.role}}. Who uses it is refused from then on.",
		Remedy: "Make another and hand it over: `tranche token create --role {{.role}}`; then revoke this one"},
	{Kind: ScheduleFailing, Owner: OwnerOperator, Name: "Not started by their schedules", Of: "schedule",
		Link: "/schedules", find: failedSchedules, args: []any{listed},
		Title:  "Schedule {{.subject}} {{if .missed}}missed its time{{else}}could not start its run{{end}}",
		Detail: "That of {{moment .due}} has no run: {{.reason}}",
		Remedy: "Fix that, then start it: `tranche schedule run-now {{.subject}}`; the next due time that goes well ends " +
			"this, too"},
	{Kind: ScheduleOverdue, Owner: OwnerOperator, Name: "Due and not started", Of: "schedule", Link: "/schedules",
		find: stuckSchedules, args: []any{scheduleTimeout, startTimeout, listed}, Severity: Critical,
		Title:  "Schedule {{.subject}} has been due for {{ago .since}}",
		Detail: "No leader has taken the due time {{moment .due}}.",
		Remedy: "See whether a node leads, and what its tasks say: `tranche nodes`",
		Cases: map[string]Rule{"taken": {
			Detail: "The run of {{moment .due}} is not started yet.{{if .loading}} Its items are being loaded, for " +
				"{{ago .loading}}.{{else if .reason}} The last that was heard: {{.reason}}{{end}}",
			Remedy: "It is retried by itself; fix what it says if it says anything. What became of it: " +
				"`tranche schedule history {{.subject}}`",
			Severity: Warning,
		}}},
	{Kind: CollectorParked, Owner: OwnerOperator, Name: "Parked operations", Of: "collector", Counts: "operation",
		Link: "/collectors", find: parkedOps, args: []any{MaxCounted, listed},
		Title:  "{{are .count `operation`}} parked: collector {{.subject}}",
		Detail: "They failed too often, or permanently, the first {{ago .since}} ago, and are not retried by themselves.",
		Remedy: "See why: `tranche collector ops {{.subject}} --state parked`; then try them again: `tranche collector " +
			"requeue {{.subject}} --all`, or give them up: `tranche collector drop {{.subject}} --all`"},
	{Kind: CollectorLate, Owner: OwnerOperator, Name: "Operations that wait for too long", Of: "collector",
		Link: "/collectors", find: lateFlushes, args: []any{waiting, listed}, Waits: true,
		Title:  "Operations wait {{ago .since}} longer than they should: collector {{.subject}}",
		Detail: "They are for endpoint {{.endpoint}}, and have not been flushed within max_age." + lastFlush,
		Remedy: "See what keeps them waiting: `tranche collector show {{.subject}}`",
		Cases: map[string]Rule{"paused": {
			Detail: "{{.by}} paused it, and it goes on taking operations.",
			Remedy: "Go on with: `tranche collector resume {{.subject}}`", Severity: Info,
		}}},
	{Kind: CollectorHangs, Owner: OwnerService, Name: "Flushes that hang", Of: "collector", Link: "/collectors",
		find: hungFlushes, args: []any{hungAfter, waiting, listed}, Waits: true,
		Title: "A flush is in progress for {{ago .since}}: collector {{.subject}}",
		Detail: "It is of key {{printf `%.100s` .key}}, for endpoint {{.endpoint}}, and may take {{lasts .timeout}}. What " +
			"waits for its key goes after it." + lastFlush,
		Remedy: "See whether the service still works on it: `tranche endpoints show {{.endpoint}}`; restart it if not, " +
			"and give the collector a shorter timeout: `tranche collector show {{.subject}}`"},
	{Kind: CollectorRefuses, Owner: OwnerOperator, Name: "Adds that are refused", Of: "collector", Link: "/collectors",
		find: refusedAdds, args: []any{refusedWindow, listed}, Waits: true,
		Title: "Adds are refused for {{ago .since}}: collector {{.subject}}",
		Detail: "What enrich asks for cannot be had, last {{ago .last}} ago: {{printf `%.300s` .problem}}. Nothing of such " +
			"an add is stored, and producers are told to add again later.",
		Remedy: "Fix the source, or the query (`tranche collector show {{.subject}} --source`, then `tranche collector " +
			"apply FILE`); it is over with the first add that is taken: `tranche collector add {{.subject}} FILE`"},
	{Kind: AlertFailing, Owner: OwnerOperator, Name: "No one hears of them", Of: "alert",
		Link: "/alerts?name={{urlquery .subject}}", find: failingAlerts, args: []any{alertTimeout, listed},
		Title: "No one hears of alert {{.subject}}",
		Detail: "Its receiver could not be told anything for {{ago .since}}, at {{count .failures `attempt`}}; " +
			"{{are .messages `message`}} waiting. The last: {{.reason}}.",
		Remedy: "Fix that, then try it: `tranche alert test {{.subject}}`"},
	{Kind: StreamSettings, Owner: OwnerServers, find: streamTrouble,
		Title:  "The streams are not as they are set",
		Detail: "{{line .trouble}} (tried {{count .tries `time`}}, and retried). They go on as they are.",
		Remedy: "See `tranche streams`; fix what it says, or set what there can be with `tranche streams set`"},
	{Kind: DatabaseRewind, Owner: OwnerDatabase, Link: "/nodes", Severity: Critical, find: databaseGaps,
		args:  []any{listed, GapTold, moveTold},
		Title: "The database lost recent commits",
		Detail: "What was confirmed between {{second .from}} and {{second .to}}, or in the second after, is lost: runs " +
			"that were started, items that were added, operations, acknowledgements, changes. What was out was reissued " +
			"({{count .runs `run`}} in progress).",
		Remedy: "Have what was sent to Tranche in that time sent again: with the same idempotency keys nothing is done " +
			"twice. Replicate synchronously where a failover is to lose nothing",
		Cases: map[string]Rule{"moved": {
			Title: "Another server took the database over",
			Detail: "Nothing is known to be lost. If it was replicated asynchronously, what was confirmed in the second after " +
				"{{second .from}} may be. What was out was reissued.",
			Severity: Warning,
		}}},

	// What servers see themselves.
	{Kind: Database, Owner: OwnerDatabase, Severity: Critical,
		Title: "PostgreSQL does not answer",
		Detail: "Nothing is sent and recorded without it, and what is wrong with runs, nodes and endpoints cannot be told. " +
			"It said to {{.subject}}: {{line .said}}",
		Remedy: "See to the PostgreSQL server, and to the network between; nothing must be done here then",
		Cases: map[string]Rule{
			"read_only": {
				Title: "PostgreSQL takes no writes", Link: "/nodes",
				Detail: "Nothing is sent or recorded, no command changes anything, and nodes cannot send heartbeats.",
				Remedy: "See whether it is a standby (`SELECT pg_is_in_recovery()`) that --database should not lead to, or was " +
					"set so (`SHOW default_transaction_read_only`); work goes on by itself when it takes writes again",
			},
			"standby": {
				Title: "Commits wait for a standby", Link: "/nodes",
				Detail: "PostgreSQL confirms no commit before a synchronous standby has it, and none does: nothing is sent and " +
					"recorded, and nodes cannot send heartbeats.",
				Remedy: "Start the standby that synchronous_standby_names names, or, to continue without it, shorten that " +
					"setting and run SELECT pg_reload_conf(); then losing the primary loses commits",
			},
		}},
	{Kind: Connections, Owner: OwnerDatabase,
		Title:  "PostgreSQL has {{.used}} of {{.limit}} connections in use",
		Detail: "Without a free one, nodes that start and programs beside them are refused.",
		Remedy: "Raise its max_connections, or lower --max-connections of the nodes"},
	{Kind: NATS, Owner: OwnerServers, Link: "/nodes", Stops: StopsAll, Severity: Critical,
		Title: "Cannot reach NATS: {{.node}}", Detail: nothingMoves + ".",
		Remedy: "See to the NATS server, and to the network between; nothing must be done here then",
		Cases: map[string]Rule{
			"here": {
				Title:  "This server cannot reach NATS",
				Detail: nothingMoves + ", and who listens on endpoints cannot be told.",
			},
			"refused": {
				Title: "NATS refuses {{.node}}", Detail: "{{.refused}}. Nothing is sent until it does not.",
				Remedy: "Give the node a user that NATS takes (--nats-creds, NATS_CREDS, NATS_NKEY or NATS_USER), or grant its " +
					"user what `tranche nats-config` prints; nothing else must be done then",
			},
			"stalled": {
				Title: "JetStream does not answer", Detail: "Nothing is sent or recorded until it does. {{.said}}.",
				Remedy: "See that more than half of the NATS servers run and reach each other; nothing must be done here then",
			},
		}},
	{Kind: StreamLimit, Owner: OwnerServers,
		Title:  "{{.share}} of the {{.what}} of {{.holder}} are used",
		Detail: "{{.used}} of {{.limit}}. When it is full, nothing more can be sent through it.",
		Remedy: "See whether services take what waits for them: `tranche endpoints`; or give it more, with " +
			"`tranche streams set`",
		Cases: map[string]Rule{"account": {
			Remedy: "Give the account of Tranche more at the NATS server, or the streams less, with `tranche streams set`",
		}}},
	{Kind: Disk, Owner: OwnerServers,
		Title: "{{.free}} are free on the disk of {{.subject}}",
		Detail: "That is {{.share}} of the disk that {{.dir}} is on. {{.why}}{{if .database}} The database has " +
			"{{.database}}.{{end}}",
		Remedy: "Make room there; work goes on by itself{{if .growth}}. Or let the streams have less than the " +
			"{{.growth}} that they may still grow by, with `tranche streams set`{{end}}",
		Cases: map[string]Rule{"store": {
			Title: "JetStream's store cannot be written", Detail: "{{.faults}}.", Severity: Critical,
			Remedy: "{{if .full}}Make room on the disk of the NATS server; the streams are replaced within seconds then, and " +
				"what was in progress is reissued{{else}}The leader replaces the streams; when this stays, see what it logs{{end}}",
		}}},
	{Kind: ResourceExhausted, Owner: OwnerServers, Link: "/nodes", Severity: Critical,
		Items: "waiting for what a node lacks to claim them",
		Title: "Something is used up, or too slow", Detail: "{{.what}}",
		Remedy: "See to it, as it says; work goes on by itself then"},
	{Kind: LeaderMissing, Owner: OwnerServers, Link: "/nodes", Stops: StopsAll, Severity: Critical,
		Title: "No node leads",
		Detail: "{{if .since}}The lease ran out {{ago .since}} ago, and {{end}}{{are .alive `node`}} alive. Without a " +
			"leader, requests of dead nodes and past deadlines are not reissued.",
		Remedy: "{{if .alive}}See what the nodes say in their logs: one of them should take the lead within seconds" +
			"{{else}}Start a node: `tranche serve`{{end}}"},
	{Kind: NodeDead, Owner: OwnerServers, Name: "Died", Of: "node", Link: "/nodes",
		Title: "Died: {{.node}}", Remedy: "Start it again: `tranche serve`; its log says why it died",
		Detail: "It was heard of last {{ago .beat}} ago, and did not stop in good order. Others have taken over what it " +
			"held.",
		Cases: map[string]Rule{"holds": {
			Severity: Critical,
			Detail: "It was heard of last {{ago .beat}} ago, and still holds " + holdsWork + ", and {{count .loads `run`}} " +
				"that it was loading. The node that leads takes them from it.",
		}}},
	{Kind: NodeLate, Owner: OwnerServers, Name: "Not heard of", Of: "node", Link: "/nodes",
		Title: "Not heard of: {{.node}}",
		Detail: "It was heard of last {{ago .beat}} ago, and holds " + holdsWork + ". It counts as dead in " +
			"{{until .expires}}.",
		Remedy: "See whether its machine is overloaded, or cut off from PostgreSQL"},

	// What items wait for.
	{Kind: ReasonSampling, Owner: OwnerNode, Items: "held back until the canary's sample is over", Normal: true,
		Who: "{{.nodes}}",
		Why: "a sample of {{items .canary}} runs first and these are held back (--canary {{.canary}})",
		Next: "when the last item of the sample has its outcome, {{if .auto}}they are released if no more of it failed " +
			"than may, or else wait for someone to approve{{else}}the run waits for someone to approve{{end}}",
		Advice: []Advice{{"see how the sample does", "tranche run show {{.run}}"}}},
	{Kind: ReasonNoNode, Owner: OwnerOperator, Items: "waiting for a node: none is alive",
		Who: "whoever starts a node", Next: "they go on within seconds of a node's start",
		Why:    "no node is alive{{if .last}}; {{.last}} was heard of last, {{clock .beat}}{{end}}",
		Advice: []Advice{{"start a node", "tranche serve"}}},
	{Kind: ReasonReadOnly, Owner: OwnerOperator, Items: "waiting for PostgreSQL to take writes",
		Who:  "the operator of PostgreSQL",
		Why:  "PostgreSQL takes no writes, so nothing is sent or recorded, and nodes cannot send heartbeats",
		Next: "they go on within seconds, by themselves, when it takes them again",
		Advice: []Advice{{Do: "see whether it is a standby that --database should not lead to, or was set to " +
			"default_transaction_read_only"}}},
	{Kind: ReasonStandby, Owner: OwnerOperator, Items: "waiting for a standby of PostgreSQL to confirm commits",
		Who: "the operator of PostgreSQL", Why: StandbyText,
		Next: "they continue within seconds, automatically, when a standby confirms commits again"},
	{Kind: ReasonNATSRefused, Owner: OwnerOperator, Items: "waiting for a user that NATS takes",
		Who: "whoever gives nodes their users of NATS", Why: "{{.node}}: {{.refused}}, so nothing is sent at the moment",
		Next: "it goes on trying, and they go on within seconds of NATS taking its user"},
	{Kind: ReasonNATSUnreachable, Owner: OwnerNode, Items: "waiting for NATS, which the node cannot reach",
		Who: "any of {{.alive}} nodes", Why: "no node can reach NATS, so nothing is sent at the moment",
		Next: "it connects again by itself as soon as NATS answers, and they go on at once",
		Cases: map[string]Rule{
			"one":  {Who: "{{.node}}", Why: "{{.node}} cannot reach NATS, so it sends nothing at the moment"},
			"here": {Who: "this node", Why: "this node cannot reach NATS, so nothing is sent at the moment"},
		}},
	{Kind: ReasonNATSStalled, Owner: OwnerNATS, Items: "waiting for JetStream, which does not answer",
		Who: "the NATS servers", Why: "{{.said}}",
		Next: "they go on within seconds of the servers having elected leaders; what is in the streams stays there"},
	{Kind: ReasonUnwritable, Owner: OwnerOperator, Items: "waiting for JetStream, whose store cannot be written",
		Who: "whoever runs the NATS server", Why: "{{.faults}}",
		Next: "the leader replaces the streams within seconds of there being room, and issues again what was in progress, " +
			"which does not count against it",
		Advice: []Advice{{Do: "make room on the disk of the NATS server; nothing must be done here then"}},
		Cases: map[string]Rule{"room": {
			Owner: OwnerNode, Who: "{{.leader}}", Advice: []Advice{},
			Next: "it replaces them within seconds, and issues again what was in progress, which does not count against it",
		}}},
	{Kind: ReasonSettingUp, Owner: OwnerNode, Items: "waiting for the streams to be set up", Normal: true,
		Who: "this node", Why: "it has no streams yet: it makes them as soon as NATS and PostgreSQL answer",
		Next: "they go on at once when it has"},
	{Kind: ReasonProbing, Owner: OwnerService, Items: "waiting for {to}, whose breaker is open", Who: "{{.servers}}",
		Why: breakerWhy, Advice: breakerAdvice,
		Next: "a probe is out; when it is answered everything goes on, when it fails another one follows"},
	{Kind: ReasonStepLimit, Owner: OwnerService, Items: "ready, while as many requests are out as the run allows",
		Normal: true, Behind: true, Who: "{{.servers}}", Next: whenAnswered,
		Why:    outOf + "the run's limit of requests out at once",
		Advice: []Advice{{"let more be out at once", "tranche run set {{.run}} --in-flight N{{.flag}}"}},
		Cases: map[string]Rule{"gentle": {
			Why:    outOf + "as many as the run needs to be done by its time: it is gentle",
			Advice: []Advice{{"let as many be out as its limits allow", "tranche run set {{.run}} --no-gentle"}},
		}}},
	{Kind: ReasonBudget, Owner: OwnerService, Items: "ready, while the budget of {to} is used up", Normal: true,
		Behind: true, Who: "{{.servers}}", Why: outOf + "the budget of {{.target}} over all runs", Next: whenAnswered,
		Advice: []Advice{{"let more be out at once", "tranche endpoints set {{.endpoint}} --max-in-flight N"}}},
	{Kind: ReasonAdaptive, Owner: OwnerService, Items: "ready, while {to} has as many requests as it takes well",
		Normal: true, Behind: true, Who: "{{.servers}}", Next: whenAnswered,
		Why:    outOf + "the limit that nodes found for {{.target}}{{if .change}}; its last change: {{.change}}{{end}}",
		Advice: []Advice{{"see how it was found", "tranche endpoints show {{.endpoint}}"}}},
	{Kind: ReasonPriority, Items: "behind runs of higher priority at {to}", Normal: true, Behind: true,
		Why: "{{if eq .runs 1}}run {{.one}} of priority {{.highest}} (this one has {{.priority}}) comes first" +
			"{{else}}{{.runs}} runs of higher priority (up to {{.highest}}; this one has {{.priority}}) come first{{end}}",
		Next:   "the next are claimed when a request ends and the runs of higher priority have nothing to send",
		Advice: []Advice{{"raise its priority", "tranche run set {{.run}} --priority {{.highest}}"}}},
	{Kind: ReasonShare, Owner: OwnerService, Items: "ready, while the run has its share of {to}", Normal: true,
		Behind: true, Who: "{{.servers}}",
		Why: outOf + "the run's share of the {{.takes}} that {{.target}} takes: {{if eq .others 1}}another run has work" +
			"{{else}}{{.others}} other runs have work{{end}} for it, too",
		Next:   "the next are claimed when one of its requests is answered, or when other runs need less",
		Advice: []Advice{{"raise its priority", "tranche run set {{.run}} --priority {{.more}}"}}},
	{Kind: ReasonRate, Owner: OwnerTimer, Items: "waiting for the rate limit", Normal: true,
		Who: "the rate limit", Why: "{{.limit}}",
		Next: "{{if .all}}at that rate all of them take {{.all}}; the next are claimed when it allows{{else}}the next are " +
			"claimed when the rate allows{{end}}"},
	{Kind: ReasonNext, Owner: OwnerNode, Items: "about to be claimed", Normal: true, Who: "{{.nodes}}",
		Why: "nothing stands in their way", Next: "a node claims them with its next look for work",
		Cases: map[string]Rule{"busy": {
			Why: "nothing stands in their way; nodes are at {{.live}} requests to {{.target}}, and take as many at once as " +
				"they have room for",
			Next: "a node claims them with its next look for work, when it has room for them",
		}}},
	{Kind: ReasonBackoff, Owner: OwnerTimer, Items: "waiting for their next try", Normal: true,
		Who: "the pause before the next try",
		Next: "they are claimed and sent {{if .last}}for the last time: an item that fails again has failed, a request of " +
			"several that fails as a whole is halved{{else}}again{{end}}"},
	{Kind: ReasonThrottled, Owner: OwnerTimer, Items: "waiting for {to}, which said it has too much to do", Normal: true,
		Who: "the pause for a service that has too much to do", Next: "they are claimed and sent again",
		Advice: []Advice{{"see at what pace the endpoint is asked", "tranche endpoints show {{.endpoint}}"}}},
	{Kind: ReasonBreather, Owner: OwnerTimer, Items: "waiting for {to}, which was down",
		Who: "the pause for an endpoint that is down", Next: "they are claimed and sent again"},
	{Kind: ReasonPostponed, Owner: OwnerTimer, Items: "not to be published at the moment",
		Who: "the pause after a request that could not be published", Next: "a node claims them and publishes again",
		Advice: []Advice{{"see whether NATS is well and the endpoint may be published to",
			"tranche endpoints explain {{.endpoint}}"}},
		Cases: map[string]Rule{"fetched": {
			Who: "the pause after a node could not work on them", Next: "a node claims them and tries again",
			Advice: []Advice{{"see who does this work", "tranche endpoints show {{.endpoint}}"}},
		}}},
	{Kind: ReasonPublishing, Owner: OwnerNode, Items: "being published", Normal: true, Who: "{{.node}}",
		Why:  "it has claimed them and is publishing their requests",
		Next: "the requests are in the stream in a moment; if not, they are reissued"},
	{Kind: ReasonClaimLost, Owner: OwnerNode, Items: "claimed by a node that is gone", Who: "{{.leader}}",
		Why: "{{.node}} {{if .late}}claimed them and did not publish them in time{{else}}had claimed them and is gone" +
			"{{end}}",
		Next: "they are reissued, which does not count against them"},
	{Kind: ReasonStreamLost, Owner: OwnerNode, Items: "lost with a stream, about to be reissued", Who: "{{.leader}}",
		Why:  "the streams that carried their requests, or the replies, are gone",
		Next: "they are reissued at once, which does not count against them"},
	{Kind: ReasonOverdue, Owner: OwnerNode, Items: "past their deadline", Who: "{{.leader}}",
		Why:  "{{if .node}}{{.node}} had no results of them by the deadline{{else}}no reply came before the deadline{{end}}",
		Next: "that counts as a failure of theirs: they are retried, halved, or failed as deadline"},
	{Kind: ReasonQueued, Owner: OwnerService, Items: "queued for {to}", Normal: true, Who: "{{.servers}}",
		Why: "as far as is known no service has taken them",
		Next: "a service takes them; {{if .nodeless}}the replies are recorded when a node is there again{{else}}at the " +
			"deadline a node looks whether they are still in the stream{{end}}"},
	{Kind: ReasonNotTaking, Owner: OwnerService, Items: "waiting for the services of {to}, which can take nothing",
		Who: "{{.listens}}", Why: "no instance can take anything: {{.reasons}}",
		Next:   "the first instance that can takes them",
		Advice: []Advice{{"see what keeps the services", "tranche endpoints show {{.endpoint}}"}, adviseStart}},
	{Kind: ReasonBusy, Owner: OwnerService, Items: "queued behind other requests at {to}", Normal: true,
		Who: "{{.listens}}",
		Why: "{{.waiting}} requests wait in the stream: the services have all that they can do at once",
		Next: "the services take them in their order{{if .rate}}, {{.rate}} over the last minute; the last about{{else}}; " +
			"they have answered nothing in the last minute{{end}}",
		Advice: []Advice{adviseMore}},
	{Kind: ReasonSuspended, Owner: OwnerNode, Items: "waiting: the consumer of {to} was paused by hand",
		Who: "the leader", Next: "the node resumes it within seconds",
		Why: "someone has paused the consumer of endpoint {{.endpoint}} in NATS, for another {{.pause}}"},
	{Kind: ReasonNoConsumer, Owner: OwnerNode, Items: "waiting for the consumer of {to} to be made", Who: "the leader",
		Why:  "the consumer through which services take requests is gone",
		Next: "the node makes it again within seconds, and services go on"},
	{Kind: ReasonWorking, Owner: OwnerService, Items: "with the services of {to}", Normal: true, Who: "{{.servers}}",
		Why: "a service has taken them", Next: "the service answers; without a reply by the deadline they are retried"},
	{Kind: ReasonGone, Owner: OwnerOperator, Items: "with a service of {to} that is gone", Who: whoServes,
		Why: "{{.before}}; no one listens on endpoint {{.endpoint}} any more, so the service that took them is gone",
		Next: "JetStream hands them to the next service that listens, {{.wait}} after the last heartbeat; without a reply " +
			"by the deadline they are retried",
		Advice: []Advice{adviseStart}},
	{Kind: ReasonNested, Owner: OwnerOperator,
		Items: "with the flow {name}, which asks an endpoint on which no one listens",
		Who:   "whoever runs the services of endpoint {{.asked}}",
		Next:  "the flow goes on when a service answers it; without a reply by the deadline they are retried"},
	{Kind: ReasonPartly, Owner: OwnerService, Items: "in requests that {to} has answered in part", Normal: true,
		Who: "{{.servers}}",
		Why: "a service has taken them and answered {{items .answered}} of the same requests{{if .final}}; the last " +
			"message of the reply has come and another one is missing{{end}}",
		Next: "{{if .final}}the missing message comes; without it{{else}}the service answers; without a reply{{end}} by " +
			"the deadline they are retried"},
	{Kind: ReasonQuarantine, Items: "with {to}, a reply of which could not be taken",
		Advice: []Advice{{"see what the service sent", "tranche quarantine list --run {{.run}}"}}},
	{Kind: ReasonNeeds, Owner: OwnerStep, Items: "waiting for other steps", Normal: true, Who: "{{.steps}}",
		Why: "step {{.step}} needs the parts of {{.steps}} for them",
		Next: "an item is made ready in the transaction that records the last part that it needs{{if .gate}}, and goes on " +
			"when someone has approved the step{{else if .barred}}, and goes on when the step's barrier is passed{{end}}"},
	{Kind: ReasonBarrier, Owner: OwnerStep, Normal: true,
		Items: "waiting at a barrier, until other steps have ended for all items", Who: "{{.steps}}",
		Why: "step {{.step}} has a barrier: it begins when what it needs has ended for all items, and these are left: " +
			"{{.left}}",
		Next: "{{if .gate}}when the last of those has its outcome, someone has to approve the step{{else}}they go on when " +
			"the last of those has its outcome{{end}}",
		Cases: map[string]Rule{"passed": {
			Owner: OwnerNode, Who: "{{.leader}}", Next: "the barrier is passed, and they may be claimed",
			Why: "step {{.step}} has a barrier, and what it waited for has ended",
		}}},
	{Kind: ReasonNoLocal, Owner: OwnerOperator, Items: "waiting for a node that has {to}",
		Who: "whoever runs the program that has {{.function}}", Why: "no node here has local function {{.function}}",
		Next: "the first node that has it claims them at once",
		Advice: []Advice{{"start a program that embeds a node with this function; it is there when this names a node",
			"tranche endpoints show {{.endpoint}}"}}},
	{Kind: ReasonFetching, Owner: OwnerNode, Items: "being fetched: nodes are asking {to}", Normal: true, Who: "{{.node}}",
		Why:  "{{.node}} is asking {{.target}} for them",
		Next: "what comes is recorded; what has not come by the deadline is retried",
		Cases: map[string]Rule{
			"direct": {Owner: OwnerService, Who: "{{.servers}}", Why: "{{.node}} has asked for them in plain requests"},
			"local":  {Why: "{{.node}} is running {{.target}} on them"},
		}},
	{Kind: ReasonLane, Owner: OwnerStep, Items: "waiting in their lane for items before them", Normal: true,
		Who: "the items before them", Why: laneWhy,
		Next: "an item is made ready in the transaction that records the last outcome of the one before it",
		Cases: map[string]Rule{"known": {
			Who:    "item {{printf `%.80q` .ahead}}",
			Why:    "it waits for item {{printf `%.80q` .ahead}} of the same lane, the one that is worked on",
			Advice: []Advice{{"see what that item waits for", "tranche run explain {{.run}} --item {{quote .ahead}}"}},
		}}},
	{Kind: ReasonUnplaced, Owner: OwnerOperator, Items: "waiting for more items, or for the run to be sealed",
		Normal: true, Who: "whoever adds items to the run",
		Why: "the run is open, and items begin when 8192 of them have come or the run is sealed",
		Next: "they begin when more items fill their block, or when the run is sealed{{if .overdue}}; it should have been " +
			"by {{clock .deadline}}{{else if .deadline}}; it should be by{{end}}",
		Advice: []Advice{adviseSeal}},
	{Kind: ReasonCancelled, Owner: OwnerNobody, Items: "left without an outcome when the run was cancelled",
		Who: "the run was cancelled", Why: "the run was cancelled before they were answered",
		Next: "nothing, unless someone has the run go on: what was recorded stays",
		Advice: []Advice{{"go on with the run", "tranche run resume {{.run}}"},
			{"or do them in a new run", "tranche run start --from {{.run}} --state cancelled"}}},
	{Kind: ReasonStray, Owner: OwnerOperator, Items: "in no plane and in no slice: run `tranche doctor`",
		Who: "whoever runs tranche", Why: "they are in no plane and in no slice, which must not be",
		Next:   "nothing moves them by itself",
		Advice: []Advice{{"check the database, and report what it says", "tranche doctor"}}},
}

// items is what items that wait for a target say, in a few words.
func (r *Rule) items(target string) string {
	return strings.NewReplacer("{to}", workqueue.TargetText(target), "{name}", target).Replace(r.Items)
}
