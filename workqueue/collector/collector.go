// Package collector stores collectors, which gather operations per entity and flush them by rules. A key is flushed
// by one node at a time, and its operations in order. Limits are exact over all nodes.
package collector

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// Store reads and writes collectors, their operations and flushes. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// Limits of operations and collectors.
const (
	MaxOpID       = 256       // bytes of an operation's ID
	MaxOpKey      = 512       // bytes of its key
	MaxOpPayload  = 512 << 10 // bytes of its payload
	MaxOpPriority = 9         // the most urgent; 0 is the least
	MaxFlushSize  = 8192      // operations of a flush
)

// Defaults of CollectorSpec.
const (
	DefaultMinSize       = 100
	DefaultMaxSize       = 500
	DefaultMaxAge        = Span(10 * time.Second) // how long an operation waits for others of its key
	DefaultFlushes       = 16
	DefaultFlushAttempts = 5
	// The first and the longest pause between two attempts of an operation.
	DefaultFlushBackoff = Span(time.Second)
	DefaultFlushRest    = Span(5 * time.Minute)
	// The timeout of a flush: then unanswered operations are retried and, DefaultClaimTTL later, the key is freed.
	DefaultFlushTimeout = Span(time.Minute)
	DefaultDedupe       = Span(24 * time.Hour) // how long the ID of an operation is remembered
)

// Orders of the operations of a key.
const (
	OrderFIFO     = "fifo"     // as added
	OrderPriority = "priority" // the most urgent first, then as added
)

// How operations of a key are folded before a flush.
const (
	FoldLast  = "last"  // only the last is sent, in place of the earlier ones
	FoldMerge = "merge" // payloads are merged, field by field
)

// Span is a duration that is text like "1m30s" in JSON.
type Span = workqueue.Duration

// CollectorSpec says how a collector gathers operations and flushes them.
type CollectorSpec struct {
	Name     string            `json:"name"`
	Endpoint string            `json:"endpoint" doc:"what its flushes ask"`
	Params   map[string]string `json:"params,omitempty" max:"100" doc:"parameters that each request carries"`

	MinSize  int    `json:"min_size" min:"1" max:"8192" doc:"a key is flushed when this many operations wait"`
	MaxSize  int    `json:"max_size" min:"1" max:"8192" doc:"operations of a flush at most"`
	MaxAge   Span   `json:"max_age" min:"10ms" max:"720h" doc:"or when the oldest has waited so long"`
	InFlight int    `json:"in_flight" min:"1" max:"1024" doc:"flushes in flight over all nodes"`
	Rate     string `json:"rate,omitempty" doc:"calls over all nodes, as 50/m or 10/s; empty: no limit"`

	MaxAttempts int  `json:"max_attempts" min:"1" max:"1000" doc:"tries of an operation before it is parked"`
	Backoff     Span `json:"backoff" min:"10ms" max:"720h" doc:"before the second try; doubled with each"`
	MaxBackoff  Span `json:"max_backoff" min:"10ms" max:"720h"`
	Timeout     Span `json:"timeout" min:"10ms" max:"1h" doc:"of a flush"`
	Dedupe      Span `json:"dedupe" min:"0s" max:"720h" doc:"how long IDs are remembered; 0s: not at all"`

	Order        string      `json:"order" enum:"fifo,priority"`
	Strict       bool        `json:"strict,omitempty" doc:"an operation that failed holds its key up"`
	OrderBy      *OpKeying   `json:"order_by,omitempty" doc:"the key is a field of the payload; null: operations bring it"`
	Fold         string      `json:"fold,omitempty" enum:"last,merge" doc:"operations of a key go as one; absent: singly"`
	FoldBy       string      `json:"fold_by,omitempty" doc:"those with the same value of it; absent: of order_by, or key"`
	Enrich       *Enrichment `json:"enrich,omitempty" doc:"what is stored instead of the payload that was sent"`
	RetryCodes   []string    `json:"retry_codes,omitempty" max:"100" doc:"error codes that are retried in any case"`
	NoRetryCodes []string    `json:"no_retry_codes,omitempty" max:"100" doc:"and never"`
}

// OpKeying says how an operation's key is derived from its payload.
type OpKeying struct {
	Field      string   `json:"field"`
	Values     []string `json:"values,omitempty" doc:"the only values that are taken"`
	Partitions int      `json:"partitions,omitempty" doc:"hash values into N keys; 0: each value is a key"`
}

// Enrichment says what is stored of an operation instead of its payload.
type Enrichment struct {
	SQL      json.RawMessage `json:"sql,omitempty" doc:"a query of a source, with the settings of a step of kind sql"`
	Endpoint string          `json:"endpoint,omitempty" doc:"a service that answers with what is stored of each payload"`
	Local    string          `json:"local,omitempty" doc:"or a Go function of the program whose API adds the operations"`
	By       string          `json:"by,omitempty" doc:"the field to look up by; absent: order_by's, or the key"`
	Optional bool            `json:"optional,omitempty" doc:"what has no row is stored anyway, with null for it"`
	Payload  json.RawMessage `json:"payload" doc:"a template, with the payload in item and the answer in parts.sql, parts.endpoint or parts.local"`
}

// WithDefaults sets unset fields to their defaults, except Dedupe, for which 0 means none.
func (s CollectorSpec) WithDefaults() CollectorSpec {
	s.MaxSize = cmp.Or(s.MaxSize, max(DefaultMaxSize, s.MinSize))
	s.MinSize = cmp.Or(s.MinSize, min(DefaultMinSize, s.MaxSize))
	s.MaxAge = cmp.Or(s.MaxAge, DefaultMaxAge)
	s.InFlight = cmp.Or(s.InFlight, DefaultFlushes)
	s.MaxAttempts = cmp.Or(s.MaxAttempts, DefaultFlushAttempts)
	s.Backoff = cmp.Or(s.Backoff, DefaultFlushBackoff)
	s.MaxBackoff = cmp.Or(s.MaxBackoff, max(DefaultFlushRest, s.Backoff))
	s.Timeout = cmp.Or(s.Timeout, DefaultFlushTimeout)
	s.Order = cmp.Or(s.Order, OrderFIFO)
	return s
}

