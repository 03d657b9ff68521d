package health

import "fmt"

// gaps tells what was confirmed and is lost.
func (f *facts) gaps() (all []Condition) {
	const day = "2006-01-02 15:04:05.0 MST"
	for i := range f.db.Gaps {
		g := &f.db.Gaps[i]
		c := Condition{
			Kind: DatabaseGap, Severity: Critical, Subject: g.NoticedAt.UTC().Format("2006-01-02T15:04:05Z"), Link: "/nodes",
			Title: "The database went back in time",
			Detail: fmt.Sprintf("What was confirmed between %s and %s, or in the second after, is lost: runs that were "+
				"started, items that were added, operations, acknowledgements, changes. What was out was issued again (%s "+
				"under way).", g.From.UTC().Format(day), g.To.UTC().Format(day), count(int64(g.Runs), "run")),
			Remedy: "Have what was sent to Tranche in that time sent again: with the same idempotency keys nothing is done " +
				"twice. Replicate synchronously where a failover is to lose nothing",
		}
		if !g.Lost {
			c.Severity, c.Title = Warning, "Another server took the database over"
			c.Detail = fmt.Sprintf("Nothing is known to be lost. If it was replicated asynchronously, what was confirmed "+
				"in the second after %s may be. What was out was issued again.", g.From.UTC().Format(day))
		}
		all = append(all, dated(g.NoticedAt, c))
	}
	return all
}
