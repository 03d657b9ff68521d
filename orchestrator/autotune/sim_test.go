package autotune

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"time"
)

// simulation is an endpoint with its services and the nodes in front of it, in a time of its own.
type simulation struct {
	service serviceModel
	rng     *rand.Rand
	now     float64 // seconds
	began   float64 // when its time began, by the controller's
	events  events

	set       Settings
	instances []*instance
	queue     []*request
	handed    []*request // in the order of their timeouts
	shared    sharedWork
	live      int
	left      int // items of the block that is being cut
	next      int // the instance whose turn it is
	tokens    float64
	tokensAt  float64
	allowed   float64 // what the service will not refuse
	allowedAt float64
	chunkTime time.Duration
	chunkAuto bool
	demand    func(now float64) bool
	single    func(now float64) bool // a canary: requests have one item

	ended   map[endKey]*Ended
	done    float64 // items, in all
	waits   []float64
	perTick []tick
}

type tick struct {
	at, done float64
	set      Settings
	wait     float64 // the longest that a request waited that was begun in this second
}

type endKey struct {
	size int
	code string
}

// serviceModel says how services behave.
type serviceModel struct {
	instances, concurrency int
	// took is how long an instance works on n items while all of them work on so many requests.
	took func(n, busy, instance int) float64
	// slowdown, when it is not nil, says how many times longer each of so many requests takes, at each moment. They
	// share one machine then: requests that began together end together.
	slowdown func(busy int) float64
	// limit is how many items a second are not refused; 0: all.
	limit float64
	// burst is how many it lets through after a pause; 0: those of a second.
	burst float64
	// refuseWhole makes the whole request fail when one item is refused.
	refuseWhole bool
	// kills is the size from which on requests are never answered; 0: none is.
	kills int
	// down says when nothing is answered.
	down func(now float64) bool
	// away is from when until when the streams have no leader: no request reaches a service, and no reply a node.
	away    [2]float64
	timeout float64
	silent  bool // it does not say how long it worked
	// hidden: no one says how many requests services work on at once.
	hidden bool
}

type instance struct {
	number, busy int
	held         []*request
}

type request struct {
	size      int
	claimed   float64
	published float64
	overdue   float64 // when its time is up
	ended     bool
}

const (
	// simTransport is what a request spends on its way to a service, and its reply on its way back.
	simTransport = 0.004
	// simOverhead is what a request costs a service beside its work.
	simOverhead = 0.004
	// simBlock is how many items a block has.
	simBlock = 8192
)

func newSimulation(m serviceModel, set Settings, seed uint64) *simulation {
	s := &simulation{service: m, rng: rand.New(rand.NewPCG(seed, 1)), set: set, ended: map[endKey]*Ended{}}
	for n := range m.instances {
		s.instances = append(s.instances, &instance{number: n})
	}
	if s.service.timeout == 0 {
		s.service.timeout = 30
	}
	return s
}

func (s *simulation) after(d float64, then func()) { s.events.push(s.now+d, then) }

func (s *simulation) demands() bool { return s.demand == nil || s.demand(s.now) }

// claim sends requests while the settings allow it.
func (s *simulation) claim() {
	for s.live < s.set.InFlight && s.demands() {
		size := s.set.Chunk
		if s.set.Rate > 0 {
			size = min(size, max(1, int(s.set.Rate/2)))
			s.tokens = min(s.set.Rate, s.tokens+(s.now-s.tokensAt)*s.set.Rate)
			s.tokensAt = s.now
			if s.tokens <= 0 {
				return
			}
			s.tokens -= float64(size)
		}
		if s.left == 0 {
			s.left = simBlock
		}
		if s.single != nil && s.single(s.now) {
			size = 1
		}
		size = min(size, s.left) // requests do not go over the end of a block
		s.left -= size
		r := &request{size: size, claimed: s.now}
		s.live++
		s.after(simTransport, func() {
			r.published = s.now
			s.queue = append(s.queue, r)
			s.hand()
		})
	}
}

