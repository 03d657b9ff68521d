package natscluster

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
)

const (
	faultItems = 120_000
	faultRate  = 500 // items a second, while faults come

	// recovery is what may go by between the election of leaders and the next outcome.
	recovery = 5 * time.Second
	// inTransit is what may go by besides when a server is killed, is stalled or is cut off: what it was just handing
	// to clients, of its own or of another server, is lost with no connection, so that JetStream waits for its
	// acknowledgement, counted again from the election. That may be all that was out. What is handed to a client that is
	// only on its way from a server that is stalled is lost later, within recovery of the election.
	inTransit = stream.AckWait
	// calm is for how long items must flow again before the next fault comes.
	calm = 2 * time.Second

	pauseOfOne = 20 * time.Second
	pauseOfTwo = 15 * time.Second
	partition  = 15 * time.Second
)

// ordeal is a world with a run of each kind in progress, to which faults come.
type ordeal struct {
	*world
	runs map[string]workqueue.RunID
	seen map[string]*progress
}

// newOrdeal begins a run for each endpoint and waits until both flow.
func newOrdeal(w *world) *ordeal {
	w.Helper()
	o := &ordeal{world: w, runs: map[string]workqueue.RunID{}, seen: map[string]*progress{}}
	for _, endpoint := range kinds() {
		o.runs[endpoint] = w.start(endpoint, faultItems, faultRate)
		o.seen[endpoint] = watch(w.T, w.pool, o.runs[endpoint])
	}
	o.flows(time.Now())
	return o
}

// flows waits until every run has got on for a while since a moment.
func (o *ordeal) flows(since time.Time) {
	o.Helper()
	enough := int(calm / (sampleEvery * 4)) // chunks come ten times a second
	for endpoint, p := range o.seen {
		o.until(endpoint+" flows", func() bool { return p.count(since) >= enough })
	}
}

// judge waits until items flow again, and holds the standstill since the fault's end, or since leaders were elected,
// against what is allowed.
func (o *ordeal) judge(what string, struck, over time.Time) {
	o.Helper()
	o.judgeBy(what, struck, over, recovery)
}

func (o *ordeal) judgeBy(what string, struck, over time.Time, allowed time.Duration) {
	o.Helper()
	o.flows(over)
	for endpoint, p := range o.seen {
		stood := p.stood(over)
		o.Logf("%s: %s: leaders after %.1f s; then was stalled for %.1f s", what, endpoint, over.Sub(struck).Seconds(),
			stood.Seconds())
		if stood > allowed {
			o.Errorf("%s: %s was stalled for %v after leaders were elected; want at most %v", what, endpoint, stood, allowed)
		}
	}
}

