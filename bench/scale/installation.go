package scale

import "slices"

// What a node and the store do, as the code has it.
const (
	blockItems     = 8192 // of a row of bit planes
	loadItems      = 4 * blockItems
	loadWriters    = 2 // batches of a load at once
	claimSlices    = 32
	publishers     = 2 // of a node
	recorders      = 2
	recordReplies  = 16
	nodePool       = 16    // connections of a node for what comes
	quickCommit    = 0.005 // s; see the recorder
	gatherTime     = 0.020 // s
	minConnections = 22

	// Round trips to the database.
	loadTrips   = 4 // hold the run, COPY takes two, COMMIT
	claimTrips  = 2
	readTrips   = 1
	recordTrips = 3 // lock the slices, COPY
	settleTrips = 2 // with the blocks locked

	// Parts of the database's work: COPY and its indexes are most of an item's.
	readPart, copyPart, settlePart = 0.2, 0.7, 0.1 // of what an item takes
	claimPart                      = 0.5           // of what a chunk takes, and the rest with its reply
	parsePart                      = 0.6           // of a node's intake; the rest is with its writers
)

// chunk is a request on its way.
type chunk struct {
	items int
	block int // each step has blocks of its own
}

// installation is a database with its nodes.
type installation struct {
	*model
	db    *cores
	disk  *disk
	conns *gate
	nodes []*node

	load     int      // items to load
	loaded   int      // items that are stored
	writers  *gate    // of the load
	ready    []*chunk // to be claimed
	out      int      // requests claimed and not recorded
	left     int      // chunks that are not recorded
	locked   map[int]*gate
	intakeAt float64
}

type node struct {
	*installation
	cpu      *cores
	pool     *gate
	publish  *gate
	claiming bool
	replies  []*chunk
	resting  int // recorders that wait for replies
}

// begin loads the items, batch by batch: one goroutine parses, two write.
func (i *installation) begin() {
	i.parse(0)
}

func (i *installation) parse(done int) {
	n := i.nodes[0]
	batch := min(loadItems, i.load-done)
	if batch == 0 {
		return
	}
	us := i.costs.NodeIntake.of(float64(batch), i.job.Bytes)
	n.cpu.do(us*parsePart, func() {
		i.writers.enter(func() {
			i.parse(done + batch)
			n.cpu.do(us*(1-parsePart), func() { n.store(batch) })
		})
	})
}

// store commits a batch of a load, and seals the run with the last one.
func (n *node) store(batch int) {
	items, c := float64(batch), &n.costs
	n.query(loadTrips, c.DatabaseIntake.of(items, n.job.Bytes), func(release func()) {
		n.disk.log(c.WALIntake.of(items, n.job.Bytes) + c.DiskIntake.of(items, n.job.Bytes))
		n.disk.commit(func() {
			release()
			n.writers.leave()
			if n.loaded += batch; n.loaded == n.load {
				n.seal()
			}
		})
	})
}

// query waits for a connection, for so many round trips, and for the database's processor. Its user releases the
// connection.
func (n *node) query(trips float64, us float64, then func(release func())) {
	n.pool.enter(func() {
		n.conns.enter(func() {
			n.after(trips*n.trip, func() {
				n.db.do(us, func() { then(func() { n.conns.leave(); n.pool.leave() }) })
			})
		})
	})
}

// seal makes the chunks, of all steps in turn, and starts the nodes.
func (i *installation) seal() {
	i.intakeAt = i.now
	for at := 0; at < i.load; {
		size := min(i.job.Chunk, i.load-at, blockItems-at%blockItems) // a slice is of one block
		for step := range i.job.Steps {
			i.ready = append(i.ready, &chunk{size, at/blockItems*i.job.Steps + step})
		}
		at += size
	}
	i.left = len(i.ready)
	for _, n := range i.nodes {
		for range recorders {
			n.record()
		}
		n.claim()
	}
}

