package health

import (
	"fmt"
	"math"
	"net/url"
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

const (
	// Not waits: how far back failed runs, quarantined messages and dead nodes are told of.
	failedWindow = 14 * 24 * time.Hour
	straysWindow = 24 * time.Hour
	deadWindow   = time.Hour
	// Not waits: so long before its end a token is told of, and is a warning.
	tokenWindow = 7 * 24 * time.Hour
	tokenUrgent = 24 * time.Hour
	staleGrace  = 15 * time.Second // a leader sweeps every second
	staleUrgent = 2 * time.Minute
	lateAfter   = 3 * time.Second // three heartbeats
	leaderGrace = 2 * time.Second // a lease changes hands within it
	waitsLong   = 6               // times Config.Waiting
)

// judge says what of the facts a person should see to. It asks nobody.
func judge(f *facts) (all []Condition) {
	if f.db == nil {
		all = append(all, f.databaseAway())
	} else {
		all = append(all, f.runs()...)
		all = append(all, f.work()...)
		all = append(all, f.leftovers()...)
		all = append(all, f.nodes()...)
		all = append(all, f.schedules()...)
		all = append(all, f.collectors()...)
		all = append(all, f.alerts()...)
		all = append(all, f.others()...)
	}
	all = append(all, f.machine()...)
	for i := range all {
		all[i].Of, all[i].Count = max(all[i].Of, 1), max(all[i].Count, 1)
	}
	return all
}

// dated sets since when; kept conditions are dated later.
func dated(at time.Time, c Condition) Condition {
	c.Since = at
	return c
}

func unkept(c Condition) Condition {
	c.unkept = true
	return c
}

// count writes a number with its noun: 1 item, 2 items.
func count[N ~int | ~int64 | ~uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// runName is a run for people.
func runName(id workqueue.RunID, name, plan string) string {
	if name == "" {
		return fmt.Sprintf("run %s of %s", id.String()[:8], plan)
	}
	return "run " + name
}

func runLink(id workqueue.RunID) string { return "/runs/" + id.String() }

func endpointLink(name string) string { return "/endpoint?name=" + url.QueryEscape(name) }

// ago is a time that has gone by, for people.
func ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(max(d, 0).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	default:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	}
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