// hand gives requests to instances in turn, each up to twice what it works on at once.
func (s *simulation) hand() {
	for len(s.queue) > 0 && s.held() == 0 {
		in := s.free()
		if in == nil {
			return
		}
		r := s.queue[0]
		s.queue = s.queue[1:]
		in.held = append(in.held, r)
		r.overdue = s.now + s.service.timeout
		s.handed = append(s.handed, r)
		s.work(in)
	}
}

// held is for how long nothing moves in the streams; 0: it does.
func (s *simulation) held() float64 {
	if away := s.service.away; s.now >= away[0] && s.now < away[1] {
		return away[1] - s.now
	}
	return 0
}

func (s *simulation) free() *instance {
	for range s.instances {
		s.next = (s.next + 1) % len(s.instances)
		if in := s.instances[s.next]; in.busy+len(in.held) < 2*s.service.concurrency {
			return in
		}
	}
	return nil
}

func (s *simulation) work(in *instance) {
	for in.busy < s.service.concurrency && len(in.held) > 0 {
		r := in.held[0]
		in.held = in.held[1:]
		in.busy++
		s.waits = append(s.waits, s.now-r.published)
		s.perform(in, r)
	}
}

func (s *simulation) perform(in *instance, r *request) {
	busy := 0
	for _, other := range s.instances {
		busy += other.busy
	}
	began := s.now
	took := s.service.took(r.size, busy, in.number)
	if s.service.slowdown == nil {
		took *= 0.8 + 0.4*s.rng.Float64()
	}
	refused := s.refused(r.size)
	code := ""
	switch {
	case s.service.down != nil && s.service.down(s.now), s.service.kills > 0 && r.size >= s.service.kills:
		took, code = s.service.timeout, "deadline"
	case refused == r.size:
		took, code = 0.005, "throttled"
	case refused > 0 && s.service.refuseWhole:
		took, code, refused = 0.005, "throttled", r.size
	}
	done := func() {
		in.busy--
		if code != "deadline" {
			took := s.now - began
			s.after(s.held()+simTransport, func() { s.end(r, refused, took, code) })
		}
		s.work(in)
		s.hand()
	}
	if s.service.slowdown != nil && code == "" {
		s.share(took, done)
		return
	}
	s.after(took+simOverhead, done)
}

// refused is how many of n items are too much. A service saves up what it does not use for a second.
func (s *simulation) refused(n int) int {
	limit := s.service.limit
	if limit == 0 {
		return 0
	}
	s.allowed = min(cmp.Or(s.service.burst, limit), s.allowed+(s.now-s.allowedAt)*limit)
	s.allowedAt = s.now
	taken := min(n, max(0, int(s.allowed)))
	if s.service.refuseWhole && taken < n {
		return n
	}
	s.allowed -= float64(taken)
	return n - taken
}

func (s *simulation) end(r *request, refused int, took float64, code string) {
	if r.ended {
		return
	}
	r.ended = true
	s.live--
	key := endKey{r.size, code}
	e := s.ended[key]
	if e == nil {
		e = &Ended{Code: code}
		s.ended[key] = e
	}
	e.Requests++
	e.Items += r.size
	if code == "" {
		e.Clocked++
		e.Stay += time.Duration((s.now - r.claimed) * 1e9)
		e.Done += r.size - refused
		e.Refused += refused
		if !s.service.silent {
			e.Timed++
			e.Took += time.Duration(took * 1e9)
		}
		s.done += float64(r.size - refused)
	}
	s.claim()
}

// run lets time pass; each second the controller, if there is one, decides.
func (s *simulation) run(c *Controller, until float64) []Change {
	var changes []Change
	var second func()
	second = func() {
		if c != nil {
			changes = append(changes, c.Step(s.sample())...)
			s.set = c.Settings()
		} else {
			clear(s.ended)
		}
		t := tick{at: s.now, done: s.done, set: s.set}
		if len(s.waits) > 0 {
			t.wait = slices.Max(s.waits)
		}
		s.waits = s.waits[:0]
		s.perTick = append(s.perTick, t)
		s.claim()
		s.after(1, second)
	}
	s.after(1, second)
	// Tokens come in time, and demand with it.
	var poll func()
	poll = func() { s.expire(); s.claim(); s.hand(); s.after(0.05, poll) }
	s.after(0, poll)
	for len(s.events) > 0 && s.events[len(s.events)-1].at <= until {
		e := s.events.pop()
		s.now = e.at
		e.then()
	}
	return changes
}

