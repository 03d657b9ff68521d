package health

import (
	"fmt"
	"net/url"
)

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
