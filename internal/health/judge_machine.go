package health

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/tranchehq/tranche/workqueue/health"
)

// Shares of a limit from which on it is near.
const (
	fillNear        = 0.80
	fillFull        = 0.95
	connectionsNear = 0.90
	connectionsFull = 0.97
)

const seeToNATS = "See to the NATS server, and to the network between; nothing has to be done here then"

// databaseAway tells that nothing is known of what PostgreSQL keeps.
func (f *facts) databaseAway() Condition {
	return unkept(Condition{
		Kind: Database, Severity: Critical, Subject: f.host, Title: "PostgreSQL does not answer",
		Detail: fmt.Sprintf("Nothing is sent and recorded without it, and what is wrong with runs, nodes and endpoints "+
			"cannot be told. It said to %s: %s", f.host, oneLine(f.dbErr)),
		Remedy: "See to the PostgreSQL server, and to the network between; nothing has to be done here then",
	})
}

// oneLine is an error in a line of bounded length.
func oneLine(err error) string {
	const most = 300
	text := strings.Join(strings.Fields(strings.ToValidUTF8(err.Error(), "")), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

// machine judges what this server sees for itself.
func (f *facts) machine() (all []Condition) {
	switch {
	case f.refused != "":
		all = append(all, natsRefuses(f.host, "this server", f.refused))
	case !f.nats:
		all = append(all, unkept(Condition{
			Kind: NATS, Severity: Critical, Subject: f.host, Title: "This server cannot reach NATS", Link: "/nodes",
			Detail: "It sends nothing and records nothing until it can, and who listens on endpoints cannot be told.",
			Remedy: seeToNATS,
		}))
	}
	for _, what := range f.short {
		all = append(all, unkept(Condition{
			Kind: Shortage, Severity: Critical, Subject: f.host, Title: "Something is used up, or too slow", Detail: what,
			Link:   "/nodes",
			Remedy: "See to it, as it says; work goes on by itself then",
		}))
	}
	for i := range f.fills {
		if c, near := f.fills[i].judge(); near {
			all = append(all, c)
		}
	}
	if f.db != nil {
		all = append(all, f.connections()...)
		all = append(all, f.gaps()...)
		all = append(all, f.streamSettings()...)
	}
	return append(append(all, f.store()...), f.room()...)
}

// natsRefuses tells that NATS refuses the user of a node, or denies it what it needs.
func natsRefuses(host, node, refused string) Condition {
	return unkept(Condition{
		Kind: NATS, Severity: Critical, Subject: host, Title: "NATS refuses " + node, Link: "/nodes",
		Detail: refused + ". Nothing is sent until it does not.", Remedy: health.RefusedRemedy,
	})
}

func (f *fill) judge() (c Condition, near bool) {
	severity, near := grade(f.share(), fillNear, fillFull)
	used, limit := count(f.used, strings.TrimSuffix(f.what, "s")), fmt.Sprint(f.limit)
	if f.bytes {
		used, limit = size(f.used), size(f.limit)
	}
	c = Condition{
		Kind: StreamLimit, Severity: severity, Subject: f.subject + " " + f.what,
		Title:  fmt.Sprintf("%s of the %s of %s are used", percent(f.share()), f.what, f.subject),
		Detail: fmt.Sprintf("%s of %s. When it is full, nothing more can be sent through it.", used, limit),
		Remedy: "See whether services take what waits for them: `tranche endpoints`; or give it more, with " +
			"`tranche streams set`",
	}
	if f.subject == accountSubject {
		c.Remedy = "Give the account of Tranche more at the NATS server, or the streams less, with " +
			"`tranche streams set`"
	}
	return unkept(c), near
}

// streamSettings judges what the node that leads could not bring to JetStream.
func (f *facts) streamSettings() []Condition {
	t := f.db.Streams
	if t == nil {
		return nil
	}
	return []Condition{dated(t.Since, Condition{
		Kind: StreamSettings, Severity: Warning, Subject: "streams",
		Title: "The streams are not as they are set",
		Detail: fmt.Sprintf("%s (tried %s, and tried again). They go on as they are.", oneLine(errors.New(t.Trouble)),
			count(t.Tries, "time")),
		Remedy: "See `tranche streams`; mend what it says, or set what there can be with `tranche streams set`",
	})}
}

// grade compares what is used with a limit.
func grade(share, near, full float64) (Severity, bool) {
	if share >= full {
		return Critical, true
	}
	return Warning, share >= near
}

func (f *facts) connections() []Condition {
	d := f.db.Database
	if d.MaxConnections <= 0 {
		return nil
	}
	severity, near := grade(float64(d.Connections)/float64(d.MaxConnections), connectionsNear, connectionsFull)
	if !near {
		return nil
	}
	return []Condition{unkept(Condition{
		Kind: Connections, Severity: severity, Subject: "PostgreSQL",
		Title:  fmt.Sprintf("PostgreSQL has %d of %d connections in use", d.Connections, d.MaxConnections),
		Detail: "Without a free one, nodes that start and programs beside them are refused.",
		Remedy: "Raise its max_connections, or lower --max-connections of the nodes",
	})}
}

const (
	diskNear     = 0.10 // of it is free
	diskFullPart = 10   // of Config.DiskFree
	// What has to be free beside what streams may grow to, for the rest to go on: a share of the disk, and no more than
	// diskReserve.
	reserveShare = 20
	diskReserve  = 1 << 30
)

// storeSubject stands for the disk that JetStream's streams are on, wherever that is.
const storeSubject = "JetStream"

// store tells of streams that take nothing because they cannot be written.
func (f *facts) store() []Condition {
	if f.db == nil || len(f.db.Faults) == 0 {
		return nil
	}
	first := f.db.Faults[0]
	c := Condition{
		Kind: Disk, Severity: Critical, Subject: storeSubject, Title: "JetStream's store cannot be written",
		Detail: health.StoreText(f.db.Faults) + ".",
		Remedy: "Make room on the disk of the NATS server; the streams are replaced within seconds then, and what was " +
			"under way is issued again",
	}
	if first.Detail == "" {
		c.Remedy = "The node that leads replaces the streams; when this stays, see what it logs"
	}
	return []Condition{dated(first.Since, c)}
}

// room judges the disk that this server keeps its files on, by what they may still grow to.
func (f *facts) room() []Condition {
	d := f.disk
	if d == nil {
		return nil
	}
	growth := f.growth()
	severity, why := f.roomFor(growth)
	if severity == "" {
		return nil
	}
	c := Condition{
		Kind: Disk, Severity: severity, Subject: f.host,
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
	return []Condition{unkept(c)}
}

// roomFor says how bad it is that no more is free, and why; nothing when there is room enough.
func (f *facts) roomFor(growth uint64) (severity Severity, why string) {
	const full = "When it is full, nothing can be recorded."
	d := f.disk
	if set := f.limits.DiskFree; set != DefaultDiskFree { // somebody knows better
		switch {
		case d.free < set/diskFullPart:
			return Critical, full
		case d.free < set && d.share() < diskNear:
			return Warning, full
		}
		return "", ""
	}
	reserve := min(d.size/reserveShare, diskReserve)
	switch {
	case d.free < reserve:
		return Critical, full
	case d.free < reserve+growth:
		return Warning, "JetStream's streams may fill it: they may still grow by " + size(growth) + "."
	case d.free < DefaultDiskFree && d.share() < diskNear:
		return Warning, full
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
