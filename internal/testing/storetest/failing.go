package storetest

import (
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Failing answers a slice with errors made by f, by ordinal; items for which it returns nil are done.
func Failing(s workqueue.Slice, service string, f func(workqueue.Ordinal) *workqueue.SlotError) settle.Answer {
	a := Whole(s)
	a.Service = service
	for i := range a.Slots {
		if e := f(a.Slots[i].Ordinal); e != nil {
			a.Slots[i].Result, a.Slots[i].Err = nil, e
		}
	}
	return a
}
