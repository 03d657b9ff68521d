// Package fault holds named points in the code at which a test can crash a node, or end or stop its process.
//
// A point costs a nil check when no faults are set. [At] sets one within a test's process, [Parse] those of a process
// that a test starts. [Points] is safe for concurrent use; a nil *Points has no faults.
package fault

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

// The points, in the order in which the work of one slice passes them.
const (
	ClaimBefore     = "claim.before"     // before the claim's transaction
	ClaimCommitted  = "claim.committed"  // after its commit, before anything is published
	PublishAcked    = "publish.acked"    // JetStream has the request, PostgreSQL does not know yet
	FetchBefore     = "fetch.before"     // a chunk's inputs are read, its own node is about to work on it
	FetchDone       = "fetch.done"       // it has, and nothing of that is recorded
	RecordBefore    = "record.before"    // replies are read, their transaction has not begun
	PiecesKept      = "pieces.kept"      // pieces of large results are committed and not acknowledged, nor recorded
	RecordCommitted = "record.committed" // after the commit, before the messages are acknowledged
	ReplyAcked      = "reply.acked"      // after the messages are acknowledged
	EventPublished  = "event.published"  // JetStream has the event of a completion, PostgreSQL does not know yet
)

// names is every point, for the error of a wrong one.
func names() []string {
	return []string{ClaimBefore, ClaimCommitted, PublishAcked, FetchBefore, FetchDone, RecordBefore, PiecesKept,
		RecordCommitted, ReplyAcked, EventPublished}
}

// Points says what happens where.
type Points struct {
	armed map[string]*point
}

type point struct {
	crash func()       // nil: the process is killed
	stop  bool         // instead of being killed
	left  atomic.Int64 // passes until it fires
}

// At calls crash when a point is passed for the n-th time. Who passes it goes on when crash returns: by then nothing
// that it does may reach anybody.
func At(name string, n int, crash func()) *Points {
	armed := &point{crash: crash}
	armed.left.Store(int64(n))
	return &Points{armed: map[string]*point{name: armed}}
}

// Parse reads "name=action@n" pairs separated by commas, such as "record.committed=kill@3". The action is kill
// (SIGKILL) or stop (SIGSTOP), taken at the n-th pass of the point; without @n, at the first. An empty string is nil.
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

// Hit passes a point. When a fault fires there, it first says so on standard error, so that a test can assert it.
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
	select {} // a kill is on its way; after a stop the process stays here
}
