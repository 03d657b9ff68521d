package health

import (
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/workqueue/explain"
)

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
		Detail: explain.StoreText(f.db.Faults) + ".",
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
