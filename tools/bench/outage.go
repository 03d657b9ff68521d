package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/tranchehq/tranche/tools/faultyservice"
)

// outageCase is a service that does nothing for a while in the middle of a run.
type outageCase struct {
	Way    string  `json:"way"`
	Lasts  float64 `json:"seconds"`
	Before float64 `json:"items_per_second_before"`
	InVain int     `json:"chunks_asked_in_vain"`
	Probes float64 `json:"probes"`
	Back   float64 `json:"seconds_until_back"` // from the end of the outage to the first chunk that was answered
	After  float64 `json:"items_per_second_after"`
	Failed float64 `json:"failed"`
	Lost   float64 `json:"lost"`
}

const (
	outageItems  = 40_000
	outageAfter  = 12_000
	outageFor    = 30 * time.Second
	outageWithin = 3 * time.Minute

	countProbes = `SELECT count(*)::float8 FROM work_slice WHERE run_id = $1 AND cause = 'probe'`
)

// outages are the runs that were started.
type outages struct {
	ways []faultyservice.Way
	runs []string
}

func outageEndpoint(way faultyservice.Way) string { return "outage-" + string(way) }

// beginOutages starts a run for each way, all at the same time, with default settings but for the chunks, which are
// small enough for a rate to show, and for the deadline of those that are never answered.
func beginOutages(ctx context.Context, l *lab) (*outages, error) {
	o := &outages{ways: []faultyservice.Way{faultyservice.WayError, faultyservice.WaySlots, faultyservice.WayHang}}
	for _, way := range o.ways {
		err := l.misbehave(faultyservice.Config{Endpoint: outageEndpoint(way), Concurrency: 64,
			Load:   &faultyservice.Load{PerChunk: 5 * time.Millisecond, PerItem: 2 * time.Millisecond, Servers: 8},
			Outage: &faultyservice.Outage{After: outageAfter, For: outageFor, Way: way}}, true)
		if err != nil {
			return nil, err
		}
		flags := []string{"--chunk", "100"}
		if way == faultyservice.WayHang {
			flags = append(flags, "--slice-timeout", "5s")
		}
		run, err := l.begin(ctx, outageEndpoint(way), outageItems, flags...)
		if err != nil {
			return nil, err
		}
		o.runs = append(o.runs, run)
	}
	return o, nil
}

// await waits for the runs' ends and says what became of them.
func (o *outages) await(ctx context.Context, l *lab, rep *report) error {
	for i, way := range o.ways {
		if err := l.until(ctx, outageWithin, "run "+o.runs[i]+" completes", hasCompleted, o.runs[i]); err != nil {
			return fmt.Errorf("outage, %s: %w", way, err)
		}
		ledger, err := l.ledger(outageEndpoint(way))
		if err != nil {
			return err
		}
		c := outageCase{Way: string(way), Lasts: outageFor.Seconds(), InVain: ledger.Fired(faultyservice.FaultOutage)}
		if c.InVain == 0 {
			return fmt.Errorf("outage, %s: the fault did not fire", way)
		}
		c.read(ledger.Entries())
		if err := c.count(ctx, l, o.runs[i]); err != nil {
			return err
		}
		rep.Outages = append(rep.Outages, c)
	}
	fmt.Fprintf(os.Stderr, "misbehave outages are over\n")
	return nil
}

// read finds the rates in what the service has noted. An entry is written when a chunk begins.
func (c *outageCase) read(entries []faultyservice.Entry) {
	var down, up, last time.Time // the first chunk in vain, the first that is answered after it, the last one
	before, after := 0, 0
	for _, e := range entries {
		switch {
		case e.Fault == faultyservice.FaultOutage:
			if down.IsZero() {
				down = e.At
			}
		case down.IsZero():
			before += len(e.Ordinals)
		default:
			if up.IsZero() {
				up = e.At
			}
			after += len(e.Ordinals)
			last = e.At
		}
	}
	c.Before = float64(before) / down.Sub(entries[0].At).Seconds()
	c.Back = up.Sub(down.Add(outageFor)).Seconds()
	c.After = float64(after) / last.Sub(up).Seconds()
}

func (c *outageCase) count(ctx context.Context, l *lab, run string) (err error) {
	if c.Probes, err = l.number(ctx, countProbes, run); err != nil {
		return err
	}
	if c.Failed, err = l.number(ctx, countFailed, run); err != nil {
		return err
	}
	done, err := l.number(ctx, countDone, run)
	c.Lost = outageItems - done - c.Failed
	return err
}

func (r *report) outages() *table {
	t := &table{heading: []string{
		"outage of 30 s", "items/s before", "chunks asked in vain", "of them probes", "back after its end", "items/s after",
		"items failed", "items lost",
	}}
	says := map[string]string{"error": "each chunk fails", "slots": "each item fails, in a way that may pass",
		"hang": "nothing is answered (deadline 5 s)"}
	for _, o := range r.Outages {
		t.add(says[o.Way], thousands(o.Before), fmt.Sprint(o.InVain), thousands(o.Probes), fmt.Sprintf("%.1f s", o.Back),
			thousands(o.After), thousands(o.Failed), thousands(o.Lost))
	}
	return t
}
