package health

import (
	"fmt"
	"strings"
)

// Shares of a limit from which on it is near.
const (
	fillNear        = 0.80
	fillFull        = 0.95
	connectionsNear = 0.90
	connectionsFull = 0.97
	diskNear        = 0.10 // of it is free
	diskFullPart    = 10   // of Config.DiskFree
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
	if !f.nats {
		all = append(all, unkept(Condition{
			Kind: NATS, Severity: Critical, Subject: f.host, Title: "This server cannot reach NATS", Link: "/nodes",
			Detail: "It sends nothing and records nothing until it can, and who listens on endpoints cannot be told.",
			Remedy: seeToNATS,
		}))
	}
	for _, what := range f.short {
		all = append(all, unkept(Condition{
			Kind: Shortage, Severity: Critical, Subject: f.host, Title: "Something is used up", Detail: what, Link: "/nodes",
			Remedy: "Make room, as it says; work goes on by itself then",
		}))
	}
	for i := range f.fills {
		if c, near := f.fills[i].judge(); near {
			all = append(all, c)
		}
	}
	if f.db != nil {
		all = append(all, f.connections()...)
	}
	return append(all, f.room()...)
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
			"--work-max-bytes, --reply-max-bytes and the others of `tranche serve`",
	}
	if f.subject == accountSubject {
		c.Remedy = "Give the account of Tranche more at the NATS server, or the streams less, with --work-max-bytes, " +
			"--reply-max-bytes and the others of `tranche serve`"
	}
	return unkept(c), near
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

func (f *facts) room() []Condition {
	d := f.disk
	if d == nil || d.free >= f.limits.DiskFree {
		return nil
	}
	severity := Warning
	switch {
	case d.free < f.limits.DiskFree/diskFullPart:
		severity = Critical
	case d.share() >= diskNear:
		return nil
	}
	c := Condition{
		Kind: Disk, Severity: severity, Subject: f.host,
		Title: fmt.Sprintf("%s are free on the disk of %s", size(d.free), f.host),
		Detail: fmt.Sprintf("That is %s of the disk that %s is on. When it is full, nothing can be recorded.",
			percent(d.share()), f.dataDir),
		Remedy: "Make room there; work goes on by itself",
	}
	if f.db != nil {
		c.Detail += fmt.Sprintf(" The database has %s.", size(uint64(max(f.db.Database.Bytes, 0))))
	}
	return []Condition{unkept(c)}
}
