package forecast

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Rehearsal is the simulated course of a run.
type Rehearsal struct {
	Ends    Span            `json:"ends"`
	BoundBy string          `json:"bound_by"`
	Steps   []RehearsedStep `json:"steps"`
}

// RehearsedStep is the course of one of its steps. Times are seconds from the start.
type RehearsedStep struct {
	Step     string    `json:"step"`
	Begins   float64   `json:"begins_seconds"`
	Ends     Span      `json:"ends"`
	BoundBy  string    `json:"bound_by"`
	Idle     float64   `json:"idle"`     // unused share of its places, from begin to end
	Progress []float64 `json:"progress"` // share of its items requested, at even intervals of the run
}

// Assume returns the cost of requests with that many items that take that many seconds, plus or minus varies, if a
// share of the items is retried.
func Assume(seconds, varies, items, again float64) Cost {
	sigma, mean := math.Log1p(varies/seconds), 0.0
	c := Cost{Requests: points, Chunk: items, Again: again, Spread: drift, Vary: sigma, Fixed: fixedUnknown}
	for at := range points + 1 {
		stay := seconds * math.Exp(sigma*normal((float64(at)+0.5)/(points+1)))
		c.Stays = append(c.Stays, stay)
		mean += stay / (points + 1)
	}
	c.Slot = mean / items * (1 + again)
	return c
}

// speed is the share of its usual speed that the service has then.
func (e *Endpoint) speed(at float64) float64 {
	share := 1.0
	for _, s := range e.Speeds {
		if s.From <= at && at < s.To {
			share *= s.Share
		}
	}
	return share
}

// nextSpeed is the time until a service changes its speed.
func (n *Network) nextSpeed(now float64) float64 {
	d := math.Inf(1)
	for e := range n.Endpoints {
		for _, s := range n.Endpoints[e].Speeds {
			for _, at := range []float64{s.From, s.To} {
				if at > now {
					d = min(d, at-now)
				}
			}
		}
	}
	return d
}

// moment is the progress of all steps at a time.
type moment struct {
	at      float64
	started []float64
}

func (p *play) note() {
	if p.trace != nil {
		m := moment{at: p.now}
		for i := range p.steps {
			m.started = append(m.started, p.steps[i].started)
		}
		*p.trace = append(*p.trace, m)
	}
}

// Rehearse simulates the first run from its start, with its progress at that many moments.
func (n *Network) Rehearse(ctx context.Context, moments int) (*Rehearsal, error) {
	if why := n.unknown()[0]; why != "" {
		return nil, errors.New(why)
	}
	x, trace := n.index(), []moment{}
	x.trace = &trace
	c, err := n.course(ctx, x, draw(len(n.Steps), rounds(len(n.Steps)), 1), nil)
	if err != nil {
		return nil, err
	}
	if i := n.stuck(0, c); i >= 0 {
		return nil, fmt.Errorf("step %s cannot continue as things are", n.Steps[i].Name)
	}
	end := c.nominal.runs[0].ended
	out := &Rehearsal{BoundBy: n.bound(0, c.nominal)}
	out.Ends = span(c.played, func(p *play) float64 { return p.runs[0].ended })
	if !out.Ends.finite() || out.Ends.P90 > 10*365*24*3600 {
		return nil, errors.New("it would take more than ten years; give more in flight, larger chunks or fewer items")
	}
	for _, i := range x.byRun[0] {
		s, sp := &n.Steps[i], &c.nominal.steps[i]
		step := RehearsedStep{Step: s.Name, Begins: max(sp.began, 0),
			Ends: span(c.played, func(p *play) float64 { return p.steps[i].ended })}
		took := sp.ended - step.Begins
		switch speeds := n.Endpoints[s.Endpoint].Speeds; {
		case sp.backlog > took/2:
			step.BoundBy = n.limitText(i, sp.limit)
		case slices.ContainsFunc(speeds, func(v Speed) bool { return v.From < sp.ended && step.Begins < v.To }):
			step.BoundBy = "its service, which does not answer or is slow for a while"
		default:
			step.BoundBy = "what it needs"
		}
		step.Idle = min(max(1-sp.used/max(took*float64(s.InFlight), 1e-9), 0), 1)
		for m := range moments {
			at := end * float64(m) / float64(max(moments-1, 1))
			step.Progress = append(step.Progress, startedAt(trace, i, at)/max(s.Items, 1))
		}
		out.Steps = append(out.Steps, step)
	}
	return out, nil
}

// startedAt is the number of items of a step requested by then.
func startedAt(trace []moment, step int, at float64) float64 {
	to := slices.IndexFunc(trace, func(m moment) bool { return m.at > at })
	if to <= 0 {
		return trace[len(trace)-1].started[step]
	}
	a, b := trace[to-1], trace[to]
	return a.started[step] + (b.started[step]-a.started[step])*(at-a.at)/(b.at-a.at)
}
