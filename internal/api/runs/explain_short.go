package runs

import "github.com/tranchehq/tranche/workqueue/explain"

// tellShort explains items that only wait for the next claim by what this node lacks for it, if it does.
func (s *Routes) tellShort(groups []explain.MissingGroup) {
	short := s.Short()
	for i := range groups {
		if g := &groups[i]; len(short) > 0 && (g.Reason == explain.ReasonNext || g.Reason == explain.ReasonSettingUp) {
			g.Reason, g.Owner, g.Who, g.When = explain.ReasonShort, explain.OwnerOperator, "whoever sees to what is short", nil
			g.Why = short[0]
			g.Next = "a node claims them when it can"
		}
	}
}
