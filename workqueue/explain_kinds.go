package workqueue

import (
	"strings"
)

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
