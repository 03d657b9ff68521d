package gather

import (
	"cmp"
	"strings"

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/order"
)

func readPlan(doc *strictyaml.Document, plan *Plan) error {
	return doc.Root.Fields([]strictyaml.Field{
		{Name: "name", Read: text(&plan.Name)},
		{Name: "priority", Read: number(&plan.Priority)},
		{Name: "max_failed", Read: failures(&plan.MaxFailed)},
		{Name: "guard", Read: guard(&plan.Guard)},
		{Name: "canary", Read: number(&plan.Canary)},
		{Name: "canary_auto", Read: strictyaml.Truth(&plan.CanaryAuto)},
		{Name: "order_by", Read: text(&plan.Order.By)},
		{Name: "values", Read: strictyaml.SomeTexts(&plan.Order.Values)},
		{Name: "partitions", Read: partitions(&plan.Order.Partitions)},
		{Name: "on_failure", Read: canonical(&plan.OnFailure, ParseOnFailure)},
		{Name: "items", Read: readItems(&plan.Items)},
		{Name: "steps", Read: func(v strictyaml.Value) error {
			return v.List(func(v strictyaml.Value) error {
				step, err := readStep(doc, v)
				plan.Steps = append(plan.Steps, step)
				return err
			})
		}},
	}...)
}

func readStep(doc *strictyaml.Document, v strictyaml.Value) (Step, error) {
	step := defaultStep()
	var over workqueue.StepOverrides
	auto := map[string]**bool{"chunk": new(*bool), "in_flight": new(*bool)}
	fields := []strictyaml.Field{
		{Name: "name", Read: text(&step.Name)},
		{Name: "endpoint", Read: text(&step.Endpoint)},
		{Name: "request", Read: text(&step.Request)},
		{Name: "http", Read: readHTTP(&step.HTTP)},
		{Name: "sql", Read: ReadSQL(&step.SQL)},
		{Name: "local", Read: text(&step.Local)},
		{Name: "needs", Read: texts(&step.Needs)},
		{Name: "inputs", Read: inputs(&step.Inputs)},
		{Name: "optional", Read: strictyaml.Truth(&step.Optional)},
		{Name: "barrier", Read: readBarrier(&step)},
		{Name: "approve_by", Read: text(&step.Approval)},
	}
	for name, field := range over.Fields() {
		fields = append(fields, strictyaml.Field{Name: name, Read: settingOf(field)})
		if into := auto[name]; into != nil {
			fields = append(fields, strictyaml.Field{Name: name + "_auto", Read: given(into, strictyaml.Truth)})
		}
	}
	err := v.Fields(fields...)
	step.Chunk = step.defaultChunk()
	for name, field := range over.Fields() {
		if number, ok := field.(**workqueue.Adaptive); ok && err == nil {
			err = together(doc, v.Path()+"."+name, number, *auto[name])
		}
	}
	step.StepSettings = step.Over(&over)
	if !v.Given("name") {
		step.Name = step.ownName()
	}
	return step, err
}

// readBarrier reads true, false or approve, which is approve_by: anyone unless that says else, before or after it.
func readBarrier(step *Step) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		if said, ok := v.Plain(); ok && said == string(barrierApprove) {
			step.Barrier = true
			step.Approval = cmp.Or(step.Approval, ApproveAnyone)
			return nil
		}
		if strictyaml.Truth(&step.Barrier)(v) != nil {
			return v.Wrong("true, false or approve")
		}
		return nil
	}
}

// partitions reads a number of which 0, when it stands there, is not the same as not said.
func partitions(into *int) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		err := number(into)(v)
		if err == nil && *into == 0 {
			err = v.Fail("0; it is 1 to %d, or left out", order.MaxPartitions)
		}
		return err
	}
}

// inputs reads a list of which none is not the same as not said.
func inputs(into *[]string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		*into = []string{}
		return texts(into)(v)
	}
}

// given makes a reader note whether there was a value.
func given[T any](into **T, read func(*T) func(strictyaml.Value) error) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		*into = new(T)
		return read(*into)(v)
	}
}

// together makes one of the two fields of a number that may be auto: itself, which may say auto, and the one with _auto
// behind its name, which makes it the upper bound. Without either it stays nil.
func together(doc *strictyaml.Document, path string, number **workqueue.Adaptive, auto *bool) error {
	is := *number
	switch {
	case auto == nil:
	case is == nil && *auto:
		*number = &workqueue.Adaptive{Auto: true}
	case is == nil || is.Auto && !*auto:
		return doc.Fail(path+"_auto", "without auto, %s has to be a number", path[strings.LastIndexByte(path, '.')+1:])
	default:
		is.Auto = *auto
	}
	return nil
}
