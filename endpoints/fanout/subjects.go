package fanout

// Subjects are one for each operation: requests of core NATS, whose answers come after the commit.
const (
	SubjectPrefix  = "tranche.tracker."
	OpenSubject    = SubjectPrefix + "open"
	AddSubject     = SubjectPrefix + "add"
	AckSubject     = SubjectPrefix + "ack"
	SealSubject    = SubjectPrefix + "seal"
	GetSubject     = SubjectPrefix + "get"
	GroupsSubject  = SubjectPrefix + "groups"
	MissingSubject = SubjectPrefix + "missing"
	ListSubject    = SubjectPrefix + "list"
	DeleteSubject  = SubjectPrefix + "delete"
)

// Subjects of the events, in the stream of all events.
const (
	CompletedSubject = "tranche.event.tracker.completed"
	ExpiredSubject   = "tranche.event.tracker.expired"
)

// HeaderActor says who asks, for the audit log.
const HeaderActor = "Tranche-Actor"

// What a call may bring at most.
const (
	MaxIDs       = 100_000       // of an acknowledgement
	MaxRanges    = 10_000        // likewise
	MaxItems     = 1_000_000_000 // of an addition
	MaxMissing   = 10_000        // ranges in an answer
	MaxPage      = 1000          // batches or groups in an answer
	MaxName      = 200           // characters of owners and keys
	MaxCode      = 64            // characters of codes
	GroupItems   = 8192          // of a full group
	DefaultLimit = 100           // of pages
)
