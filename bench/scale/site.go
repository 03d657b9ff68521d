package scale

import (
	"errors"
	"fmt"
)

// Site is what machines there are. Each of its installations is whole: a database, nodes, and streams of its own.
type Site struct {
	Databases     int     `json:"databases"`
	DatabaseCores float64 `json:"database_cores"`      // of each
	Fsync         float64 `json:"fsync_ms"`            // of its WAL, with the way to a synchronous standby
	Disk          float64 `json:"disk_mb_per_second"`  // of each, WAL and data files together
	Connections   int     `json:"connections"`         // of each
	Trip          float64 `json:"trip_ms"`             // a round trip between node and database
	Nodes         int     `json:"nodes"`               // of each installation
	NodeCores     float64 `json:"node_cores"`          // of each node
	NATSCores     float64 `json:"nats_cores"`          // of all servers together; all installations share them
	Network       float64 `json:"nats_mb_per_second"`  // of all servers together
	Replicas      int     `json:"replicas"`            // of the streams
	ServiceCores  float64 `json:"service_cores"`       // of all instances together
	Late          bool    `json:"-"`                   // whoever commits during a flush is in it: commit_delay
	OneMachine    float64 `json:"one_machine_cores"`   // if more than 0: all of it shares so many cores
	Slow          float64 `json:"slow_commits_median"` // how far fsyncs stray: sigma of a lognormal
}

// Job is what is to be done, evenly spread over the installations: as runs of their own, by plan or by key.
type Job struct {
	Items    int     `json:"items"`
	Steps    int     `json:"steps"`     // requests of an item, side by side
	Bytes    float64 `json:"bytes"`     // of a payload, and of each result
	Chunk    int     `json:"chunk"`     // items of a request
	InFlight int     `json:"in_flight"` // requests at once, of each installation and step
	Service  float64 `json:"service_ms"`
	Skew     float64 `json:"skew"` // how much more than its part the first installation has; 0: nothing
}

func (s Site) validate(j Job) error {
	switch {
	case s.Databases < 1 || s.Nodes < 1 || s.Replicas < 1:
		return errors.New("a site needs at least one database, one node and one copy of the streams")
	case s.OneMachine <= 0 && min(s.DatabaseCores, s.NodeCores, s.NATSCores, s.ServiceCores) < 1:
		return errors.New("each machine of a site needs at least one core")
	case s.Disk <= 0 || s.Network <= 0 || s.Fsync < 0 || s.Trip < 0:
		return errors.New("disk_mb_per_second and nats_mb_per_second must be more than 0, fsync_ms and trip_ms not less")
	case s.Connections < minConnections:
		return fmt.Errorf("connections is %d; a database needs at least %d", s.Connections, minConnections)
	case j.Items < 1 || j.Steps < 1 || j.Chunk < 1 || j.InFlight < 1 || j.Bytes < 0:
		return errors.New("a job needs at least one item, step, item a chunk and request in flight")
	case j.Chunk > blockItems:
		return fmt.Errorf("chunk is %d; it is at most %d", j.Chunk, blockItems)
	}
	return nil
}
