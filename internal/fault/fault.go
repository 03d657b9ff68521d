// Package fault has named points in the code where a test can crash a node, or kill or stop its process.
//
// A point costs a nil check without faults. [At] arms one in a test's process, [Parse] those of a started process.
// [Points] is safe for concurrent use; a nil *Points has no faults.
package fault

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// The points, in the order of a slice's processing.
const (
	ClaimBefore     = "claim.before"     // before the claim's transaction
	ClaimCommitted  = "claim.committed"  // after its commit, before publishing
	PublishAcked    = "publish.acked"    // JetStream has the request, PostgreSQL does not know yet
	FetchBefore     = "fetch.before"     // inputs are read, the node is about to process the chunk
	FetchDone       = "fetch.done"       // processed, nothing recorded
	RecordBefore    = "record.before"    // replies are read, the transaction has not begun
	PiecesKept      = "pieces.kept"      // parts of large results are committed, neither acknowledged nor recorded
	RecordCommitted = "record.committed" // after the commit, before acknowledging the messages
	ReplyAcked      = "reply.acked"      // after acknowledging the messages
	EventPublished  = "event.published"  // JetStream has a completion's event, PostgreSQL does not know yet
)

func names() []string {
	return []string{ClaimBefore, ClaimCommitted, PublishAcked, FetchBefore, FetchDone, RecordBefore, PiecesKept,
		RecordCommitted, ReplyAcked, EventPublished}
}

// Points are the armed points.
type Points struct {
	armed map[string]*point
}

type point struct {
	crash func()       // nil: kill the process
	stop  bool         // stop instead of kill
	left  atomic.Int64 // passes until it fires
}

// At calls crash at the n-th pass of a point. The code continues when crash returns, so nothing it does may have
// effects then.
func At(name string, n int, crash func()) *Points {
	armed := &point{crash: crash}
	armed.left.Store(int64(n))
	return &Points{armed: map[string]*point{name: armed}}
}

// Parse parses "name=action@n" pairs separated by commas, such as "record.committed=kill@3". The action is kill
// (SIGKILL) or stop (SIGSTOP), at the n-th pass, by default the first. An empty string returns nil.
func Parse(spec string) (*Points, error) {
	if spec == "" {
		return nil, nil
	}
	p := &Points{armed: map[string]*point{}}
	for pair := range strings.SplitSeq(spec, ",") {
		name, action, _ := strings.Cut(pair, "=")
		action, pass, counted := strings.Cut(action, "@")
		n := int64(1)
		var err error
		if counted {
			n, err = strconv.ParseInt(pass, 10, 64)
		}
		armed := &point{}
		switch {
		case err != nil || n < 1:
			return nil, fmt.Errorf("fault %q: the pass after @ must be a number from 1", pair)
		case !slices.Contains(names(), name):
			return nil, fmt.Errorf("fault %q: no such point; there are %s", pair, strings.Join(names(), ", "))
		case action == "kill", action == "stop":
			armed.stop = action == "stop"
		default:
			return nil, fmt.Errorf("fault %q: the action must be kill or stop", pair)
		}
		armed.left.Store(n)
		p.armed[name] = armed
	}
	return p, nil
}

// Hit passes a point. A fault first reports itself on standard error, so that a test can assert it.
func (p *Points) Hit(name string) {
	if p == nil {
		return
	}
	armed := p.armed[name]
	if armed == nil || armed.left.Add(-1) != 0 {
		return
	}
	if armed.crash != nil {
		armed.crash()
		return
	}
	fmt.Fprintf(os.Stderr, "fault fired: %s\n", name)
	armed.fire()
	select {} // the kill is pending; a stopped process stays here
}
