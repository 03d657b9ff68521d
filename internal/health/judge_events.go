package health

import (
	"fmt"
	"net/url"
	"strings"
)

// events judges those that could not be published: NATS is away, or does not take them from the nodes' user.
func (f *facts) events() []Condition {
	e := f.db.Events
	if e.Events == 0 || e.Since == nil {
		return nil
	}
	return []Condition{dated(*e.Since, Condition{
		Kind: EventsWaiting, Severity: Warning, Subject: "events", Link: "/nodes",
		Title: count(e.Events, "event") + " could not be published",
		Detail: fmt.Sprintf("The oldest is %s old; they say %s. Who waits for them does not know yet.",
			ago(f.at.Sub(*e.Since)), strings.Join(e.Kinds, ", ")),
		Remedy: "See to NATS, and to what the nodes log: their user may lack a permission for these kinds, or they are " +
			"larger than max_payload. They are published as soon as NATS takes them",
	})}
}

// alerts judges who could not be told.
func (f *facts) alerts() (all []Condition) {
	for i := range f.db.AlertsFailing {
		a := &f.db.AlertsFailing[i]
		all = append(all, dated(a.Since, Condition{
			Kind: AlertFailing, Severity: Warning, Subject: a.Alert, Link: "/alerts?name=" + url.QueryEscape(a.Alert),
			Title: "Nobody hears of alert " + a.Alert,
			Detail: fmt.Sprintf("Its receiver could not be told anything for %s, at %s; %s. The last: %s.",
				ago(f.at.Sub(a.Since)), count(a.Failures, "attempt"), isAre(int(a.Waiting), "message")+" waiting", a.Reason),
			Remedy: fmt.Sprintf("Mend that, then try it: `tranche alert test %s`", a.Alert),
		}))
	}
	return all
}
