package health

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/workqueue/health"
)

// Shares of a limit from which on it is near.
const (
	fillNear        = 0.80
	fillFull        = 0.95
	connectionsNear = 0.90
	connectionsFull = 0.97
)

// databaseAway tells that nothing is known of what PostgreSQL keeps.
func (f *facts) databaseAway() health.Condition {
	return health.Condition{
		Undated: true, Kind: health.Database, Severity: health.Critical, Subject: f.host,
		Title: "PostgreSQL does not answer",
		Detail: fmt.Sprintf("Nothing is sent and recorded without it, and what is wrong with runs, nodes and endpoints "+
			"cannot be told. It said to %s: %s", f.host, health.OneLine(f.dbErr.Error(), 300)),
		Remedy: "See to the PostgreSQL server, and to the network between; nothing must be done here then",
	}
}

// machine judges what this server sees for itself.
func (f *facts) machine() (all []health.Condition) {
	switch {
	case f.refused != "":
		all = append(all, natsRefuses(f.host, "this server", f.refused))
	case !f.nats:
		all = append(all, health.Condition{
			Undated: true, Kind: health.NATS, Severity: health.Critical, Subject: f.host,
			Title:  "This server cannot reach NATS",
			Detail: "It sends nothing and records nothing until it can, and who listens on endpoints cannot be told.",
			Remedy: health.NATSAdvice().Remedy(),
		})
	}
	for _, what := range f.short {
		all = append(all, health.Condition{
			Undated: true, Kind: health.ResourceExhausted, Severity: health.Critical, Subject: f.host,
			Title: "Something is used up, or too slow", Detail: what,
			Remedy: "See to it, as it says; work goes on by itself then",
		})
	}
	for i := range f.fills {
		if c, near := f.fills[i].judge(); near {
			all = append(all, c)
		}
	}
	if f.db != nil {
		all = append(all, f.connections()...)
	}
	return append(append(all, f.store()...), f.room()...)
}

// natsRefuses tells that NATS refuses the user of a node, or denies it what it needs.
func natsRefuses(host, node, refused string) health.Condition {
	return health.Condition{
		Undated: true, Kind: health.NATS, Severity: health.Critical, Subject: host, Title: "NATS refuses " + node,
		Detail: refused + ". Nothing is sent until it does not.", Remedy: health.RefusedAdvice().Remedy(),
	}
}

func (f *fill) judge() (c health.Condition, near bool) {
	severity, near := grade(f.share(), fillNear, fillFull)
	used, limit := health.Count(f.used, strings.TrimSuffix(f.what, "s")), fmt.Sprint(f.limit)
	if f.bytes {
		used, limit = size(f.used), size(f.limit)
	}
	c = health.Condition{
		Undated: true, Kind: health.StreamLimit, Severity: severity, Subject: f.subject + " " + f.what,
		Title:  fmt.Sprintf("%s of the %s of %s are used", percent(f.share()), f.what, f.subject),
		Detail: fmt.Sprintf("%s of %s. When it is full, nothing more can be sent through it.", used, limit),
		Remedy: "See whether services take what waits for them: `tranche endpoints`; or give it more, with " +
			"`tranche streams set`",
	}
	if f.subject == accountSubject {
		c.Remedy = "Give the account of Tranche more at the NATS server, or the streams less, with " +
			"`tranche streams set`"
	}
	return c, near
}

// grade compares what is used with a limit.
func grade(share, near, full float64) (health.Severity, bool) {
	if share >= full {
		return health.Critical, true
	}
	return health.Warning, share >= near
}

func (f *facts) connections() []health.Condition {
	d := f.db.Database
	if d.MaxConnections <= 0 {
		return nil
	}
	severity, near := grade(float64(d.Connections)/float64(d.MaxConnections), connectionsNear, connectionsFull)
	if !near {
		return nil
	}
	return []health.Condition{{
		Undated: true, Kind: health.Connections, Severity: severity, Subject: "PostgreSQL",
		Title:  fmt.Sprintf("PostgreSQL has %d of %d connections in use", d.Connections, d.MaxConnections),
		Detail: "Without a free one, nodes that start and programs beside them are refused.",
		Remedy: "Raise its max_connections, or lower --max-connections of the nodes",
	}}
}

