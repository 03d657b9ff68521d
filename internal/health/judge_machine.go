package health

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/workqueue/explain"
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
		Detail: refused + ". Nothing is sent until it does not.", Remedy: explain.RefusedRemedy,
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
