package schedules

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/workqueue/schedule"
)

// handsFree reports whether the items of another run may be loaded. Sources that are slow, of which a few may last for
// half an hour, do not have all others wait for them: there is an end to that, too, since each has a connection and may
// have a file.
func (d *Duty) handsFree(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	quick := 0
	for _, load := range d.loading {
		if now.Sub(load.since) < slowLoad {
			quick++
		}
	}
	return quick < d.cfg.Starts && len(d.loading) < d.cfg.Starts*slowStarts
}

// How the reasons of fires begin and go on that are told apart by them.
const (
	attemptBegins = "attempt "
	turnBegins    = "its turn has not come: "
	turnGoesOn    = "; before that: "
)

// behindAStart notes that a fire which cancels what is under way waits for a run that cannot be cancelled yet.
func (r *round) behindAStart(f *schedule.WaitingFire) {
	if f.State == schedule.FireWaiting { // one in a queue says so already
		r.note(f, fmt.Sprintf("the run of %s is being started; it is cancelled for this one when it has its items",
			r.busy[f.Schedule].Due.UTC().Format(time.RFC3339)))
	}
}

func (r *round) note(f *schedule.WaitingFire, reason string) {
	if f.Reason != reason {
		r.notes = append(r.notes, schedule.FireNote{FireKey: f.FireKey, Was: f.Reason, Reason: reason})
	}
}

// tell writes why fires wait whose turn has not come, for people, and for what becomes of them in the end. It changes
// with each run that is loaded, and may be said of a thousand fires, and so it is not written each time.
func (r *round) tell(ctx context.Context, fires []schedule.WaitingFire) error {
	if crowd := r.crowd(); crowd != "" {
		for before, f := range r.crowded {
			if f.State != schedule.FireStarting { // it was begun, and says when
				r.note(f, turn(f.Reason, crowd, before))
			}
		}
	}
	if len(r.notes) == 0 || !r.tellNow(fires[0].Now) {
		return nil
	}
	return schedule.New(r.store).NoteFires(ctx, r.lease, r.notes)
}

func (d *Duty) tellNow(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if since := now.Sub(d.told); since >= 0 && since < tellPause {
		return false
	}
	d.told = now
	return true
}

// crowd names the runs that are being loaded. Empty: there are none by now.
func (d *Duty) crowd() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := make([]string, 0, len(d.loading))
	for key := range d.loading {
		names = append(names, key.Schedule)
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf("%d runs of schedules are being loaded (%s)", len(names), strings.Join(names, ", "))
}

// turn says why a fire waits that has others before it, and what had come of it earlier.
func turn(was, crowd string, before int) string {
	reason := turnBegins + crowd
	switch before {
	case 0:
		reason += ", and it is next"
	case 1:
		reason += ", and another is before it"
	default:
		reason += fmt.Sprintf(", and %d others are before it", before)
	}
	if strings.HasPrefix(was, turnBegins) {
		_, was, _ = strings.Cut(was, turnGoesOn)
	}
	if strings.HasPrefix(was, attemptBegins) {
		reason += turnGoesOn + was
	}
	return reason
}