// expire ends what was not answered in time.
func (s *simulation) expire() {
	for len(s.handed) > 0 && (s.handed[0].ended || s.handed[0].overdue <= s.now) {
		s.end(s.handed[0], 0, 0, "deadline")
		s.handed = s.handed[1:]
	}
}

func (s *simulation) sample() Sample {
	sample := Sample{At: time.Unix(0, int64((s.began+s.now)*1e9)), Window: time.Second, Live: s.live, Known: true,
		InFlightAuto: true,
		Demand:       s.demands(), Queued: len(s.queue), ChunkAuto: s.chunkAuto, ChunkTime: s.chunkTime}
	if !s.service.hidden {
		sample.Places = len(s.instances) * s.service.concurrency
	}
	for _, in := range s.instances {
		sample.InHands += in.busy + len(in.held)
	}
	for _, e := range s.ended {
		sample.Ended = append(sample.Ended, *e)
	}
	clear(s.ended)
	return sample
}

// rate is how many items a second were done between two times.
func (s *simulation) rate(from, to float64) float64 {
	var a, b *tick
	for i := range s.perTick {
		t := &s.perTick[i]
		if a == nil && t.at >= from {
			a = t
		}
		if t.at <= to {
			b = t
		}
	}
	return (b.done - a.done) / (b.at - a.at)
}

// longestWait is how long a request waited for a service at most, from a time on.
func (s *simulation) longestWait(from float64) (wait float64) {
	for _, t := range s.perTick {
		if t.at > from {
			wait = max(wait, t.wait)
		}
	}
	return wait
}

// event is something that happens at a time.
type event struct {
	at   float64
	then func()
}

// events is what is to happen, the next last.
type events []event

func (q *events) push(at float64, then func()) {
	i := sort.Search(len(*q), func(i int) bool { return (*q)[i].at <= at })
	*q = slices.Insert(*q, i, event{at, then})
}

func (q *events) pop() event {
	last := len(*q) - 1
	next := (*q)[last]
	*q = (*q)[:last]
	return next
}

// sharedWork is requests that slow each other down while they are at work. They have a time of their own, which runs
// slower the more there are.
type sharedWork struct {
	virtual float64
	asOf    float64 // the real time of virtual
	stays   []stay
	armed   int // how often the next end was looked for: only the latest look counts
}

// stay is a request at work, until a virtual time.
type stay struct {
	end  float64
	done func()
}

// share lets a request take what it takes alone, and longer beside others.
func (s *simulation) share(alone float64, done func()) {
	s.advance()
	s.shared.stays = append(s.shared.stays, stay{s.shared.virtual + alone, done})
	s.arm()
}

// advance brings the virtual time up to now.
func (s *simulation) advance() {
	w := &s.shared
	if n := len(w.stays); n > 0 {
		w.virtual += (s.now - w.asOf) / s.service.slowdown(n)
	}
	w.asOf = s.now
}

// arm waits for the next end.
func (s *simulation) arm() {
	w := &s.shared
	w.armed++
	if len(w.stays) == 0 {
		return
	}
	next, armed := math.Inf(1), w.armed
	for _, x := range w.stays {
		next = min(next, x.end-w.virtual)
	}
	s.after(max(0, next)*s.service.slowdown(len(w.stays)), func() {
		if armed == w.armed {
			s.finish()
		}
	})
}

// finish ends what is over.
func (s *simulation) finish() {
	const rounding = 1e-9
	s.advance()
	w := &s.shared
	var over []stay
	left := w.stays[:0]
	for _, x := range w.stays {
		if x.end <= w.virtual+rounding {
			over = append(over, x)
		} else {
			left = append(left, x)
		}
	}
	w.stays = left
	s.arm()
	for _, x := range over {
		x.done()
	}
}