const (
	diskNear     = 0.10 // of it is free
	diskFullPart = 10   // of Config.DiskFree
	// What must be free beside what streams may grow to, for the rest to go on: a share of the disk, and no more than
	// diskReserve.
	reserveShare = 20
	diskReserve  = 1 << 30
)

// store tells of streams that take nothing because they cannot be written.
func (f *facts) store() []health.Condition {
	if f.db == nil || len(f.db.Faults) == 0 {
		return nil
	}
	first := f.db.Faults[0]
	c := health.Condition{
		Kind: health.Disk, Severity: health.Critical, Subject: health.JetStream, Since: first.Since,
		Title:  "JetStream's store cannot be written",
		Detail: health.StoreText(f.db.Faults) + ".",
		Remedy: "Make room on the disk of the NATS server; the streams are replaced within seconds then, and what was " +
			"in progress is reissued",
	}
	if first.Detail == "" {
		c.Remedy = "The leader replaces the streams; when this stays, see what it logs"
	}
	return []health.Condition{c}
}

// room judges the disk that this server keeps its files on, by what they may still grow to.
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
	c := health.Condition{
		Undated: true, Kind: health.Disk, Severity: severity, Subject: f.host,
		Title: fmt.Sprintf("%s are free on the disk of %s", size(d.free), f.host),
		Detail: fmt.Sprintf("That is %s of the disk that %s is on. %s", percent(d.share()), f.dataDir,
			why),
		Remedy: "Make room there; work goes on by itself",
	}
	if growth > 0 && growth > d.free {
		c.Remedy += fmt.Sprintf(". Or let the streams have less than the %s that they may still grow by, with "+
			"`tranche streams set`", size(growth))
	}
	if f.db != nil {
		c.Detail += fmt.Sprintf(" The database has %s.", size(uint64(max(f.db.Database.Bytes, 0))))
	}
	return []health.Condition{c}
}

// roomFor says how bad it is that no more is free, and why; nothing when there is room enough.
func (f *facts) roomFor(growth uint64) (severity health.Severity, why string) {
	const full = "When it is full, nothing can be recorded."
	d := f.disk
	if set := f.limits.DiskFree; set != DefaultDiskFree { // someone knows better
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

// growth is by how much the streams may still grow on the disk that this server keeps its files on.
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

// diskSpace is the room on the file system that a directory is on.
type diskSpace struct{ free, size uint64 }

// FreeAt is how many bytes are free where a directory is; false: it cannot be told.
func FreeAt(dir string) (bytes int64, known bool) {
	space := spaceAt(dir)
	if space == nil {
		return 0, false
	}
	return int64(min(space.free, math.MaxInt64)), true
}

// share is the part that is free.
func (d *diskSpace) share() float64 {
	if d.size == 0 {
		return 1
	}
	return float64(d.free) / float64(d.size)
}

// size is a number of bytes for people.
func size(n uint64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	power := min(int(math.Log2(float64(n))/10), 5)
	return fmt.Sprintf("%.1f %ciB", float64(n)/math.Pow(step, float64(power)), "KMGTP"[power-1])
}

func percent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }

// fill is how much of something that is limited is used.
type fill struct {
	subject string // a stream, or the account
	what    string
	used    uint64
	limit   uint64
	bytes   bool
}

func (f *fill) share() float64 { return float64(f.used) / float64(f.limit) }

// streamPrefix is how the names of our streams begin.
const streamPrefix = "TRANCHE_"

// accountSubject stands for all that the account may use.
const accountSubject = "the account"

// streams asks JetStream how full its streams and our account are.
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