// finish lifts the pace and waits for the end of both runs.
func (o *ordeal) finish() {
	o.Helper()
	for endpoint, run := range o.runs {
		if o.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND state = 'completed'`, run) == 1 {
			o.Errorf("the run of %s was over before the last fault had healed", endpoint)
		}
		o.must("run", "set", run.String(), "--rate", "0", "--chunk", "500")
	}
	for endpoint, run := range o.runs {
		extra := o.wantSound(run, endpoint, faultItems)
		o.Logf("%s: complete and right; %d items were executed again", endpoint, extra)
	}
	nodetest.WantInvariants(o.T, o.store)
}

// rest lets a fault last for so long.
func (o *ordeal) rest(d time.Duration) {
	o.Helper()
	select {
	case <-time.After(d):
	case <-o.Context().Done():
	}
}

// One cluster serves all faults, one at a time: it takes seconds until three servers are one, and minutes of the
// machine to have more than one at a time.
func TestCluster(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	binary, script := testenv.Program(t, root), testenv.NodeService(t, filepath.Join(root, "examples", "node"))
	cluster := startServers(t)
	w := newWorld(t, cluster, binary, script)
	for _, fault := range []struct {
		name string
		do   func(*ordeal)
	}{
		{"each leader is killed", (*ordeal).killLeaders},
		{"one server is stalled", (*ordeal).pauseOne},
		{"two servers are stalled", (*ordeal).pauseTwo},
		{"all are restarted", (*ordeal).restartAll},
		{"one at a time is restarted", (*ordeal).restartInTurn},
		{"one is cut off", (*ordeal).isolateOne},
	} {
		t.Run(fault.name, func(t *testing.T) {
			inner := *w
			inner.T = t
			t.Cleanup(func() { cluster.Restore(t) }) // for the next one
			o := newOrdeal(&inner)
			fault.do(o)
			cluster.AwaitCurrent(t)
			o.finish()
		})
	}
}

// killLeaders kills the leader of each stream and of the cluster. What a server leads beside is counted as killed, too.
func (o *ordeal) killLeaders() {
	c := o.cluster
	targets := map[string]func() string{"the cluster": c.MetaLeader}
	order := []string{wire.StreamWork, wire.StreamReply, "the cluster", wire.StreamEvent,
		wire.StreamDead, wire.StreamStage, wire.StreamFlow}
	for _, name := range order {
		if targets[name] == nil {
			targets[name] = func() string { return c.StreamLeader(name) }
		}
	}
	killed := map[string]bool{}
	for _, name := range order {
		if killed[name] {
			continue
		}
		leader := awaitLeader(o, "", targets[name])
		var led []string
		for _, other := range order {
			if targets[other]() == leader {
				led = append(led, other)
				killed[other] = true
			}
		}
		struck := time.Now()
		c.Kill(o, leader)
		over := c.AwaitElected(o)
		for _, other := range led {
			if now := targets[other](); now == leader || now == "" {
				o.Errorf("%s is led by %q after its leader %s was killed", other, now, leader)
			}
		}
		o.judgeBy(fmt.Sprintf("kill -9 of the leader of %s", strings.Join(led, ", ")), struck, over, recovery+inTransit)
		c.Start(o, leader)
		c.AwaitCurrent(o)
	}
}

func (o *ordeal) pauseOne() {
	c := o.cluster
	leader := awaitLeader(o, "", func() string { return c.StreamLeader(wire.StreamWork) })
	struck := time.Now()
	c.Pause(o, leader)
	over := c.AwaitElected(o)
	o.judgeBy("one server stopped", struck, over, recovery+inTransit+recovery)
	o.rest(time.Until(struck.Add(pauseOfOne)))
	o.judgeBy("one server still stopped", struck, over, recovery+inTransit+recovery)
	resumed := time.Now()
	c.Resume(o, leader)
	o.judge("one server resumed", resumed, c.AwaitElected(o))
}

func (o *ordeal) pauseTwo() {
	c := o.cluster
	names := c.Names()
	leader := awaitLeader(o, "", func() string { return c.StreamLeader(wire.StreamWork) })
	pair := []string{leader, names[(slices.Index(names, leader)+1)%len(names)]}
	struck := time.Now()
	c.Pause(o, pair...)
	o.wantNATSNamed()
	o.rest(time.Until(struck.Add(pauseOfTwo)))
	resumed := time.Now()
	c.Resume(o, pair...)
	o.judge("two servers resumed", resumed, c.AwaitElected(o))
	for endpoint, p := range o.seen {
		if took := p.longest(struck); took < pauseOfTwo/2 {
			o.Errorf("%s was stalled for %v without a quorum: the fault did not fire", endpoint, took)
		}
	}
}

// wantNATSNamed waits until the system says of every missing item that it is NATS's turn, and that to those who ask for
// its health.
func (o *ordeal) wantNATSNamed() {
	o.Helper()
	for endpoint, run := range o.runs {
		o.until("NATS is named by run explain for "+endpoint, func() bool {
			var said health.Explanation
			code, out := o.command("--json", "run", "explain", run.String())
			if code != 0 || json.Unmarshal([]byte(out), &said) != nil || len(said.Groups) == 0 {
				return false
			}
			for _, g := range said.Groups {
				if g.Owner != health.OwnerNATS || g.Since == nil || len(g.Advice) == 0 {
					return false
				}
			}
			return true
		})
	}
	said := ""
	o.Cleanup(func() {
		if o.Failed() {
			o.Logf("health said:\n%s", said)
		}
	})
	o.until("the node is not ready", func() bool {
		code, out := o.command("health", "ready")
		return code != 0 && strings.Contains(out, "JetStream does not answer")
	})
	o.until("NATS is named by health", func() bool {
		code, out := o.command("health")
		if !strings.HasSuffix(said, out) {
			said += time.Now().UTC().Format(time.TimeOnly) + " " + out
		}
		return code == 3 && strings.Contains(out, "JetStream does not answer") && !strings.Contains(out, "listens")
	})
}

func (o *ordeal) restartAll() {
	c := o.cluster
	struck := time.Now()
	c.Kill(o, c.Names()...)
	c.Start(o, c.Names()...)
	o.judgeBy("all restarted", struck, c.AwaitElected(o), recovery+inTransit)
}

func (o *ordeal) restartInTurn() {
	c := o.cluster
	for _, name := range c.Names() {
		struck := time.Now()
		c.LameDuck(o, name)
		c.Start(o, name)
		c.AwaitCurrent(o)
		for endpoint, p := range o.seen {
			if took := p.stood(struck); took > 0 {
				o.Logf("ldm of %s: %s was stalled for %.1f s", name, endpoint, took.Seconds())
			}
		}
		o.judge("restarted "+name+" by ldm", struck, time.Now())
	}
}

// isolateOne cuts each server off from the others in turn, and none from its clients: whichever of them were there have
// to find the others.
func (o *ordeal) isolateOne() {
	c := o.cluster
	for _, name := range c.Names() {
		struck := time.Now()
		c.Isolate(o, name)
		over := c.AwaitElected(o)
		o.judgeBy(name+" cut off", struck, over, recovery+inTransit)
		o.rest(time.Until(struck.Add(partition)))
		o.judgeBy(name+" still cut off", struck, over, recovery+inTransit)
		healed := time.Now()
		c.Heal()
		o.judge(name+" back", healed, c.AwaitElected(o))
		c.AwaitCurrent(o)
	}
}
