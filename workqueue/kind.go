package workqueue

import (
	"strings"
	"time"
)

// Kind says how the work of a step is done.
type Kind string

// The kinds of steps. Services do the work of the first; the others are done by nodes themselves.
const (
	KindEndpoint Kind = "endpoint" // a list request over JetStream
	KindRequest  Kind = "request"  // a list request over core NATS: nothing of it is persisted
	KindHTTP     Kind = "http"     // an external service
	KindSQL      Kind = "sql"      // a query in another database
	KindLocal    Kind = "local"    // a function of the program that embeds the node
)

// StepWork is what a claimer has to know of a step to do its work.
type StepWork struct {
	Kind    Kind
	Name    string
	Config  []byte      // the kind's own settings as JSON; nil without
	Inputs  []StepInput // the parts that a request carries
	NoItem  bool        // it does not carry the item's payload
	Timeout time.Duration
	Rate    float64 // items a second at the most; 0: no limit
}

// StepInput names a step whose parts another one sees.
type StepInput struct {
	Step Step
	Name string
}

// PaceKey is what paces a step of a kind: the name of the endpoint, or the target behind the kind's name, as in
// local:render.
func PaceKey(kind Kind, target string) string {
	if kind == KindEndpoint || kind == KindRequest || kind == "" {
		return target
	}
	return string(kind) + ":" + target
}

// PaceKeys are the pace keys of targets of a kind.
func PaceKeys(kind Kind, targets []string) []string {
	keys := make([]string, len(targets))
	for i, target := range targets {
		keys[i] = PaceKey(kind, target)
	}
	return keys
}

// Fetched reports whether nodes do the work of such steps themselves, and hold the slice until it is recorded.
func (k Kind) Fetched() bool { return k != KindEndpoint }

// OverNATS reports whether the work of such steps is asked for over NATS.
func (k Kind) OverNATS() bool { return k == KindEndpoint || k == KindRequest }

// TargetKind says what a pace key is the key of: an endpoint, or the target of an HTTP, SQL or local step.
func TargetKind(key string) (kind Kind, target string) {
	for _, k := range []Kind{KindHTTP, KindSQL, KindLocal} {
		if target, ok := strings.CutPrefix(key, string(k)+":"); ok {
			return k, target
		}
	}
	return KindEndpoint, key
}