// ParseRequestRate parses a request rate like "50/m", "10/s" or "0.5/s", by s, m, h or d. Empty is 0. The unit is 1/s.
func ParseRequestRate(text string) (perSecond float64, err error) {
	if text == "" {
		return 0, nil
	}
	number, unit, found := strings.Cut(text, "/")
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	seconds, known := map[string]float64{"s": 1, "m": 60, "h": 3600, "d": 86400}[strings.TrimSpace(unit)]
	n /= seconds
	if err != nil || !found || !known || !(n >= pace.MinRequestRate && n <= pace.MaxRequestRate) { // rejects NaN, too
		return 0, workqueue.BadSetting("want calls in a time, like 10/s, 50/m, 100/h or 500/d, at least %g and at most %d a "+
			"second; this is %.40q", pace.MinRequestRate, pace.MaxRequestRate, text)
	}
	return n, nil
}

// Op is an operation to be added to a collector.
type Op struct {
	ID       string          `json:"id,omitempty" doc:"absent: one is generated, and it is never a duplicate"`
	Key      string          `json:"key"`
	Payload  json.RawMessage `json:"payload"`
	Priority int             `json:"priority,omitempty"` // 0 to MaxOpPriority; ignored when the order is fifo
	// Duplicate: its ID is known, so it is counted and not added.
	Duplicate bool   `json:"-"`
	Fold      string `json:"fold,omitempty" doc:"what it is folded by with others of its key; absent: not folded"`
}

// AddedOps is the outcome of an add.
type AddedOps struct {
	Added      int      `json:"added"`
	Duplicates int      `json:"duplicates" doc:"operations whose id was known: they were not added again"`
	Known      []string `json:"known,omitempty" doc:"their ids"`
}

// MovedError is returned if operations were made for an older version of a collector.
type MovedError struct {
	Name           string
	Wanted, Newest int
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("collector %s is at version %d now, and the operations were made for version %d; nothing was added",
		e.Name, e.Newest, e.Wanted)
}

// Text is a collector to be applied.
type Text struct {
	Name   string
	Spec   CollectorSpec // checked, with its defaults
	Source string        // as the user wrote it; valid UTF-8 without NUL
	Newest int           // as in [workqueue.Document]
}

// States of an operation.
const (
	OpWaiting = "waiting" // not failed so far, or may be retried now
	OpBackoff = "backoff" // failed; waits for its next attempt
	OpParked  = "parked"  // not retried until requeued
)

// OpsFilter selects operations.
type OpsFilter struct {
	Collector string `path:"name" doc:"its name"`
	State     string `query:"state" enum:"waiting,backoff,parked" doc:"only those in this state"`
	Key       string `query:"key" doc:"only those of this key"`
	ID        string `query:"id" doc:"only those with this ID"`
	Code      string `query:"code" doc:"only those whose last error had this code"`
	After     int64  `query:"after" minimum:"0" doc:"next of the previous page"` // the number of its last operation
	Limit     int    `query:"limit" minimum:"1" maximum:"500" default:"50"`      // 0: as many as there may be
}

// OperationPage is a page of a collector's operations.
type OperationPage struct {
	Ops  []OpView `json:"ops" nullable:"false"`
	Next int64    `json:"next,omitempty" doc:"value of after for the next page; absent on the last"`
}

// OpView is an operation as shown to users.
type OpView struct {
	Number      int64           `json:"number" doc:"they are numbered in the order in which they were added"`
	ID          string          `json:"id"`
	Key         string          `json:"key"`
	KeyVersion  int             `json:"key_version" doc:"of the keys when it was added"`
	State       string          `json:"state" enum:"waiting,backoff,parked"`
	Flushing    bool            `json:"flushing" doc:"its key is being flushed, it perhaps among others"`
	Priority    int             `json:"priority"`
	Attempts    int             `json:"attempts" doc:"that count"`
	Code        string          `json:"code,omitempty" doc:"of its last error"`
	Message     string          `json:"message,omitempty"`
	AddedAt     time.Time       `json:"added_at"`
	FailedFirst *time.Time      `json:"failed_first,omitempty"`
	FailedLast  *time.Time      `json:"failed_last,omitempty"`
	NotBefore   *time.Time      `json:"not_before,omitempty" doc:"of its next try"`
	Fold        string          `json:"fold,omitempty" doc:"it may be folded with those of its key that have the same"`
	FoldedInto  string          `json:"folded_into,omitempty" doc:"the id of the one that it went with in its last try"`
	Payload     json.RawMessage `json:"payload"`
}

// OpsSelection selects operations to requeue or drop, by all given fields; All must be set if none is given. Requeue
// takes parked operations and those in backoff; drop takes parked ones, and waiting ones if Waiting is set.
type OpsSelection struct {
	All     bool
	Keys    []string
	IDs     []string
	Code    string
	Waiting bool // drop: waiting ones, too
}

// KeyFlush is one flush of a key. Its ID fences every write about it.
type KeyFlush struct {
	ID         uuid.UUID
	Collector  int32
	KeyVersion int
	Key        string
	Claimed    time.Time // by the database's clock
	Limit      int       // most operations that it may take
	failures   int       // consecutive failed flushes of the key before it
	shrunk     int       // max_size as reduced by failed flushes; 0: not reduced
}
