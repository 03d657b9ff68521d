package health

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
)

const leaderGrace = 2 * time.Second // a lease changes hands within that time

func (f *facts) say(kind health.Kind, row health.Row) health.Condition {
	return kind.Condition(f.at, row)
}

// judge derives conditions from the facts, without further reads.
func judge(f *facts) (all []health.Condition) {
	if f.db == nil {
		all = append(all, f.say(health.Database, health.Row{"subject": f.host, "said": f.dbErr.Error()}))
	} else {
		all = append(all, f.told()...)
		all = append(all, f.nodes()...)
		all = append(all, f.others()...)
	}
	return append(all, f.machine()...)
}

// told returns the database's conditions and missing listeners. For an endpoint without listeners, no other condition
// about waiting work is reported.
func (f *facts) told() (all []health.Condition) {
	none := map[string]bool{}
	for _, e := range f.unheard {
		none[e.Endpoint] = true
		kind, target := workqueue.TargetKind(e.Endpoint)
		if kind == workqueue.KindEndpoint && f.stalled() != nil {
			continue // services may be connected to unavailable servers: unknown until JetStream answers
		}
		all = append(all, f.say(health.NoListeners, health.Row{"case": string(kind), "subject": e.Endpoint,
			"function": target, "like": e.Like, "runs": e.Runs, "out": e.Out}))
	}
	for i := range f.db.Conditions {
		if c := f.db.Conditions[i]; c.Kind != health.OldestWaiting || !none[c.Subject] {
			all = append(all, c)
		}
	}
	return all
}

// nodes checks nodes and leader. While the database takes no writes, nodes cannot send heartbeats.
func (f *facts) nodes() (all []health.Condition) {
	switch {
	case f.db.Database.ReadOnly:
		return []health.Condition{f.say(health.Database, health.Row{"case": "read_only", "subject": f.host})}
	case f.db.Database.AwaitsStandby:
		return []health.Condition{f.say(health.Database, health.Row{"case": "standby", "subject": f.host})}
	}
	alive, first := 0, f.at // and the start of the oldest live node
	for i := range f.db.Nodes {
		n := &f.db.Nodes[i]
		if n.Alive {
			alive++
			if n.StartedAt.Before(first) {
				first = n.StartedAt
			}
		}
		all = append(all, f.node(n)...)
	}
	all = append(all, f.leader(alive, first)...)
	if s := f.stalled(); s != nil { // restarted nodes know it only since their start
		all = append(all, f.say(health.NATS, health.Row{"case": "stalled", "subject": health.JetStream,
			"since": *s.StalledSince, "undated": true, "said": health.StalledText(s.StalledWhy)}))
	}
	return all
}

func (f *facts) node(n *health.NodeHealth) (all []health.Condition) {
	row := health.Row{"subject": n.Session.String(), "node": n.Name(), "beat": n.BeatAt, "since": n.BeatAt,
		"expires": n.ExpiresAt, "slices": n.Slices, "items": n.Items, "loads": n.Loads}
	switch {
	case !n.Alive:
		row["since"] = n.ExpiresAt
		if n.Slices > 0 || n.Loads > 0 {
			row["case"] = "holds"
		}
		all = append(all, f.say(health.NodeDead, row))
	case f.at.Sub(n.BeatAt) > n.ExpiresAt.Sub(n.BeatAt)*3/5:
		all = append(all, f.say(health.NodeLate, row))
	}
	switch {
	case !n.Alive || n.Host == f.host: // this node knows its own state better
	case n.Refused != "":
		all = append(all, f.natsRefuses(n.Host, n.Name(), n.Refused))
	case n.Away:
		all = append(all, f.say(health.NATS, health.Row{"subject": n.Host, "node": n.Name()}))
	}
	return all
}

func (f *facts) leader(alive int, first time.Time) []health.Condition {
	row := health.Row{"subject": "leader", "alive": alive}
	switch l := f.db.Leader; {
	case l == nil && alive > 0 && f.at.Sub(first) <= leaderGrace: // the first node is about to become leader
		return nil
	case l == nil:
	case f.at.Sub(l.ExpiresAt) > leaderGrace:
		row["since"] = l.ExpiresAt
	default:
		return nil
	}
	return []health.Condition{f.say(health.LeaderMissing, row)}
}

