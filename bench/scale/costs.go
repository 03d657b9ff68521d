package scale

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

// Cost is what something takes: of the item itself, of each byte of its payload and again of its result, and of the
// chunk that it is in. Times are in µs, sizes in bytes.
type Cost struct {
	Item  float64 `json:"item"`
	Byte  float64 `json:"byte"`
	Chunk float64 `json:"chunk"`
}

// each is what items take without their chunk, of what they take with one.
func (c Cost) each(items, bytes float64) float64 { return items * (c.Item + c.Byte*bytes) }
func (c Cost) of(items, bytes float64) float64   { return c.each(items, bytes) + c.Chunk }

// Costs are what items take on their way. Intake is once an item, Work once an item and step.
type Costs struct {
	Measured string `json:"measured"` // when, on what, under which load

	DatabaseIntake Cost `json:"database_intake"` // processor
	DatabaseWork   Cost `json:"database_work"`
	NodeIntake     Cost `json:"node_intake"`
	NodeWork       Cost `json:"node_work"`
	NATSWork       Cost `json:"nats_work"`
	ServiceWork    Cost `json:"service_work"`

	WALIntake  Cost `json:"wal_intake"` // bytes
	WALWork    Cost `json:"wal_work"`
	DiskIntake Cost `json:"disk_intake"` // what the database grows by
	DiskWork   Cost `json:"disk_work"`
	Wire       Cost `json:"wire"` // bytes in and out of NATS

	Trip float64 `json:"trip_us"` // a round trip to the database on the same machine, in µs
}

//go:embed costs.json
var onRecord []byte

// OnRecord are the costs that the pages of the project go by.
func OnRecord() (Costs, error) { return ParseCosts(onRecord) }

// ParseCosts reads costs as the bench prints them.
func ParseCosts(raw []byte) (c Costs, err error) {
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, fmt.Errorf("costs: %w", err)
	}
	for name, cost := range map[string]Cost{
		"database_work": c.DatabaseWork, "node_work": c.NodeWork, "service_work": c.ServiceWork, "wal_work": c.WALWork,
	} {
		if cost.Item <= 0 {
			return c, fmt.Errorf("costs: %s.item is %g; it must be more than 0", name, cost.Item)
		}
	}
	return c, nil
}