// claim takes as many slices as there is room for, and again.
func (n *node) claim() {
	count := min(claimSlices, n.job.InFlight*n.job.Steps-n.out, len(n.ready))
	if n.claiming || count <= 0 {
		return
	}
	n.claiming = true
	taken := n.ready[:count:count]
	n.ready, n.out = n.ready[count:], n.out+count
	c := &n.costs
	n.query(claimTrips, c.DatabaseWork.Chunk*claimPart*float64(count), func(release func()) {
		n.disk.log(c.WALWork.Chunk * claimPart * float64(count))
		n.disk.commit(func() {
			release()
			for _, t := range taken {
				n.publish.enter(func() { n.send(t) })
			}
			n.claiming = false
			n.claim()
		})
	})
}

// send reads the items of a chunk and hands it to NATS, which a service takes it from.
func (n *node) send(t *chunk) {
	items, c, bytes := float64(t.items), &n.costs, n.job.Bytes
	n.query(readTrips, c.DatabaseWork.each(items, bytes)*readPart, func(release func()) {
		release()
		n.cpu.do(c.NodeWork.of(items, bytes)/2, func() {
			n.publish.leave()
			n.carry(items, func() {
				n.service.do(c.ServiceWork.of(items, bytes)+n.job.Service*1000*items, func() {
					n.carry(items, func() { n.reply(t) })
				})
			})
		})
	})
}

// carry brings a request or a reply through NATS: half of what a chunk takes there. Copies of the streams take as much
// again each.
func (m *model) carry(items float64, then func()) {
	bytes := m.costs.Wire.of(items, m.job.Bytes) / 2
	copies := float64(m.site.Replicas)
	m.nats.do(m.costs.NATSWork.of(items, m.job.Bytes)/2*(1+copiesCost*(copies-1)), func() {
		m.net.carry(bytes*copies, then)
	})
}

// reply comes to whichever node of the installation has most time.
func (i *installation) reply(t *chunk) {
	n := slices.MinFunc(i.nodes, func(a, b *node) int { return len(a.replies) - a.resting - len(b.replies) + b.resting })
	n.replies = append(n.replies, t)
	if n.resting > 0 {
		n.resting--
		n.record()
	}
}

// record is a recorder: it takes what replies there are, up to sixteen, and commits them.
func (n *node) record() {
	if len(n.replies) == 0 {
		n.resting++
		return
	}
	count := min(recordReplies, len(n.replies))
	batch := n.replies[:count:count]
	n.replies = n.replies[count:]
	items, blocks := 0.0, make([]int, 0, 2)
	for _, t := range batch {
		items += float64(t.items)
		if !slices.Contains(blocks, t.block) {
			blocks = append(blocks, t.block)
		}
	}
	slices.Sort(blocks)
	c, bytes, begun := &n.costs, n.job.Bytes, n.now
	perItem := c.DatabaseWork.each(items, bytes)
	perChunk := float64(count) * c.DatabaseWork.Chunk * (1 - claimPart)
	n.cpu.do((c.NodeWork.each(items, bytes)+float64(count)*c.NodeWork.Chunk)/2, func() {
		n.query(recordTrips, perItem*copyPart, func(release func()) {
			n.lock(blocks, func() {
				n.after(settleTrips*n.trip, func() {
					n.db.do(perItem*settlePart+perChunk, func() {
						n.disk.log(c.WALWork.each(items, bytes) + c.DiskWork.each(items, bytes) +
							float64(count)*(c.WALWork.Chunk*(1-claimPart)+c.DiskWork.Chunk))
						n.disk.commit(func() { n.recorded(blocks, batch, begun, release) })
					})
				})
			})
		})
	})
}

// lock takes blocks in their order.
func (i *installation) lock(blocks []int, then func()) {
	if len(blocks) == 0 {
		then()
		return
	}
	g := i.locked[blocks[0]]
	if g == nil {
		g = newGate(i.engine, 1)
		i.locked[blocks[0]] = g
	}
	g.enter(func() { i.lock(blocks[1:], then) })
}

func (n *node) recorded(blocks []int, batch []*chunk, begun float64, release func()) {
	release()
	for _, b := range blocks {
		g := n.locked[b]
		if g.leave(); g.free == 1 {
			delete(n.locked, b)
		}
	}
	n.out -= len(batch)
	if n.left -= len(batch); n.left == 0 {
		n.done++
	}
	for _, other := range n.nodes {
		other.claim()
	}
	if slow := n.now - begun - quickCommit; slow > 0 && len(batch) < recordReplies {
		n.after(min(slow, gatherTime), n.record)
		return
	}
	n.record()
}
