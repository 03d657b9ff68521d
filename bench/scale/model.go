package scale

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
)

// copiesCost is how much more of NATS's processor a further copy of a stream takes.
//
// It is so much that three servers that share two cores take 1.3 s for what one does in 0.9 s (docs/operate/sizing.md):
// 0.4 s more on two cores, of which NATS alone took 0.2.
const copiesCost = 1.0

// model is one simulation.
type model struct {
	*engine
	costs   Costs
	site    Site
	job     Job
	trip    float64 // s
	nats    *cores
	net     *wire
	service *cores
	all     []*installation
	done    int // installations
}

// Use is how busy something was, of 1.
type Use struct {
	Name string  `json:"name"`
	Busy float64 `json:"busy"`
}

// Result is what came out.
type Result struct {
	Seconds float64 `json:"seconds"`
	Intake  float64 `json:"intake_seconds"`   // of the installation that was loaded last
	Rate    float64 `json:"items_per_second"` // of all
	Uses    []Use   `json:"uses"`             // the busiest first; of databases and nodes the busiest one
	Flushes float64 `json:"flushes_per_second"`
	Bytes   float64 `json:"database_bytes"` // of all databases, when it is done
}

// waiting is what is said when nothing is used up.
const waiting = "waiting"

// Limit is what is used up first, or "waiting": for round trips and commits, one after the other, and for one another.
func (r *Result) Limit() string {
	if r.Uses[0].Busy < 0.8 {
		return waiting
	}
	return r.Uses[0].Name
}

// Simulate does the job on the site.
func Simulate(costs Costs, site Site, job Job, seed uint64) (*Result, error) {
	if err := site.validate(job); err != nil {
		return nil, err
	}
	m := &model{engine: &engine{rand: rand.New(rand.NewPCG(seed, 0))}, costs: costs, site: site, job: job,
		trip: site.Trip/1000 + costs.Trip*micro}
	m.net = &wire{e: m.engine, perByte: 1 / (site.Network * mega)}
	shared := m.machine(site.OneMachine)
	m.nats, m.service = shared(site.NATSCores), shared(site.ServiceCores)
	for at := range site.Databases {
		m.all = append(m.all, m.installation(shared, m.part(at)))
	}
	for _, i := range m.all {
		i.begin()
	}
	m.run()
	if m.done != len(m.all) {
		return nil, fmt.Errorf("simulate: %d of %d installations came to an end; that is a bug", m.done, len(m.all))
	}
	return m.result(), nil
}

// machine returns what makes machines, or hands out the only one.
func (m *model) machine(all float64) func(float64) *cores {
	if all <= 0 {
		return func(n float64) *cores { return newCores(m.engine, n) }
	}
	one := newCores(m.engine, all)
	return func(float64) *cores { return one }
}

// part is how many items an installation has.
func (m *model) part(at int) int {
	n, items := m.site.Databases, m.job.Items
	if n == 1 {
		return items
	}
	first := min(items, int(float64(items)/float64(n)*(1+m.job.Skew)))
	if at == 0 {
		return first
	}
	rest := items - first
	each := rest / (n - 1)
	if at <= rest%(n-1) {
		each++
	}
	return each
}

func (m *model) installation(machine func(float64) *cores, load int) *installation {
	i := &installation{model: m, db: machine(m.site.DatabaseCores), conns: newGate(m.engine, m.site.Connections),
		load: load, writers: newGate(m.engine, loadWriters), locked: map[int]*gate{},
		disk: &disk{e: m.engine, fsync: m.site.Fsync / 1000, perByte: 1 / (m.site.Disk * mega), stray: m.site.Slow,
			late: m.site.Late}}
	for range m.site.Nodes {
		i.nodes = append(i.nodes, &node{installation: i, cpu: machine(m.site.NodeCores),
			pool: newGate(m.engine, nodePool), publish: newGate(m.engine, publishers)})
	}
	if load == 0 {
		m.done++
	}
	return i
}

func (m *model) result() *Result {
	job, c := &m.job, &m.costs
	chunks := float64(m.job.Items*m.job.Steps) / float64(m.job.Chunk)
	items, steps := float64(job.Items), float64(job.Steps)
	r := &Result{Seconds: m.now, Rate: items / m.now,
		Bytes: c.DiskIntake.of(items, job.Bytes) + c.DiskWork.each(steps*items, job.Bytes) + chunks*c.DiskWork.Chunk}
	busiest := func(name string, of func(*installation) float64) {
		u := Use{Name: name}
		for _, i := range m.all {
			u.Busy = max(u.Busy, of(i))
		}
		r.Uses = append(r.Uses, u)
	}
	busiest("database processor", func(i *installation) float64 { return i.db.busy() })
	busiest("database disk", func(i *installation) float64 { return i.disk.used / m.now })
	busiest("connections", func(i *installation) float64 { return i.conns.busy() })
	busiest("node processor", func(i *installation) float64 {
		most := 0.0
		for _, n := range i.nodes {
			most = max(most, n.cpu.busy())
		}
		return most
	})
	r.Uses = append(r.Uses, Use{"NATS processor", m.nats.busy()}, Use{"NATS network", m.net.used / m.now},
		Use{"service", m.service.busy()})
	if m.site.OneMachine > 0 {
		r.Uses = slices.DeleteFunc(r.Uses, func(u Use) bool { return u.Name != "database disk" && u.Name != "connections" })
		r.Uses = append(r.Uses, Use{"the machine's processor", m.nats.busy()})
	}
	slices.SortStableFunc(r.Uses, func(a, b Use) int { return cmp.Compare(b.Busy, a.Busy) })
	for _, i := range m.all {
		r.Intake = max(r.Intake, i.intakeAt)
		r.Flushes += float64(i.disk.flushes) / m.now
	}
	return r
}