// stalled returns the node whose streams have been stalled longest, or nil if they respond to any node.
func (f *facts) stalled() *health.Node {
	return health.Stalled(func(yield func(*health.Node) bool) {
		for i := range f.db.Nodes {
			if !yield(&f.db.Nodes[i].Node) {
				return
			}
		}
	})
}

// answered reports whether the streams respond to a node that would know by now if they did not.
func (f *facts) answered() bool {
	return slices.ContainsFunc(f.db.Nodes, func(n health.NodeHealth) bool {
		return n.Alive && !n.Away && n.StalledSince == nil && f.at.Sub(n.StartedAt) > settledAfter
	})
}

// Shares of a limit that count as near or full.
const (
	fillNear        = 0.80
	fillFull        = 0.95
	connectionsNear = 0.90
	connectionsFull = 0.97
)

func (f *facts) machine() (all []health.Condition) {
	switch {
	case f.refused != "":
		all = append(all, f.natsRefuses(f.host, "this server", f.refused))
	case !f.nats:
		all = append(all, f.say(health.NATS, health.Row{"case": "here", "subject": f.host}))
	}
	for _, what := range f.short {
		all = append(all, f.say(health.ResourceExhausted, health.Row{"subject": f.host, "what": what}))
	}
	for i := range f.fills {
		if severity, near := grade(f.fills[i].share(), fillNear, fillFull); near {
			all = append(all, f.say(health.StreamLimit, f.fills[i].row(severity)))
		}
	}
	if f.db != nil {
		all = append(all, f.connections()...)
		all = append(all, f.store()...)
	}
	return append(all, f.room()...)
}

func (f *facts) natsRefuses(host, node, refused string) health.Condition {
	return f.say(health.NATS, health.Row{"case": "refused", "subject": host, "node": node, "refused": refused})
}

func (f *fill) row(severity health.Severity) health.Row {
	row := health.Row{"subject": f.subject + " " + f.what, "what": f.what, "holder": f.subject,
		"share": percent(f.share()), "used": health.Count(f.used, strings.TrimSuffix(f.what, "s")),
		"limit": fmt.Sprint(f.limit), "severity": string(severity)}
	if f.bytes {
		row["used"], row["limit"] = size(f.used), size(f.limit)
	}
	if f.subject == accountSubject {
		row["case"] = "account"
	}
	return row
}

func grade(share, near, full float64) (health.Severity, bool) {
	if share >= full {
		return health.Critical, true
	}
	return health.Warning, share >= near
}

func (f *facts) connections() []health.Condition {
	d := f.db.Database
	severity, near := grade(float64(d.Connections)/float64(max(d.MaxConnections, 1)), connectionsNear, connectionsFull)
	if !near || d.MaxConnections <= 0 {
		return nil
	}
	return []health.Condition{f.say(health.Connections, health.Row{"subject": "PostgreSQL",
		"severity": string(severity), "used": d.Connections, "limit": d.MaxConnections})}
}

const (
	diskNear     = 0.10 // the free share
	diskFullPart = 10   // of Config.DiskFree
	// What must stay free in addition to the streams' growth: a share of the disk, up to diskReserve.
	reserveShare = 20
	diskReserve  = 1 << 30
)

func (f *facts) store() []health.Condition {
	if len(f.db.Faults) == 0 {
		return nil
	}
	first := f.db.Faults[0]
	return []health.Condition{f.say(health.Disk, health.Row{"case": "store", "subject": health.JetStream,
		"since": first.Since, "faults": health.StoreText(f.db.Faults), "full": first.Detail != ""})}
}

