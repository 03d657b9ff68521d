package scale

import (
	"math"
	"math/rand/v2"
)

// engine has the clock, in seconds, and what happens next.
type engine struct {
	now  float64
	seq  int
	heap []event
	rand *rand.Rand
}

type event struct {
	at  float64
	seq int // of two at the same time, the one that was planned first is first
	do  func()
}

func (a event) before(b event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

// after plans something. A time of 0 still lets others go first.
func (e *engine) after(d float64, do func()) {
	e.seq++
	e.heap = append(e.heap, event{e.now + d, e.seq, do})
	for i := len(e.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !e.heap[i].before(e.heap[up]) {
			break
		}
		e.heap[i], e.heap[up] = e.heap[up], e.heap[i]
		i = up
	}
}

// run lets everything happen that was planned.
func (e *engine) run() {
	for len(e.heap) > 0 {
		next := e.heap[0]
		last := len(e.heap) - 1
		e.heap[0], e.heap[last] = e.heap[last], event{}
		e.heap = e.heap[:last]
		for i := 0; ; {
			least, left := i, 2*i+1
			for child := left; child < min(left+2, last); child++ {
				if e.heap[child].before(e.heap[least]) {
					least = child
				}
			}
			if least == i {
				break
			}
			e.heap[i], e.heap[least] = e.heap[least], e.heap[i]
			i = least
		}
		e.now = next.at
		next.do()
	}
}

// stray is a factor around 1, lognormal.
func (e *engine) stray(sigma float64) float64 {
	return math.Exp(e.rand.NormFloat64()*sigma - sigma*sigma/2)
}

// gate lets so many in at once.
type gate struct {
	free  int
	most  int
	wait  queue
	used  float64 // seconds times places
	since float64
	e     *engine
}

func newGate(e *engine, n int) *gate { return &gate{free: n, most: n, e: e} }

func (g *gate) tick() {
	g.used += float64(g.most-g.free) * (g.e.now - g.since)
	g.since = g.e.now
}

func (g *gate) enter(do func()) {
	if g.free == 0 {
		g.wait.push(do)
		return
	}
	g.tick()
	g.free--
	do()
}

func (g *gate) leave() {
	if next := g.wait.pop(); next != nil {
		g.e.after(0, next)
		return
	}
	g.tick()
	g.free++
}

func (g *gate) busy() float64 {
	g.tick()
	return g.used / (float64(g.most) * g.e.now)
}

// queue is first in, first out.
type queue struct {
	list []func()
	head int
}

func (q *queue) push(do func()) { q.list = append(q.list, do) }

func (q *queue) pop() func() {
	if q.head == len(q.list) {
		return nil
	}
	do := q.list[q.head]
	q.list[q.head] = nil
	if q.head++; q.head > 1024 && q.head*2 > len(q.list) {
		q.list = append(q.list[:0], q.list[q.head:]...)
		q.head = 0
	}
	return do
}
