package inspect

import (
	"github.com/tranchehq/tranche/workqueue"
)

// OrderView is how the items of a run are put in lines.
type OrderView struct {
	By         string   `json:"by" doc:"the field of the payload, or key"`
	Values     []string `json:"values,omitempty" doc:"the only values there are"`
	Partitions int      `json:"partitions,omitempty" doc:"values share so many lines, by their hash"`
	OnFailure  string   `json:"on_failure" enum:"continue,stop" doc:"what becomes of the items that follow a failed one"`
}

func orderView(o *workqueue.RunOrder) *OrderView {
	if o == nil {
		return nil
	}
	v := &OrderView{By: o.Rule.By, Values: o.Rule.Values, Partitions: o.Rule.Partitions, OnFailure: "continue"}
	if o.Stop {
		v.OnFailure = "stop"
	}
	return v
}
