package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/tranchehq/tranche/bench/scale"
)

// scaling is what the part scale found out.
type scaling struct {
	Costs     scale.Costs  `json:"costs"`
	Checks    []scaleCheck `json:"checks,omitempty"`
	Forecasts []forecast   `json:"forecasts"`
}

// forecast is a job on a number of installations.
type forecast struct {
	Job       string         `json:"job"`
	Databases int            `json:"databases"`
	Cases     []forecastCase `json:"cases"` // a number of items each
}

// forecastCase is the seed with the median time, and how far the others are from it.
type forecastCase struct {
	Items int `json:"items"`
	scale.Result
	Low  float64 `json:"least_seconds"`
	High float64 `json:"most_seconds"`
}

const (
	night      = 8 * 3600 // s
	scaleSeeds = 3
	// costsMeasured and costsOnRecord are values of -costs; others name files.
	costsMeasured = "measure"
	costsOnRecord = "record"
)

var (
	scaleDatabases = []int{1, 2, 4, 8}
	scaleSizes     = []int{1e6, 1e7, 1e8}
)

type namedJob struct {
	name string
	scale.Job
}

var scaleJobs = []namedJob{
	{"one step, 81 bytes", scale.Job{Steps: 1, Bytes: 81, Chunk: 500, InFlight: 64}},
	{"four steps, 1,000 bytes", scale.Job{Steps: 4, Bytes: 1000, Chunk: 500, InFlight: 64}},
}

// scaleSite is what machines the forecast is about, where no file says it: an ordinary database server of a cloud for
// each installation, three nodes beside it, three NATS servers for all, and services that are no limit.
var scaleSite = scale.Site{DatabaseCores: 8, Fsync: 1.5, Disk: 250, Connections: 200, Trip: 0.5, Nodes: 3, NodeCores: 2,
	NATSCores: 24, Network: 3000, Replicas: 3, ServiceCores: 256, Slow: 0.5}

// measureScale measures what items take and compares the simulation with runs, unless the costs are given, and says
// what follows.
func measureScale(ctx context.Context, cfg config, pg *cluster, rep *report) (err error) {
	s := &scaling{}
	if cfg.costs == costsMeasured {
		if s.Costs, err = measureCosts(ctx, cfg, pg, rep.Machine); err != nil {
			return err
		}
		if s.Checks, err = checkScale(ctx, cfg, pg, s.Costs, rep.Machine.Fsync); err != nil {
			return err
		}
	} else if s.Costs, err = givenCosts(cfg.costs); err != nil {
		return err
	}
	site := scaleSite
	if cfg.site != "" {
		if err := readSite(cfg.site, &site); err != nil {
			return err
		}
	}
	s.Forecasts, err = forecasts(ctx, s.Costs, site)
	rep.Scale = s
	return err
}

func givenCosts(name string) (scale.Costs, error) {
	if name == costsOnRecord {
		return scale.OnRecord()
	}
	raw, err := os.ReadFile(name)
	if err != nil {
		return scale.Costs{}, fmt.Errorf("-costs: %w", err)
	}
	return scale.ParseCosts(raw)
}

// readSite has a file change what it names.
func readSite(name string, site *scale.Site) error {
	raw, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("-site: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(site); err != nil {
		return fmt.Errorf("-site: %s: %w", name, err)
	}
	if site.Databases != 0 {
		return fmt.Errorf("-site: %s: leave databases out; the forecast is for %v of them", name, scaleDatabases)
	}
	return nil
}

func forecasts(ctx context.Context, costs scale.Costs, site scale.Site) (all []forecast, err error) {
	for _, job := range scaleJobs {
		for _, n := range scaleDatabases {
			f := forecast{Job: job.name, Databases: n}
			for _, size := range scaleSizes {
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				at := site
				at.Databases, job.Items = n, size
				c, err := forecastOf(costs, at, job.Job)
				if err != nil {
					return nil, err
				}
				f.Cases = append(f.Cases, c)
			}
			all = append(all, f)
		}
	}
	return all, nil
}

// simulated is how many items are simulated at the most. More go on as the second half of these did.
const simulated = 10_000_000

// forecastOf simulates with several seeds.
func forecastOf(costs scale.Costs, site scale.Site, job scale.Job) (c forecastCase, err error) {
	var results []*scale.Result
	for seed := range uint64(scaleSeeds) {
		r, err := extrapolate(costs, site, job, seed+1)
		if err != nil {
			return c, err
		}
		results = append(results, r)
	}
	slices.SortFunc(results, func(a, b *scale.Result) int { return cmp.Compare(a.Seconds, b.Seconds) })
	return forecastCase{job.Items, *results[scaleSeeds/2], results[0].Seconds, results[scaleSeeds-1].Seconds}, nil
}

func extrapolate(costs scale.Costs, site scale.Site, job scale.Job, seed uint64) (*scale.Result, error) {
	items := job.Items
	job.Items = min(items, simulated)
	r, err := scale.Simulate(costs, site, job, seed)
	if err != nil || items <= simulated {
		return r, err
	}
	job.Items = simulated / 2
	half, err := scale.Simulate(costs, site, job, seed)
	if err != nil {
		return nil, err
	}
	r.Seconds += (r.Seconds - half.Seconds) * float64(items-simulated) / (simulated / 2)
	r.Bytes *= float64(items) / simulated
	r.Rate = float64(items) / r.Seconds
	return r, nil
}

// scaleChecks says how far the simulation is from what was measured.
func (r *report) scaleChecks() *table {
	t := &table{heading: []string{"run on this machine", "items", "measured s", "simulated s", "error",
		"limit, as simulated", "processor s, measured", "flushes: measured, simulated"}}
	if r.Scale == nil {
		return t
	}
	for _, c := range r.Scale.Checks {
		t.add(c.Name, thousands(float64(c.Items)), fmt.Sprintf("%.2f", c.Measured), fmt.Sprintf("%.2f", c.Simulated),
			fmt.Sprintf("%+.0f%%", 100*c.wrong()), c.Limit, fmt.Sprintf("%.2f", c.Used),
			thousands(c.Flushes)+", "+thousands(c.Expected))
	}
	return t
}

// scaleForecasts says what follows for machines that are not here.
func (r *report) scaleForecasts() *table {
	t := &table{heading: []string{"job", "databases"}}
	for _, n := range scaleSizes {
		t.heading = append(t.heading, fmt.Sprintf("%d million, s", n/1e6))
	}
	t.heading = append(t.heading, "items/s", "in a night", "used up first", "and next", "GB in all")
	if r.Scale == nil {
		return t
	}
	for _, f := range r.Scale.Forecasts {
		row := []string{f.Job, fmt.Sprint(f.Databases)}
		for _, c := range f.Cases {
			row = append(row, fmt.Sprintf("%.0f", c.Seconds))
		}
		last := f.Cases[len(f.Cases)-1]
		use := func(u scale.Use) string { return fmt.Sprintf("%s %.0f%%", u.Name, 100*u.Busy) }
		t.add(append(row, thousands(last.Rate), fmt.Sprintf("%.1f billion", last.Rate*night/1e9), use(last.Uses[0]),
			use(last.Uses[1]), thousands(last.Bytes/1e9))...)
	}
	return t
}
