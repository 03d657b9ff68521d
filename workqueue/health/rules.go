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
	nothingMoves = "It sends nothing and records nothing until it can"
	lastFlush    = "{{if .failure}} The last flush failed with {{.failure}}: {{printf `%.200s` .message}}.{{end}}"
)

// rules are all reasons. To add one, add a row.
//
//nolint:gochecknoglobals // a table
var rules = []Rule{
	{Kind: FailedItems, Owner: OwnerOperator, Name: "Failed items", Of: "run", Counts: "item",
		Many: "runs have failed items", Link: "/runs/{{.subject}}/errors", find: failedRuns, args: []any{failedWindow, listed},
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
	{Kind: RunHeld, Owner: OwnerOperator, Name: "Paused", Of: "run", Many: "runs are held", Change: "paused",
		find: heldRuns, args: []any{listed},
		Title: "Paused by {{.by}}: {{run .}}", Detail: "{{.detail}}", Remedy: "Go on with: `tranche run resume {{.subject}}`",
		Cases: map[string]Rule{"threshold": {
			Title: "Paused, too many items failed: {{run .}}", Detail: "{{.detail}}",
			Remedy: seeErrors + "; then go on and allow more: `tranche run resume {{.subject}} --max-failed N`",
		}}},
	{Kind: RunFailFast, Owner: OwnerOperator, Name: "Paused, first outcomes failed", Of: "run",
		Many: "runs are held by their fail-fast limits", Change: "paused", With: RunHeld,
		Title: "Paused, its first outcomes plainly failed: {{run .}}", Detail: "{{.detail}}",
		Remedy: seeErrors + "; then go on: `tranche run resume {{.subject}}`, or not: `tranche run cancel {{.subject}}`"},
	{Kind: RunGate, Owner: OwnerOperator, Name: "At a gate, waiting for an approval", Of: "run",
		Many: "runs wait at a gate for an approval", Change: "waits_for_approval", With: RunHeld,
		Title: "{{if eq .steps 1}}Step {{.detail}} waits{{else}}Steps {{.detail}} wait{{end}} for an approval: {{run .}}",
		Detail: "All that comes before has ended, and nothing goes on before someone has looked." +
			"{{if .by}} That must not be {{.by}}, who started the run.{{end}}",
		Remedy: "Look at the sample: `tranche run approve {{.subject}} --step {{.step}} --dry-run`; then let it begin: " +
			"`tranche run approve {{.subject}} --step {{.step}}`"},
	{Kind: RunApproval, Owner: OwnerOperator, Name: "Waiting for an approval", Of: "run",
		Many: "runs wait for an approval", Change: "waits_for_approval", With: RunHeld,
		Title: "Waits for an approval of its sample: {{run .}}", Detail: "{{.detail}}",
		Remedy: "Look at the sample: `tranche run show {{.subject}}`; then let the rest go: " +
			"`tranche run approve {{.subject}}`"},
	{Kind: RunOverdue, Owner: OwnerOperator, Name: "Not sealed in time", Of: "run", Change: "overdue",
		find: unsealedRuns, args: []any{listed},
		Title: "Not sealed in time: {{run .}}",
		Detail: "It is open, holds {{count .items `item`}}, and should have been sealed {{ago .since}} ago. It cannot " +
			"complete before.",
		Remedy: "Seal it when all items are there: `tranche run seal {{.subject}}`; " + orCancel},
	{Kind: RunWillBeLate, Owner: OwnerOperator, Of: "run", Change: "will_be_late",
		Title: "Will miss its time: {{run .}} of schedule {{.schedule}}",
		Detail: "{{if .ends}}As fast as it goes, it ends about {{moment .ends}}{{else}}It is not known when it ends{{end}}; " +
			"it should by {{moment .deadline}}.",
		Remedy: "See what holds it up: `tranche run explain {{.subject}}`; let it go faster: `tranche run set {{.subject}}`"},
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
		Title:  "No one listens on endpoint {{.subject}}{{if .like}}; was {{.like}} meant?{{end}}",
		Detail: "{{if eq .runs 1}}1 running run has{{else}}{{.runs}} running runs have{{end}} work for it. Requests that are out: {{.out}}.",
		Remedy: "Start a service that listens on it; it is there when this names it: `tranche endpoints show {{.subject}}`",
		Cases: map[string]Rule{"local": {
			Title: "No node has the function {{.function}}", Detail: "{{if eq .runs 1}}1 running run has{{else}}{{.runs}} running runs have{{end}} work for it.",
			Remedy: "Start the program that embeds a node with this function",
		}}},
	{Kind: BreakerOpen, Owner: OwnerService, Name: "Most requests fail", Of: "endpoint",
		Many: "endpoints fail most requests", Stops: StopsEndpoint, find: openBreakers, args: []any{listed},
		Items:  "waiting for {to}, whose breaker is open",
		Title:  "Most requests fail at {{.subject}}",
		Detail: "{{.reason}}. {{uses .runs}} it; one item at a time is sent, to see whether it is up again.",
		Remedy: "See what its services say: `tranche endpoints explain {{.subject}}`. It is asked again by itself when a " +
			"probe is answered"},
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
	{Kind: ScheduleLate, Owner: OwnerOperator, Name: "Late", Of: "run", Change: "overdue",
		find: lateRuns, args: []any{listed},
		Title:  "A run of schedule {{.schedule}} is late",
		Detail: "It should have ended by {{moment .since}}, {{ago .since}} ago, and has not; what was done: {{.did}}.",
		Remedy: seeWaits + "; " + orCancel},
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
		Detail: "What was confirmed between {{.from.UTC.Format `2006-01-02 15:04:05.0 MST`}} and {{.to.UTC.Format `2006-01-02 15:04:05.0 MST`}}, or in the second after, is lost: runs that were " +
			"started, items that were added, operations, acknowledgements, changes. What was out was reissued " +
			"({{count .runs `run`}} in progress).",
		Remedy: "Have what was sent to Tranche in that time sent again: with the same idempotency keys nothing is done " +
			"twice. Replicate synchronously where a failover is to lose nothing",
		Cases: map[string]Rule{"moved": {
			Title: "Another server took the database over",
			Detail: "Nothing is known to be lost. If it was replicated asynchronously, what was confirmed in the second after " +
				"{{.from.UTC.Format `2006-01-02 15:04:05.0 MST`}} may be. What was out was reissued.",
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
		Title: "Cannot reach NATS: {{.node}}", Detail: nothingMoves + ".", Remedy: "See to the NATS server, and to the network between; nothing must be done here then",
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
