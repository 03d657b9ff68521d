package endpointstest

import (
	"strconv"
	"strings"
	"time"
)

// Point is a place in the life of a chunk: a stage of an endpoint. Endpoints that are not flows have stage 0 only.
type Point struct {
	Endpoint string
	Stage    int
}

// delivery is a message that an instance holds.
type delivery struct {
	point  Point
	number int64 // in the order in which the kit saw them
}

const (
	workSubjects  = "tranche.work."
	replySubjects = "tranche.reply."
	stageSubjects = "tranche.stage."
	callSubjects  = "tranche.call."
)

// pointOf returns what a delivered message begins.
func pointOf(subject string) (Point, bool) {
	if endpoint, ok := strings.CutPrefix(subject, workSubjects); ok {
		return Point{Endpoint: endpoint}, true
	}
	rest, ok := strings.CutPrefix(subject, stageSubjects)
	tokens := strings.Split(rest, ".")
	if !ok || len(tokens) < 2 {
		return Point{}, false
	}
	stage, err := strconv.Atoi(tokens[1])
	return Point{Endpoint: tokens[0], Stage: stage}, err == nil
}

// Kill is a crash that will come. It happens once.
type Kill struct {
	kit    *Kit
	what   string
	hits   func(i *Instance, subject string, body []byte) bool
	killed chan *Instance
}

// KillBetween kills the instance that gets to the end of a stage first, when all that the stage sends (requests, state,
// the reply) has been stored and before what it began with is acknowledged. That is then delivered again, to another
// instance or to one that is started later. Only what is delivered from now on counts. Stage 0 is what a request
// begins; an endpoint that is not a flow has no other.
func (k *Kit) KillBetween(endpoint string, stage int) *Kill {
	at, armed := Point{endpoint, stage}, k.deliveries.Load()
	return k.arm("acknowledges stage "+strconv.Itoa(stage)+" of endpoint "+endpoint,
		func(i *Instance, subject string, body []byte) bool {
			d, ok := i.acknowledges(subject, body)
			return ok && d.point == at && d.number > armed
		})
}

// KillBeforeReply kills the instance that is next about to send a reply of the endpoint, before the reply's first
// message or a later one, whichever is next. Work that its handler has done elsewhere by then is done.
func (k *Kit) KillBeforeReply(endpoint string) *Kill {
	return k.arm("replies as endpoint "+endpoint, func(_ *Instance, subject string, _ []byte) bool {
		if subject == replySubjects+endpoint {
			return true
		}
		back := strings.HasPrefix(subject, stageSubjects) || strings.HasPrefix(subject, callSubjects)
		return back && strings.HasSuffix(subject, "."+endpoint)
	})
}

func (k *Kit) arm(what string, hits func(*Instance, string, []byte) bool) *Kill {
	kill := &Kill{kit: k, what: what, hits: hits, killed: make(chan *Instance, 1)}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kills = append(k.kills, kill)
	return kill
}

// killFor returns the crash that a message of an instance sets off, if any, and disarms it.
func (k *Kit) killFor(i *Instance, subject string, body []byte) *Kill {
	k.mu.Lock()
	defer k.mu.Unlock()
	for n, kill := range k.kills {
		if kill.hits(i, subject, body) {
			k.kills = append(k.kills[:n:n], k.kills[n+1:]...)
			return kill
		}
	}
	return nil
}

func (kill *Kill) done(i *Instance) { kill.killed <- i }

// Wait returns the instance that was killed, as soon as it was. It ends the test when nothing sets the crash off.
func (kill *Kill) Wait() *Instance {
	kill.kit.t.Helper()
	timer := time.NewTimer(kill.kit.patience)
	defer timer.Stop()
	select {
	case i := <-kill.killed:
		return i
	case <-timer.C:
		kill.kit.t.Fatalf("endpointstest: in %s there was no instance to kill: none that %s", kill.kit.patience, kill.what)
		return nil
	}
}