func (f *facts) room() []health.Condition {
	d := f.disk
	if d == nil {
		return nil
	}
	growth := f.growth()
	severity, why := f.roomFor(growth)
	if severity == "" {
		return nil
	}
	row := health.Row{"subject": f.host, "severity": string(severity), "free": size(d.free), "share": percent(d.share()),
		"dir": f.dataDir, "why": why}
	if growth > 0 && growth > d.free {
		row["growth"] = size(growth)
	}
	if f.db != nil {
		row["database"] = size(uint64(max(f.db.Database.Bytes, 0)))
	}
	return []health.Condition{f.say(health.Disk, row)}
}

// roomFor returns how severe the lack of space is, and why; "" if there is enough.
func (f *facts) roomFor(growth uint64) (severity health.Severity, why string) {
	const full = "When it is full, nothing can be recorded."
	d := f.disk
	if set := f.limits.DiskFree; set != DefaultDiskFree { // the operator set a limit
		switch {
		case d.free < set/diskFullPart:
			return health.Critical, full
		case d.free < set && d.share() < diskNear:
			return health.Warning, full
		}
		return "", ""
	}
	reserve := min(d.size/reserveShare, diskReserve)
	switch {
	case d.free < reserve:
		return health.Critical, full
	case d.free < reserve+growth:
		return health.Warning, "JetStream's streams may fill it: they may still grow by " + size(growth) + "."
	case d.free < DefaultDiskFree && d.share() < diskNear:
		return health.Warning, full
	}
	return "", ""
}

func (f *facts) growth() (bytes uint64) {
	if !f.limits.StoresStreams {
		return 0
	}
	for i := range f.fills {
		if fill := &f.fills[i]; fill.bytes && strings.HasPrefix(fill.subject, streamPrefix) && fill.limit > fill.used {
			bytes += fill.limit - fill.used
		}
	}
	return bytes
}

type diskSpace struct{ free, size uint64 }

// FreeAt is the number of free bytes at a directory; false: unknown.
func FreeAt(dir string) (bytes int64, known bool) {
	space := spaceAt(dir)
	if space == nil {
		return 0, false
	}
	return int64(min(space.free, math.MaxInt64)), true
}

func (d *diskSpace) share() float64 {
	if d.size == 0 {
		return 1
	}
	return float64(d.free) / float64(d.size)
}

func size(n uint64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	power := min(int(math.Log2(float64(n))/10), 5)
	return fmt.Sprintf("%.1f %ciB", float64(n)/math.Pow(step, float64(power)), "KMGTP"[power-1])
}

func percent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }

type fill struct {
	subject string // a stream, or the account
	what    string
	used    uint64
	limit   uint64
	bytes   bool
}

func (f *fill) share() float64 { return float64(f.used) / float64(f.limit) }

const streamPrefix = "TRANCHE_"

const accountSubject = "the account"

func (w *Watch) streams(ctx context.Context) (fills []fill, known bool) {
	if !w.cfg.NC.IsConnected() {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, natsTimeout)
	defer cancel()
	js, err := jetstream.New(w.cfg.NC)
	if err != nil {
		return nil, false
	}
	add := func(subject, what string, used uint64, limit int64, bytes bool) {
		if limit > 0 {
			fills = append(fills, fill{subject, what, used, uint64(limit), bytes})
		}
	}
	list := js.ListStreams(ctx)
	for info := range list.Info() {
		if name := info.Config.Name; strings.HasPrefix(name, streamPrefix) {
			add(name, "bytes", info.State.Bytes, info.Config.MaxBytes, true)
			add(name, "messages", info.State.Msgs, info.Config.MaxMsgs, false)
			add(name, "consumers", uint64(max(info.State.Consumers, 0)), int64(info.Config.MaxConsumers), false)
		}
	}
	if list.Err() != nil {
		return nil, false
	}
	account, err := js.AccountInfo(ctx)
	if err != nil {
		return nil, false
	}
	add(accountSubject, "storage", account.Store, account.Limits.MaxStore, true)
	add(accountSubject, "memory", account.Memory, account.Limits.MaxMemory, true)
	add(accountSubject, "streams", uint64(max(account.Streams, 0)), int64(account.Limits.MaxStreams), false)
	add(accountSubject, "consumers", uint64(max(account.Consumers, 0)), int64(account.Limits.MaxConsumers), false)
	return fills, true
}
