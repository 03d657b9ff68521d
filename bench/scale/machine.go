package scale

import "math"

const (
	quantum = 0.004 // s: how long work has a core before it is another's turn
	micro   = 1e-6
	mega    = 1e6
)

// cores do work in turns: whoever has had a quantum waits again behind the others. A part of a core makes all of them
// slower.
type cores struct {
	*gate
	speed float64
	noise float64
}

func newCores(e *engine, n float64) *cores {
	whole := max(1, math.Floor(n))
	return &cores{gate: newGate(e, int(whole)), speed: n / whole, noise: 0.1}
}

// do takes so many µs of one core.
func (c *cores) do(us float64, then func()) {
	c.turn(us*micro/c.speed*c.e.stray(c.noise), then)
}

func (c *cores) turn(left float64, then func()) {
	c.enter(func() {
		now := min(left, quantum)
		c.e.after(now, func() {
			c.leave()
			if left -= now; left > 1e-9 {
				c.turn(left, then)
				return
			}
			then()
		})
	})
}

// disk writes the log, and data files beside it. Whoever commits while a flush is under way is in the next one.
type disk struct {
	e       *engine
	fsync   float64 // s
	perByte float64
	stray   float64
	late    bool
	bytes   float64 // not written yet
	waiting []func()
	writing bool
	used    float64 // s
	flushes int
	written float64
}

// log adds bytes that a later flush writes.
func (d *disk) log(bytes float64) { d.bytes += bytes }

// commit goes on when everything that was logged before is on the disk.
func (d *disk) commit(then func()) {
	d.waiting = append(d.waiting, then)
	d.flush()
}

func (d *disk) flush() {
	if d.writing || len(d.waiting) == 0 {
		return
	}
	group, bytes := d.waiting, d.bytes
	d.waiting, d.bytes, d.writing = nil, 0, true
	took := d.fsync*d.e.stray(d.stray) + bytes*d.perByte
	d.used += took
	d.flushes++
	d.written += bytes
	d.e.after(took, func() {
		d.writing = false
		if d.late {
			group, d.waiting = append(group, d.waiting...), nil
		}
		for _, then := range group {
			d.e.after(0, then)
		}
		d.flush()
	})
}

// wire carries bytes one after the other.
type wire struct {
	e       *engine
	perByte float64
	until   float64
	used    float64
}

func (w *wire) carry(bytes float64, then func()) {
	took := bytes * w.perByte
	w.used += took
	w.until = max(w.until, w.e.now) + took
	w.e.after(w.until-w.e.now, then)
}
