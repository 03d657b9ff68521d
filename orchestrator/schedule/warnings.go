package schedule

import (
	"fmt"
	"strings"
	"time"
)

// Warnings says what is allowed, and may not be what was meant.
func (s *Spec) Warnings(now time.Time) []string {
	out := []string{}
	if e := s.expression(); e != nil {
		out = append(out, e.warnings()...)
	}
	if s.Misfire == MisfireAll && s.Overlap == OverlapSkip {
		out = append(out, "misfire: all with overlap: skip: of the due times that are fired late, one after the other, "+
			"those are skipped whose predecessor is under way; overlap: queue has them wait")
	}
	if shortest := s.shortest(now); s.Jitter > 0 && time.Duration(s.Jitter) >= shortest && shortest > 0 {
		out = append(out, fmt.Sprintf("jitter: up to %s is longer than the %s between two due times, whose runs may "+
			"start in another order", s.Jitter, shortest))
	}
	return out
}

// shortest returns the shortest time between the next due times.
func (s *Spec) shortest(now time.Time) (shortest time.Duration) {
	dues := s.NextN(now, 10)
	for i := 1; i < len(dues); i++ {
		if between := dues[i].Sub(dues[i-1]); shortest == 0 || between < shortest {
			shortest = between
		}
	}
	return shortest
}

func (s *Spec) expression() *expression {
	switch r := s.rule.(type) {
	case byWall:
		return &r.expression
	case byElapsed:
		return &r.expression
	}
	return nil
}

// warnings explains what both kinds of days together mean. Programs differ in it for */2.
func (e *expression) warnings() []string {
	month, week := e.days[0], e.days[1]
	all := func(field string) bool { return field == "*" || field == "?" || field == "*/1" || field == "?/1" }
	if all(month) || all(week) {
		return nil
	}
	text := fmt.Sprintf("cron: day-of-month %s and day-of-week %s: it is due on the days of either, not only on those of "+
		"both", month, week)
	if strings.Contains(month, "*/") || strings.Contains(week, "*/") {
		text += "; some programs take */n together with the other to mean both, and this one does not"
	}
	return []string{text + "; write * for one of them if that is not what you want"}
}
